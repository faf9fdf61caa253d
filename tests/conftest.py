"""Settings every test shares, and the order of the tests."""

import gc
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from tests.support.disk.late import late

# Machines that run the suite share their cores: a slow example is no failure, the suite's own timeout is the bound.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")
# `make test-fast` chooses it: a property without a number of its own is tried with 30 examples. `make test` tries 100.
settings.register_profile("fast", deadline=None, max_examples=30)

# A shell starts what it puts in the background with ^C ignored, and so would every program be that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every JVM of a test lives for seconds: what the optimizing compiler and the collector's threads would make of it later
# is work for nothing (18 s instead of 28 for the first two queries of a session on two busy cores).
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


LONG: Final = frozenset((Path(__file__).parent / "long.txt").read_text().splitlines())
"""Tests that `make test-long` runs instead of `make test`."""
NOT_FAST: Final = frozenset((Path(__file__).parent / "not_fast.txt").read_text().splitlines())
"""Unit tests that `make test-fast` leaves out. A test that says so itself has the mark `not_fast`."""
BOUND_S: Final = 120
"""Every test has so much time; tests that ask for more begin first."""


@pytest.hookimpl(tryfirst=True)  # before the marks choose
def pytest_itemcollected(item: pytest.Item) -> None:
    names = (item.nodeid, item.nodeid.partition("[")[0].removesuffix("::runTest"))
    if not LONG.isdisjoint(names):
        item.add_marker("long")
    if not NOT_FAST.isdisjoint(names):
        item.add_marker("not_fast")


@pytest.hookimpl(trylast=True)  # of what is left to run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist deals the workers runs of equal length, then steals from a run's end: what is long comes first.
    Modules that use the shared Spark session begin the first run: one worker has them all, and the suite one session
    (a JVM and ten Python workers: 17 s of CPU). Long modules begin the others."""
    modules: dict[object, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    on_spark: list[pytest.Item] = []
    long: list[list[pytest.Item]] = []
    rest: list[pytest.Item] = []
    for found in modules.values():
        if any("spark" in getattr(item, "fixturenames", ()) for item in found):
            on_spark += found
        elif any(_seconds(item) > BOUND_S for item in found):
            long.append(found)
        else:
            rest += found
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    heads = [on_spark, *([] for _ in range(workers - 1))]
    for module in long:
        min(heads[1:] or heads, key=len).extend(module)
    items[:] = dealt(heads, rest)


def dealt(heads: list[list[pytest.Item]], rest: list[pytest.Item]) -> list[pytest.Item]:
    """As many runs of equal length as there are heads, one after the other, each with its head in front."""
    left = len(rest) + sum(map(len, heads))
    order: list[pytest.Item] = []
    taken = 0
    for number, head in enumerate(heads):
        length = left // (len(heads) - number)  # as pytest-xdist cuts them
        more = max(0, length - len(head))
        order += [*head, *rest[taken : taken + more]]
        taken += more
        left -= length
    return order + rest[taken:]


def _seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker is not None and marker.args else 0


def pytest_collection() -> None:
    """What is collected and imported stays: until then, the collector of cycles finds nothing to free."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Six thousand collected tests and all they import live as long as the process: a full collection would walk them
    again and again (50 simulated seeds: 44 s of CPU instead of 23)."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # pytest itself refuses coroutines
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine test runs in virtual time: at most an hour of it, or what its mark `virtual_s` says."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from tests.support.fast_loop import HOUR_S, run_fast  # not in the start of those who collect other tests

    mark = pyfuncitem.get_closest_marker("virtual_s")
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run_fast(pyfuncitem.obj(**given), timeout_s=HOUR_S if mark is None else mark.args[0])
    return True


@pytest.fixture(autouse=True)
def _no_late_effects() -> Iterator[None]:
    """Work that outlived its role fails the test it came in, whoever swallowed its AssertionError."""
    late.clear()
    yield
    assert not late, f"late: {late}"
