"""Test-wide settings: hypothesis is repeatable here; HYPOTHESIS_PROFILE=explore draws afresh and longer."""

import os

from hypothesis import settings

from offpolicy.threads import set_threads

pytest_plugins = ["ray_fixture", "serving_fixtures"]
set_threads(1)  # small problems: a second thread only waits
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
