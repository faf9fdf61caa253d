"""Work that would change a log after its role was over: refused where brokers run, a failure in tests.

Always true: `late` has each one since the test began, whoever swallowed the AssertionError: a supervised task tries
again, and a gather keeps it for nobody.
"""

from __future__ import annotations

from typing import Final

late: Final[list[str]] = []


def must_not_come(why: str) -> None:
    """`World.late_effect` of tests."""
    late.append(why)
    raise AssertionError(f"late: {why}")
