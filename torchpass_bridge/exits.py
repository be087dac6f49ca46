"""How a trainer's process ends, as its launcher reads it (`spare.py`)."""

OVER = 0
"""The job has ended, or this process has handed its rank over in good order."""
FENCED = 75
"""It lost its rank while it was thought dead: never itself again, but it may start anew as a spare (EX_TEMPFAIL)."""
SAVED = 76
"""The job was stopped with a snapshot: the same command goes on from it with TORCHPASS_RESTORE."""
REFUSED = 78
"""It cannot take part: another start of the same command would be refused, too (EX_CONFIG)."""
