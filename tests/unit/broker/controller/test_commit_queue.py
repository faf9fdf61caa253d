"""The controller's office: one commit at a time, and nobody is answered before what was decided is obeyed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import NAMESPACE_OID, uuid5

import pytest

from broker.controller import commit_queue as office_module
from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions.decision import Decision
from broker.error_codes import ErrorCode
from broker.errors import ApiError, code_of
from broker.following.image_feed import ImageFeed
from broker.metadata.cluster_root import COMMIT_BYTES_MAX, CommitTooLarge, ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import ConfigsSet, MetadataRecord, TopicCreated
from coldstore.roots.root import RootVanished, Unsettled
from logformat.errors import Fenced, Retryable
from seams.loop.tasks import Tasks, supervise
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import row, session
from tests.unit.broker.following.test_publisher import Told


class Root:
    """A root whose commits take a second; `fails` are raised by the next ones, of which a lost one comes true."""

    def __init__(self) -> None:
        self.epoch = 1
        self.image_bytes = 0
        self.at = ImageAt(1, ClusterImage().with_records([session()]))
        self.commits: list[tuple[MetadataRecord, ...]] = []
        self.fails: list[Exception] = []
        self.comes_true = True
        self.settled = 0

    async def commit(self, records: Sequence[MetadataRecord]) -> ImageAt:
        await asyncio.sleep(1.0)
        self.commits.append(tuple(records))
        failure = self.fails.pop(0) if self.fails else None
        if failure is None or (isinstance(failure, Unsettled) and self.comes_true):
            self.at = ImageAt(self.at.position + 1, self.at.image.with_records(records))
        if failure is not None:
            raise failure
        return self.at

    async def settle(self) -> ImageAt:
        await asyncio.sleep(1.0)
        self.settled += 1
        if self.fails:
            raise self.fails.pop(0)
        self.at = ImageAt(self.at.position + 1, self.at.image)
        return self.at


def _id_of(name: str) -> str:
    return str(uuid5(NAMESPACE_OID, name))


class Place:
    def __init__(self) -> None:
        self.root = Root()
        self.effects = Told()
        self.metadata = self.effects.metadata
        self.commit_queue = CommitQueue(self.root, ImageFeed(self.effects.publisher))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[CommitQueue]:
        tasks = Tasks()
        tasks.spawn("commit_queue", self.commit_queue.keep())
        yield self.commit_queue
        await tasks.close()

    async def make(self, name: str, filler: str = "") -> str:
        """A topic whose id follows from its name; its answer says whether it was obeyed by then."""
        topic_id = _id_of(name)

        def decide(image: ClusterImage) -> Decision[str]:
            if topic_id in image.topics:
                raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
            return Decision((TopicCreated(topic_id, name, (row(),), {"x": filler}),), name)

        answer = await self.commit_queue.decide(decide)
        assert topic_id in self.metadata.image.topics, "answered before it was obeyed"
        return answer


async def test_what_waits_together_is_committed_together_each_on_what_came_before() -> None:
    """Ten clients: two commits, not ten; of two that want one name, one gets it."""
    place = Place()
    async with place.open():
        names = ["a", "b", "c", "a", *map(str, range(6))]
        ended = await asyncio.gather(*map(place.make, names), return_exceptions=True)
    assert sum(isinstance(each, ApiError) for each in ended) == 1
    assert isinstance(ended[3], ApiError) and ended[3].code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(place.root.commits) == 1
    assert len(place.root.at.image.topics) == 9


async def test_a_commit_takes_no_more_than_the_root_has_room_for() -> None:
    """What does not fit beside the others is decided anew with the next commit."""
    place = Place()
    async with place.open():
        filler = "x" * (COMMIT_BYTES_MAX // 3)
        await asyncio.gather(*(place.make(f"t{at}", filler) for at in range(7)))
    assert [len(records) for records in place.root.commits] == [2, 2, 2, 1]


async def test_a_thousand_refusals_among_many_topics_leave_the_loop_to_others() -> None:
    """Each decider may look at every topic: 1 000 at once took 1.3 s of the loop among 5 000 topics."""
    place = Place()
    made = [TopicCreated(_id_of(f"t{at}"), f"t{at}", (row(),), {}) for at in range(5_000)]
    place.root.at = ImageAt(2, place.root.at.image.with_records(made))
    place.commit_queue._feed.take(place.root.at)
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    asking = [asyncio.ensure_future(place.make("t7")) for _ in range(1_000)]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(somebody_else())
    async with place.open():
        ended = await asyncio.gather(*asking, return_exceptions=True)
    other.cancel()
    assert all(isinstance(each, ApiError) for each in ended)
    assert turns > 200
    assert not place.root.commits


@pytest.mark.parametrize("rows", [10_000, -(1 << 31)])
async def test_many_large_topics_that_are_only_validated_leave_the_loop_to_others(rows: int) -> None:
    """Found by a penetration test: CreateTopics with `validate_only` of 20 topics of 10 000 partitions, a frame of 271
    bytes, took 0.2 s of the loop. A negative count may not buy time for later changes."""
    place = Place()
    counts = [rows] + [10_000] * 50
    began: list[int] = []
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def decide(_: ClusterImage) -> Decision[None]:
        began.append(turns)
        return Decision((), None)

    asking = [asyncio.ensure_future(place.commit_queue.decide(decide, count)) for count in counts]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(somebody_else())
    async with place.open():
        await asyncio.gather(*asking)
    other.cancel()
    assert len(set(began[1:])) == 50


async def test_a_refusal_that_rests_on_a_commit_that_failed_is_not_given() -> None:
    """The second creation would be told that the topic exists; nobody knows."""
    place = Place()
    place.root.fails = [Unsettled("no answer")]
    place.root.comes_true = False
    async with place.open():
        ended = await asyncio.gather(place.make("a"), place.make("a"), return_exceptions=True)
        assert [type(each) for each in ended] == [Unsettled, Unsettled]
        assert not place.metadata.image.topics
        assert await place.make("a") == "a"
    assert place.root.settled == 1


@pytest.mark.parametrize("comes_true", [True, False])
async def test_what_is_in_doubt_is_settled_before_anything_else_and_without_being_asked(comes_true: bool) -> None:
    """Its effects come with the image that tells of it, or never."""
    place = Place()
    place.root.fails = [Unsettled("no answer"), Retryable("away")]
    place.root.comes_true = comes_true
    async with place.open():
        with pytest.raises(Unsettled):
            await place.make("a")
        assert not place.effects.roles
        with pytest.raises(Retryable, match="away"):
            await place.make("b")
        assert len(place.root.commits) == 1, "decided while a change was in doubt"
        await asyncio.sleep(10.0)
        assert (place.metadata.topic_named("a") is not None) == comes_true
        assert place.root.settled == 2


async def test_what_is_in_doubt_comes_true_when_it_is_read_and_only_once() -> None:
    """A poll may see it before the office could settle; nothing of it is begun twice."""
    place = Place()
    place.root.fails = [Unsettled("no answer")]
    async with place.open() as commit_queue:
        with pytest.raises(Unsettled):
            await place.make("a")
        assert commit_queue._feed.take(place.root.at)
        assert list(place.effects.roles) == [_id_of("a")] and place.effects.calls == ["lead"]
        with pytest.raises(ApiError):
            await place.make("a")
        assert place.root.settled == 1 and place.effects.calls == ["lead"]


async def test_a_change_that_does_not_fit_leaves_no_doubt() -> None:
    """It was refused before anything was written."""
    place = Place()
    place.root.fails = [CommitTooLarge("9000 bytes")]
    async with place.open() as commit_queue:
        with pytest.raises(CommitTooLarge):
            await commit_queue.decide(lambda _: Decision((ConfigsSet({}, topic_id="t"),), None))
        await asyncio.sleep(60.0)
    assert place.root.settled == 0


async def test_who_lost_the_controller_epoch_decides_nothing_more() -> None:
    """And that is all: what this broker leads goes on (R1). Who waited is told, in Kafka's code."""
    place = Place()
    async with place.open():
        await place.make("a")
        place.root.fails = [Fenced("epoch 2")]
        first = asyncio.ensure_future(place.make("b"))
        await asyncio.sleep(0.5)
        ended = await asyncio.gather(first, place.make("c"), place.make("d"), return_exceptions=True)
        for refused in ended:
            assert isinstance(refused, ApiError) and code_of(refused) is ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError, match="not the correct controller"):
            await place.make("e")
        await asyncio.sleep(60.0)
    assert len(place.root.commits) == 2 and place.root.settled == 0
    assert place.effects.calls == ["lead"] and place.metadata.topic_named("a") is not None


async def test_a_root_that_is_gone_is_an_outage_not_a_rival() -> None:
    """A directory that was unmounted comes back."""
    place = Place()
    place.root.fails = [RootVanished("gone")]
    async with place.open():
        with pytest.raises(RootVanished):
            await place.make("a")
        assert await place.make("b") == "b"


async def test_who_waits_no_longer_takes_back_what_was_not_begun() -> None:
    """And leaves alone what was: it may be committed already."""
    place = Place()
    async with place.open():
        begun = asyncio.ensure_future(place.make("a"))
        await asyncio.sleep(0.5)
        waiting = asyncio.ensure_future(place.make("b"))
        await asyncio.sleep(0)
        begun.cancel()
        waiting.cancel()
        await place.make("c")
    assert {topic.name for topic in place.metadata.image.topics.values()} == {"a", "c"}


async def test_a_bug_in_one_change_ends_that_change() -> None:
    """It is told, by whoever keeps the office running; the next change is not decided by it again and again."""

    def broken(image: ClusterImage) -> Decision[None]:
        raise KeyError("a bug")

    place = Place()
    reported: list[str] = []

    async def kept() -> None:
        await supervise(
            "commit_queue",
            place.commit_queue.keep,
            SeededRng(1),
            lambda name, failure: reported.append(repr(failure)),
        )

    tasks = Tasks()
    tasks.spawn("commit_queue", kept())
    ended = await asyncio.gather(
        place.make("a"), place.commit_queue.decide(broken), place.make("b"), return_exceptions=True
    )
    assert isinstance(ended[0], Retryable) and isinstance(ended[1], Retryable)
    assert ended[2] == "b" and {topic.name for topic in place.metadata.image.topics.values()} == {"b"}
    assert reported == ["KeyError('a bug')"]
    await tasks.close()


async def test_who_gave_up_leaves_room_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that come back would be refused because of their own requests of before."""
    monkeypatch.setattr(office_module, "QUEUE_MAX", 3)
    place = Place()
    for _ in range(3):
        waiting = [asyncio.ensure_future(place.make(str(at))) for at in range(3)]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    waiting = [asyncio.ensure_future(place.make(str(at))) for at in range(3)]
    async with place.open():
        assert await asyncio.gather(*waiting) == ["0", "1", "2"]


async def test_the_queue_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above it, whoever asks is told to come back; nobody's memory is the limit."""
    monkeypatch.setattr(office_module, "QUEUE_MAX", 3)
    place = Place()
    waiting = [asyncio.ensure_future(place.make(str(at))) for at in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Retryable, match="try again"):
        await place.make("one more")
    async with place.open():
        assert await asyncio.gather(*waiting) == ["0", "1", "2"]


async def test_nobody_waits_for_ever() -> None:
    """Not for a turn that does not come, nor for the end of what was begun."""
    place = Place()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(Retryable):
        await place.make("never begun")

    async def hangs(records: Sequence[MetadataRecord]) -> ImageAt:
        await asyncio.sleep(3600.0)
        raise AssertionError("cancelled before")

    place.root.commit = hangs  # type: ignore[method-assign]
    async with place.open():
        with pytest.raises(Retryable):
            await place.make("never done")
    assert loop.time() - began_s < 600.0


async def test_a_change_that_outlives_its_controller_epoch_does_not_end_the_next_one() -> None:
    """It is under way when the epoch is lost, and the same process claims the next: the fence it meets at last is that
    of its own epoch. The process went on as the controller, and decided nothing until somebody else claimed."""
    place = Place()
    async with place.open() as commit_queue:
        place.root.fails.append(Fenced("controller epoch 1 is over"))
        late = asyncio.ensure_future(place.make("late"))
        await asyncio.sleep(0.5)
        commit_queue.renounce()
        place.root.epoch = 2
        commit_queue.activate(lambda: False)
        with pytest.raises(ApiError) as refused:
            await late
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert await place.make("next") == "next"


async def test_what_was_decided_in_one_controller_epoch_is_not_committed_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deciding takes turns: another controller may have decided between the epoch that is lost and the next one."""
    monkeypatch.setattr(office_module, "_TOPICS_PER_TURN", 1)
    place = Place()
    async with place.open() as commit_queue:

        def decide(image: ClusterImage) -> Decision[None]:
            commit_queue.renounce()
            place.root.epoch = 2
            commit_queue.activate(lambda: False)
            return Decision((TopicCreated(_id_of("old"), "old", (row(),), {}),), None)

        with pytest.raises(ApiError) as refused:
            await commit_queue.decide(decide)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER and not place.root.commits
        assert await place.make("next") == "next"
