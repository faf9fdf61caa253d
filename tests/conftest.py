"""Settings every test shares."""

from hypothesis import settings

# Machines that run the suite share their cores: a slow example is no failure, the suite's own timeout is the bound.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")
