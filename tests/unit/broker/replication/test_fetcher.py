"""What a follower asks of one leader, and that nobody keeps another from being asked for (R3, KIP-227)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.replication.asking import Asking, Key, Limits
from broker.replication.fetcher import Fetcher
from broker.replication.follower import FetchPosition
from broker.wire.messages import FetchRequest, FetchResponse, FetchResponsePartition, FetchResponseTopic
from logformat.record_batch import CorruptBatch
from tests.support.broker_kit import play

TOPIC = UUID(int=7)
LIMITS = Limits(500, 1 << 20, 1 << 16)
A, B = (TOPIC, 0), (TOPIC, 1)


def at(offset: int, epoch: int = 3) -> FetchPosition:
    return FetchPosition(offset, -1, epoch)


def named(request: FetchRequest) -> dict[int, int]:
    """Offsets asked for, by partition."""
    return {part.partition: part.fetch_offset for topic in request.topics for part in topic.partitions}


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def test_a_question_names_what_changed_since_the_last() -> None:
    """5 000 idle partitions cost nothing; the first question, and the one after a failure, names all of them."""
    asking = Asking()
    first = asking.question({A: at(1), B: at(2)}, 2, 50, LIMITS)
    assert (first.session_id, first.session_epoch, named(first), first.min_bytes) == (0, 0, {0: 1, 1: 2}, 0)
    assert first.replica_state is not None and first.replica_state.replica_epoch == 50
    assert asking.answered(FetchResponse(session_id=9))
    second = asking.question({A: at(5), B: at(2)}, 2, 50, LIMITS)
    assert (second.session_id, second.session_epoch, named(second), second.min_bytes) == (9, 1, {0: 5}, 1)
    assert asking.answered(FetchResponse(session_id=9))
    third = asking.question({A: at(5)}, 2, 50, LIMITS)
    assert (third.session_epoch, named(third), forgotten(third)) == (2, {}, [1])
    assert asking.told == {A: at(5)}
    assert not asking.answered(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    again = asking.question({A: at(5), B: at(2)}, 2, 50, LIMITS)
    assert (again.session_id, again.session_epoch, named(again)) == (0, 0, {0: 5, 1: 2})
    assert asking.answered(FetchResponse(session_id=0)), "the leader has no room for a session"
    full = asking.question({A: at(6), B: at(2)}, 2, 50, LIMITS)
    assert (full.session_epoch, named(full), full.min_bytes) == (0, {0: 6, 1: 2}, 1)


def test_another_session_of_this_broker_names_everything_anew() -> None:
    """Its leader forgot what it reported in the last one, and does not look at partitions in which nothing moves: a
    replica of an idle one would never be in sync again (simulated seed 20 of several brokers)."""
    asking = Asking()
    asking.question({A: at(1), B: at(2)}, 2, 50, LIMITS)
    assert asking.answered(FetchResponse(session_id=9))
    same = asking.question({A: at(1), B: at(2)}, 2, 50, LIMITS)
    assert (same.session_id, named(same)) == (9, {})
    assert asking.answered(FetchResponse(session_id=9))
    anew = asking.question({A: at(1), B: at(2)}, 2, 51, LIMITS)
    assert (anew.session_id, anew.session_epoch, named(anew), anew.min_bytes) == (0, 0, {0: 1, 1: 2}, 0)


class Copied:
    """A replica that takes a record an answer, and remembers."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.broken = self.is_waiting = False
        self.refusals: list[int] = []
        self.flushing = asyncio.Event()
        self.flushing.set()

    def next_fetch(self) -> FetchPosition | None:
        return None if self.is_waiting else at(self.offset)

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        if self.broken:
            raise CorruptBatch("not what was sent")
        self.offset = asked.offset + 1
        return True

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        self.refusals.append(answer.error_code)
        return False

    async def settled(self) -> None:
        await self.flushing.wait()


class Leader:
    """Answers each question as `says`, and remembers it."""

    def __init__(self) -> None:
        self.questions: list[FetchRequest] = []
        self.says: Callable[[Key], int] = lambda _: 0
        self.held: dict[Key, int] = {}
        self.is_away = False

    async def __call__(self, request: FetchRequest) -> FetchResponse:
        await asyncio.sleep(0.01)
        self.questions.append(request)
        if self.is_away:
            raise ConnectionError("nobody listens there")
        if request.session_epoch == 0:
            self.held.clear()
        self.held |= {(TOPIC, index): offset for index, offset in named(request).items()}
        for index in forgotten(request):
            del self.held[TOPIC, index]
        parts = [FetchResponsePartition(partition_index=key[1], error_code=self.says(key)) for key in self.held]
        return FetchResponse(session_id=4, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)])


def fetching(scenario: Callable[[Leader, Fetcher], Awaitable[None]], leader: Leader | None = None) -> None:
    async def run(leader: Leader) -> None:
        fetcher = Fetcher(1, leader, lambda: (2, 50), LIMITS)
        keeping = asyncio.ensure_future(fetcher.keep())
        await scenario(leader, fetcher)
        assert not keeping.done()
        keeping.cancel()

    play(run(leader or Leader()))


class Terse(Leader):
    """Answers what a question names, as a leader does in whose log nothing moves."""

    async def __call__(self, request: FetchRequest) -> FetchResponse:
        answer = await super().__call__(request)
        parts = [part for part in answer.responses[0].partitions if part.partition_index in named(request)]
        return FetchResponse(session_id=4, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)])


class CutOnce(Copied):
    """Cut by the first answer, to where it ends: it asks for the same again."""

    answers = 0

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        self.answers += 1
        self.is_waiting = self.answers == 1
        return False


def test_who_is_cut_is_named_again_at_the_same_place() -> None:
    """Its leader told it all, and tells nothing twice: a replica of an idle partition stayed as it was, out of its
    in-sync set, where a cut was over before the next question (simulated seed 3 of several brokers)."""

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        cut, slow = CutOnce(5), Copied(10)
        slow.flushing.clear()
        fetcher.follow(A, cut)
        fetcher.follow(B, slow)
        while not cut.is_waiting:
            await asyncio.sleep(0.01)
        cut.is_waiting = False
        slow.flushing.set()
        await asyncio.sleep(1.0)
        assert named(leader.questions[1]) == {0: 5, 1: 11} and cut.answers >= 2

    fetching(scenario, Terse())


def test_nothing_is_asked_before_all_that_came_is_flushed() -> None:
    """The question's offsets are the flushed ends: one replica's slow disk holds the next question back."""

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        first, second = Copied(), Copied(10)
        second.flushing.clear()
        fetcher.follow(A, first)
        fetcher.follow(B, second)
        await asyncio.sleep(5.0)
        assert len(leader.questions) == 1
        second.flushing.set()
        await asyncio.sleep(0.05)
        assert named(leader.questions[1]) == {0: 1, 1: 11}

    fetching(scenario)


def test_who_is_refused_or_cannot_take_it_waits_alone() -> None:
    """It is asked for again a little later, neither in a busy loop nor never; the other goes on."""

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        good, bad = Copied(), Copied(10)
        fetcher.follow(A, good)
        fetcher.follow(B, bad)
        leader.says = lambda key: ErrorCode.UNKNOWN_LEADER_EPOCH if key == B else 0
        await asyncio.sleep(2.0)
        assert good.offset > 50 and bad.offset == 10 and 5 <= len(bad.refusals) <= 20
        leader.says = lambda _: 0
        bad.broken = True
        before = good.offset
        await asyncio.sleep(2.0)
        assert good.offset > before + 50 and bad.offset == 10
        bad.broken = False
        await asyncio.sleep(2.0)
        assert bad.offset > 20

    fetching(scenario)


def test_a_broker_that_is_away_is_asked_now_and_then_and_then_from_the_start() -> None:
    """Its session is gone with its process."""

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        copied = Copied()
        fetcher.follow(A, copied)
        await asyncio.sleep(0.2)
        leader.is_away = True
        questions = len(leader.questions)
        await asyncio.sleep(10.0)
        assert 8 <= len(leader.questions) - questions <= 20
        leader.is_away = False
        before = copied.offset
        await asyncio.sleep(3.0)
        assert copied.offset > before + 50
        assert next(one for one in leader.questions[questions + 5 :] if one.session_epoch == 0)

    fetching(scenario)


def test_what_is_cut_or_left_is_not_asked_for() -> None:
    """And what comes for it all the same is dropped."""

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        kept, cut, left = Copied(), Copied(10), Copied(20)
        fetcher.follow(A, kept)
        fetcher.follow(B, cut)
        fetcher.follow((TOPIC, 2), left)
        await asyncio.sleep(0.5)
        cut.is_waiting = True
        fetcher.leave((TOPIC, 2), left)
        gone = left.offset
        await asyncio.sleep(0.5)
        assert left.offset == gone and set(leader.held) == {A}
        cut.is_waiting = False
        fetcher.wake()
        at_cut = cut.offset
        await asyncio.sleep(0.5)
        assert cut.offset > at_cut and set(leader.held) == {A, B}

    fetching(scenario)
