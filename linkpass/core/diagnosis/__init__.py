"""Which element explains what the paths show. Pure; uses numpy, so that only what is enabled to diagnose imports it.

`localise.Localiser` takes one window of observations after the other and gives verdicts; `model` states the model.
"""
