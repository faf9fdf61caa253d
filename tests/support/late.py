"""Work that would change a log after its role was over: refused where brokers run, a failure in tests."""

from __future__ import annotations


def must_not_come(why: str) -> None:
    """`World.late_effect` of tests."""
    raise AssertionError(f"late: {why}")
