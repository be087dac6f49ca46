"""Profiles for the properties: `fast` by default, `deep` when HYPOTHESIS_PROFILE=deep."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "fast",
    max_examples=40,
    deadline=None,
    derandomize=True,  # a test run tells of the change that it tests, the same twice; `deep` looks for the rest
    phases=[Phase.explicit, Phase.generate],  # and makes what it finds small, which takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "1500")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
