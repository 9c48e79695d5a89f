"""How the tests are run: hypothesis profiles, chosen with `HYPOTHESIS_PROFILE`."""

import os

from hypothesis import settings

# No deadlines: a loaded machine is not a bug.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
