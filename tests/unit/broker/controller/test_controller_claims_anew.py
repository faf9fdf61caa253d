"""A commit that is under way while its controller epoch is lost, and the same process becomes the controller again."""

from __future__ import annotations

import asyncio

import pytest

from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions.decision import Decision
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.following.image_feed import ImageFeed
from broker.metadata.records import ConfigsSet
from coldstore.object_store import ObjectInfo, Upload
from seams.loop.tasks import Tasks
from tests.support.brokers.cluster_kit import claim, cluster_root
from tests.support.store.memory_store import MemoryStore
from tests.unit.broker.following.test_publisher import Told


class SlowPages(MemoryStore):
    """Pages are written when `let` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()
        self.asked = asyncio.Event()

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        self.asked.set()
        await self.let.wait()
        return await super().put_segment(key, body)


async def test_a_page_that_is_written_late_does_not_end_the_office_of_a_later_claim() -> None:
    """What needs a page takes two PUTs. The first is slow; meanwhile the controller gives its lease away (R27), nobody
    takes it, and it claims again. The commit of before is refused, for its epoch is over, and the new one decides: it
    beat its lease and answered heartbeats, and refused every change of the cluster, the end of sessions among them."""
    store = SlowPages()
    cluster = cluster_root(store)
    feed = ImageFeed(Told().publisher)
    feed.take(await claim(cluster))
    commit_queue, tasks = CommitQueue(cluster, feed), Tasks()
    tasks.spawn("commit_queue", commit_queue.keep())

    def of(value: str) -> Decision[None]:
        return Decision((ConfigsSet({"x": value}, None, None),), None)

    async def decide(value: str) -> None:
        await commit_queue.decide(lambda _: of(value))

    large = asyncio.ensure_future(decide("x" * 70_000))
    await store.asked.wait()
    commit_queue.renounce()
    feed.take(await claim(cluster))
    commit_queue.activate(lambda: False)
    store.let.set()
    with pytest.raises(ApiError) as refused:
        await large
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await decide("small")
    assert feed.image.cluster_configs == {"x": "small"}
    await tasks.close()
