"""A controller that stops ends its session by the newest image, not by the last one that it applied (R9)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from broker.membership.controlled_shutdown import leave
from broker.membership.controller_lease import ControllerLease
from broker.metadata.records import Row, RowsSet, TopicCreated
from coldstore.keys import CLUSTER_KEY
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import claim, cluster_root, id_of, session
from tests.support.fast_loop import FastClock
from tests.support.store.memory_store import MemoryStore

T = id_of(1)


class Slow(MemoryStore):
    """While `hangs`, the answer to a PUT of `cluster.json` does not come, although the root is stored."""

    hangs = False

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        etag = await super().put_root(key, data, if_match)
        while self.hangs and key == CLUSTER_KEY:
            await asyncio.sleep(1)
        return etag


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_change_that_was_cut_off_by_the_stop_leaves_no_partition_to_the_ended_session(is_stored: bool) -> None:
    """Regression: broker 2 joined the in-sync set by a commit whose answer the stop cut off. The end was decided
    without it, and was refused: the other brokers waited for the end of session and lease."""
    store = Slow()
    cluster = cluster_root(store)
    await claim(cluster)
    row = Row((1, 2), 1, 0, 0, (1,), 0)
    other = session("j", node_id=2, broker_epoch=2)
    applied = (await cluster.commit([other, TopicCreated(T, "t", (row,), {})])).image
    joined = RowsSet(T, ((0, replace(row, in_sync=(1, 2), partition_epoch=1)),))
    store.hangs = is_stored
    changing = asyncio.ensure_future(cluster.commit([joined]))
    await asyncio.sleep(0.5 if is_stored else 0)
    changing.cancel()
    await asyncio.wait([changing])
    store.hangs = False

    world: Any = SimpleNamespace(rng=SeededRng("lease"), clock=FastClock())
    lease = ControllerLease(store, world, "i", lease_s=10.0, interval_s=3.0)
    await leave(cluster, lease, None, applied, 1, is_controller=True)

    found = await cluster_root(store, "other").load()
    assert found is not None and not found.image.nodes[1].active
    after = found.image.topics[T].rows[0]
    assert after.leader == (2 if is_stored else -1), after
