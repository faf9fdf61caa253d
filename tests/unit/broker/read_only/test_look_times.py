"""When roots are looked at again."""

from __future__ import annotations

import pytest

from broker.read_only.root_cache import KEPT_S, POLLS_PER_S, SELDOM_S, SOON_S, next_poll_s


@pytest.mark.parametrize(
    ("idle_s", "waited_for", "expected_s"),
    [(0, False, SOON_S), (9, False, SOON_S), (10, False, SELDOM_S), (299, False, SELDOM_S), (KEPT_S, False, None),
     (KEPT_S, True, SOON_S), (1e9, True, SOON_S)],
)  # fmt: skip
def test_who_reads_is_served_soon(idle_s: float, waited_for: bool, expected_s: float | None) -> None:
    assert next_poll_s(idle_s, 1, is_waited_for=waited_for) == expected_s


@pytest.mark.parametrize("count", [1, 500, 1_000, 2_000, 10_000])
def test_many_share_what_the_bucket_is_asked(count: int) -> None:
    """At most `POLLS_PER_S` a second, until every one is looked at as seldom as an idle one."""
    wait_s = next_poll_s(0, count, is_waited_for=True)
    assert wait_s is not None and SOON_S <= wait_s <= SELDOM_S
    assert count / wait_s <= POLLS_PER_S or wait_s == SELDOM_S
