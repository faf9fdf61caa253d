"""A followed log has its topic's newest configs, whenever they changed before its role began."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.metadata.records import ConfigsSet
from tests.support.brokers.shared_bucket import TOPIC_ID, Pair, both, until
from tests.unit.broker.partition.test_compacted_and_tiered_again import filled, put
from tests.unit.broker.partition.test_tombstones_of_replicas import NOT_TIERED, OFTEN, opened, values_of


def keep_all(pair: Pair) -> None:
    configs = NOT_TIERED | {"cleanup_policy": "delete"}
    pair.note(ConfigsSet({name.replace("_", "."): value for name, value in configs.items()}, TOPIC_ID))


@pytest.mark.parametrize("is_at_once", [True, False], ids=["in one image", "while it opens"])
async def test_a_policy_that_changes_between_two_roles_holds_for_the_next_one(*, is_at_once: bool) -> None:
    """Regression: the log kept the configs of its last role. The replica compacted a topic that keeps every record, and
    a record was lost when it led."""
    pair = await both(OFTEN, **NOT_TIERED)
    flusher, asks, goes_on = opened(pair, 2).flusher, asyncio.Event(), asyncio.Event()
    flush: Any = flusher.flush

    async def slow_flush() -> None:
        asks.set()
        await goes_on.wait()
        await flush()

    flusher.flush = slow_flush  # type: ignore[method-assign]
    pair.elect(1, (1, 2))
    if is_at_once:
        keep_all(pair)
    pair.publish()
    await asks.wait()
    if not is_at_once:
        keep_all(pair)
        pair.publish()
    flusher.flush = flush  # type: ignore[method-assign]
    goes_on.set()
    await until(lambda: pair.leads(1), "1 leads in the next epoch")
    for value in (b"older", b"newer"):
        await put(pair, b"deleted", value)
        await filled(pair, "a")
    await asyncio.sleep(60)
    assert values_of(pair, 1) == [b"older", b"newer"]
    assert values_of(pair, 2) == [b"older", b"newer"]
    await pair.stop()
