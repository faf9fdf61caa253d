"""Settings every test shares, and the order of the tests."""

import os

import pytest
from hypothesis import settings

# Machines that run the suite share their cores: a slow example is no failure, the suite's own timeout is the bound.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")

# Every JVM of a test lives for seconds: what the optimizing compiler and the collector's threads would make of it later
# is work for nothing (18 s instead of 28 for the first two queries of a session on two busy cores).
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that use the shared Spark session come first: pytest-xdist deals from the front and steals from the end,
    so one worker has them all, and the suite one such session (a JVM and ten Python workers: 17 s of CPU)."""
    on_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in on_spark)
