"""The estimated bill: arithmetic against Amazon's published prices."""

from __future__ import annotations

import pytest

from broker.observe.metrics.cost import DAY_S, GIB, daily_cost, estimated_dollars_per_day
from coldstore.stores.metered import CallOutcome, Meter
from coldstore.stores.operations import Operation


def test_storage_costs_what_the_table_says() -> None:
    """One TiB for a month of 30.4 days is 1024 × $0.023."""
    assert daily_cost({}, 1024 * GIB, DAY_S) * 365 / 12 == pytest.approx(1024 * 0.023)


def test_one_cas_a_second_is_about_thirteen_dollars_a_month() -> None:
    """The figure the design was made with."""
    cost = daily_cost({Operation.PUT_ROOT: DAY_S}, 0, DAY_S)
    assert cost * 365 / 12 == pytest.approx(13.1, abs=0.1)


def test_every_operation_has_a_price_class() -> None:
    """A new operation must be priced: writes and listings, reads, deletions."""
    for operation in Operation:
        daily_cost({operation: 1.0}, 0, DAY_S)
    assert daily_cost({Operation.DELETE: 1e9}, 0, DAY_S) == 0
    assert daily_cost({Operation.LIST: 1000.0}, 0, DAY_S) == pytest.approx(0.005)
    assert daily_cost({Operation.HEAD: 1000.0}, 0, DAY_S) == pytest.approx(0.0004)


def test_a_rate_is_carried_on_for_a_day_but_not_from_the_first_seconds() -> None:
    """Half a day's requests count twice; those of the first second are spread over ten minutes."""
    half = daily_cost({Operation.GET: 1000.0}, 0, DAY_S / 2)
    assert half == pytest.approx(2 * 0.0004)
    young = daily_cost({Operation.GET: 100.0}, 0, 1.0)
    assert young == pytest.approx(100 * 144 / 1000 * 0.0004)


def test_the_meters_of_a_store_are_what_is_billed() -> None:
    """Requests, not calls: a page of a listing and a thousand deletions are one each."""
    meters = {operation: Meter() for operation in Operation}
    meters[Operation.GET].requests, meters[Operation.GET].outcomes[CallOutcome.OK] = 5000, 7
    assert estimated_dollars_per_day(meters, 0, DAY_S) == pytest.approx(5 * 0.0004)
