"""Changes to the cluster whose outcome is not known, or whose caller gave up: the bucket's word becomes true here too.

The dangerous end of this: a topic that was committed unseen, created again by a client's retry, is a second topic of
the same name; at the next start one of the two moves the other's log away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from broker.config.live import LiveConfig
from broker.config.resolve import resolve
from broker.controller.commit_queue import CommitQueue
from broker.controller.controller_requests import ControllerRequests
from broker.errors import ApiError
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.handlers.request_limits import within
from broker.metadata.image import ClusterImage, Topic
from coldstore.stores.operations import Operation
from logformat.errors import Retryable
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import claim, cluster_root
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.store.memory_store import MemoryStore


@dataclass
class StandInEffects:
    """What the publisher asked for, by topic name."""

    serving: dict[str, Topic] = field(default_factory=dict)
    purged: list[str] = field(default_factory=list)

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        raise AssertionError("nobody else leads here")

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        assert topic.name not in self.serving, "two topics with the same name"
        self.serving[topic.name] = topic

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        raise AssertionError("nothing has replicas")

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        raise AssertionError("nothing has replicas")

    def follow_config(self) -> None:
        raise AssertionError("not in these tests")

    def reconfigure(self, topic: Topic) -> None:
        raise AssertionError("not in these tests")

    def withdraw(self, topic: Topic) -> None:
        assert self.serving.pop(topic.name).topic_id == topic.topic_id

    def purge(self, topic: Topic) -> None:
        self.purged.append(topic.topic_id)

    async def opened(self, topic_id: str) -> None:
        pass


class Place:
    """A controller over a bucket that misbehaves."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.rng = SeededRng(5)
        self.store = FaultyStore(self.memory, self.rng)
        self.effects = StandInEffects()
        self.cluster = cluster_root(self.store, 5)

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[ControllerRequests]:
        at = await claim(self.cluster)
        live, metadata = LiveConfig(resolve({"log.dirs": "/data"}, [], {}, None)), MetadataCache("c")
        feed = ImageFeed(Publisher(self.effects, metadata, live, 1))
        feed.take(at)
        commit_queue = CommitQueue(self.cluster, feed)
        tasks = Tasks()
        tasks.spawn("controller", commit_queue.keep())
        yield ControllerRequests(commit_queue, metadata, live, self.rng, self.effects.opened)
        await tasks.close()

    async def image(self) -> ClusterImage:
        """As the next start will read it."""
        found = await cluster_root(self.memory).load()
        assert found is not None
        return found[1]


async def test_cluster_d15_a_topic_whose_creation_landed_unseen_is_not_created_twice() -> None:
    """The PUT lands and the store goes away before it says so; the client's retry finds the topic, and it serves."""
    place = Place()
    async with place.controller() as controller:
        place.store.script(Operation.PUT_ROOT, Fault.LOST)
        place.store.script(Operation.GET, Fault.BEFORE, times=1000)
        place.store.script(Operation.PUT_ROOT, Fault.BEFORE, times=1000)
        with pytest.raises(Retryable):
            await controller.create_topic("orders", 1, {})
        place.store.calm()
        with contextlib.suppress(ApiError):
            await controller.create_topic("orders", 1, {})
        image = await place.image()
        assert [topic.name for topic in image.topics.values()] == ["orders"]
        assert list(image.topics.values()) == list(place.effects.serving.values())


def test_a_creation_that_lands_late_is_settled_before_the_next_change() -> None:
    """The PUT lands minutes later, or never: whichever, one topic of the name exists and it is the one that serves."""

    async def scenario(late_s: float) -> None:
        place = Place()
        async with place.controller() as controller:
            place.store.plan = type(place.store.plan)(late_s=(late_s, late_s + 0.001))
            place.store.script(Operation.PUT_ROOT, Fault.LATE)
            place.store.script(Operation.GET, Fault.BEFORE, times=1000)
            with pytest.raises(Retryable):
                await controller.create_topic("orders", 1, {})
            place.store.calm()
            with contextlib.suppress(ApiError):
                await controller.create_topic("orders", 1, {})
            await place.store.settle()
            await controller.create_topic("others", 1, {})
            image = await place.image()
            assert sorted(topic.name for topic in image.topics.values()) == ["orders", "others"]
            assert {t.topic_id for t in image.topics.values()} == {t.topic_id for t in place.effects.serving.values()}

    for late_s in (0.01, 31.0, 600.0):
        run_fast(scenario(late_s))


async def test_a_deletion_that_landed_unseen_stops_the_topic_by_itself() -> None:
    """Else it would go on to acknowledge records that the next start does not know."""
    place = Place()
    async with place.controller() as controller:
        topic = await controller.create_topic("orders", 1, {})
        place.store.script(Operation.PUT_ROOT, Fault.LOST)
        place.store.script(Operation.GET, Fault.BEFORE, times=1000)
        with pytest.raises(Retryable):
            await controller.delete_topic("orders")
        place.store.calm()
        await asyncio.sleep(60)
        assert place.effects.serving == {} and place.effects.purged == [topic.topic_id]
        assert (await place.image()).topics == {}


async def test_a_caller_that_gives_up_in_the_middle_of_a_commit_leaves_no_second_topic() -> None:
    """The request's timeout cancels the change while its PUT is under way, and the PUT lands."""
    place = Place()
    async with place.controller() as controller:
        place.store.plan = type(place.store.plan)(latency_s=(2.0, 2.001))
        put_root = place.memory.put_root
        landing: list[asyncio.Task[str]] = []

        async def lands_anyway(key: str, data: bytes, if_match: str | None) -> str:
            landing.append(asyncio.get_running_loop().create_task(put_root(key, data, if_match)))
            await asyncio.sleep(5)
            return await landing[-1]

        place.memory.put_root = lands_anyway  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4.0):
                await controller.create_topic("orders", 1, {})
        assert landing
        place.memory.put_root = put_root  # type: ignore[method-assign]
        place.store.calm()
        with contextlib.suppress(ApiError):
            await controller.create_topic("orders", 1, {})
        image = await place.image()
        assert list(image.topics.values()) == list(place.effects.serving.values())
        assert len(image.topics) == 1


async def test_an_admin_change_that_began_outlives_the_patience_of_its_request() -> None:
    """`timeout.ms` ends the wait, not the change; what had not begun is not done (Kafka's controller as well)."""

    def in_s(delay_s: float) -> float:
        return asyncio.get_running_loop().time() + delay_s

    place = Place()
    async with place.controller() as controller:
        with pytest.raises(TimeoutError, match="before it was begun"):
            await within(in_s(0), lambda: controller.create_topic("late", 1, {}))
        place.store.plan = type(place.store.plan)(latency_s=(5.0, 5.001))
        begun, waiting = (
            asyncio.ensure_future(within(in_s(patience_s), partial(controller.create_topic, name, 1, {})))
            for name, patience_s in (("begun", 1.0), ("waiting", 1.0))
        )
        await asyncio.sleep(0)
        behind = asyncio.ensure_future(within(in_s(2.0), partial(controller.create_topic, "behind", 1, {})))
        for ended in await asyncio.gather(begun, waiting, behind, return_exceptions=True):
            assert isinstance(ended, TimeoutError) and "check whether it took effect" in str(ended)
        assert not place.effects.serving
        await asyncio.sleep(30)
        assert set(place.effects.serving) == {"begun", "waiting"}
        assert (await within(in_s(60), lambda: controller.create_topic("more", 1, {}))).name == "more"
        with pytest.raises(ApiError, match="exists"):
            await within(in_s(1), lambda: controller.create_topic("more", 1, {}))
