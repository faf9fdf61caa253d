"""What a follower asks of one leader, and that nobody keeps another from being asked for (R3, KIP-227)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.error_codes import ErrorCode
from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import FetchSessionHandler, Key, Limits, key_of
from broker.replication.fetcher import Fetcher
from broker.replication.follower import FetchPosition
from broker.replication.replication_quota import ReplicationQuota, ThrottledReplicas
from broker.wire.messages import FetchRequest, FetchResponse, FetchResponsePartition, FetchResponseTopic
from logformat.record_batch import CorruptBatch
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.scenario import by

TOPIC = UUID(int=7)
LIMITS = Limits(500, 1 << 20, 1 << 16)
A, B = key_of(TOPIC, 0), key_of(TOPIC, 1)


def at(offset: int, epoch: int = 3) -> FetchPosition:
    return FetchPosition(offset, -1, epoch)


def named(request: FetchRequest) -> dict[int, int]:
    """Offsets asked for, by partition."""
    return {part.partition: part.fetch_offset for topic in request.topics for part in topic.partitions}


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def question_of(asking: FetchSessionHandler, wanted: dict[Key, FetchPosition], broker_epoch: int = 50) -> FetchRequest:
    """The next one, when exactly `wanted` is."""
    for key in asking.sent.keys() - wanted.keys():
        asking.want(key, None)
    for key, position in wanted.items():
        asking.want(key, position)
    return asking.next_request(2, broker_epoch, "", LIMITS)


def test_a_question_names_what_changed_since_the_last() -> None:
    """5 000 idle partitions cost nothing; the first question, and the one after a failure, names all of them."""
    asking = FetchSessionHandler()
    first = question_of(asking, {A: at(1), B: at(2)})
    assert (first.session_id, first.session_epoch, named(first), first.min_bytes) == (0, 0, {0: 1, 1: 2}, 0)
    assert first.replica_state is not None and first.replica_state.replica_epoch == 50
    assert asking.answered(FetchResponse(session_id=9))
    second = question_of(asking, {A: at(5), B: at(2)})
    assert (second.session_id, second.session_epoch, named(second), second.min_bytes) == (9, 1, {0: 5}, 1)
    assert asking.answered(FetchResponse(session_id=9))
    third = question_of(asking, {A: at(5)})
    assert (third.session_epoch, named(third), forgotten(third)) == (2, {}, [1])
    assert asking.sent == {A: at(5)}
    assert not asking.answered(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    again = question_of(asking, {A: at(5), B: at(2)})
    assert (again.session_id, again.session_epoch, named(again)) == (0, 0, {0: 5, 1: 2})
    assert asking.answered(FetchResponse(session_id=0)), "the leader has no room for a session"
    full = question_of(asking, {A: at(6), B: at(2)})
    assert (full.session_epoch, named(full), full.min_bytes) == (0, {0: 6, 1: 2}, 1)


def test_another_session_of_this_broker_names_everything_anew() -> None:
    """Its leader forgot what it reported in the last one, and does not look at partitions in which nothing moves: a
    replica of an idle one would never be in sync again (simulated seed 20 of several brokers)."""
    asking = FetchSessionHandler()
    question_of(asking, {A: at(1), B: at(2)})
    assert asking.answered(FetchResponse(session_id=9))
    same = question_of(asking, {A: at(1), B: at(2)})
    assert (same.session_id, named(same)) == (9, {})
    assert asking.answered(FetchResponse(session_id=9))
    anew = question_of(asking, {A: at(1), B: at(2)}, 51)
    assert (anew.session_id, anew.session_epoch, named(anew), anew.min_bytes) == (0, 0, {0: 1, 1: 2}, 0)


class EveryTime:
    """What a question names, by going through all that is wanted: the rule that `FetchSessionHandler` keeps without."""

    def __init__(self) -> None:
        self.sent: dict[Key, FetchPosition] = {}
        self.anew: set[Key] = set()
        self.is_full = True
        self.broker_epoch = -1

    def next_request(self, wanted: dict[Key, FetchPosition], broker_epoch: int) -> tuple[dict[int, int], set[int]]:
        if self.broker_epoch != broker_epoch:
            self.broker_epoch = broker_epoch
            self.is_full, self.sent = True, {}
        named = {key: at for key, at in wanted.items() if self.is_full or key in self.anew or self.sent.get(key) != at}
        gone = set() if self.is_full else self.sent.keys() - wanted.keys()
        self.sent = dict(wanted)
        self.anew.clear()
        return {index: at.offset for (_, index), at in named.items()}, {index for _, index in gone}


_MOVES = st.one_of(
    st.tuples(st.just("want"), st.integers(0, 4), st.none() | st.integers(0, 2)),
    st.tuples(st.just("anew"), st.integers(0, 4), st.none()),
    st.tuples(st.sampled_from(["answered", "unheard", "refused", "no room", "session"]), st.just(0), st.none()),
)


@given(st.lists(_MOVES, max_size=60))
def test_every_question_is_that_of_looking_at_all_that_is_wanted(moves: list[tuple[str, int, int | None]]) -> None:
    """Whatever came, went, moved and came back in between, was answered, or not."""
    asking, by_looking, wanted, broker_epoch = FetchSessionHandler(), EveryTime(), dict[Key, FetchPosition](), 50
    for move, index, offset in moves:
        if move == "want":
            asking.want(key_of(TOPIC, index), None if offset is None else at(offset))
            wanted.pop(key_of(TOPIC, index), None)
            if offset is not None:
                wanted[key_of(TOPIC, index)] = at(offset)
            continue
        if move == "anew":
            asking.resend(key_of(TOPIC, index))
            by_looking.anew.add(key_of(TOPIC, index))
            continue
        broker_epoch += move == "session"
        asked = asking.next_request(2, broker_epoch, "", LIMITS)
        assert (named(asked), set(forgotten(asked))) == by_looking.next_request(wanted, broker_epoch)
        assert asking.sent == by_looking.sent == wanted and asking.wants_any == bool(wanted)
        if move == "unheard":
            asking.reset()
        elif move == "refused":
            assert not asking.answered(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        else:
            is_held = asked.session_id != 0 or move != "no room"
            assert asking.answered(FetchResponse(session_id=9 if is_held else 0))
        by_looking.is_full = move in ("unheard", "refused") or (move == "no room" and by_looking.is_full)
        if move in ("unheard", "refused"):
            by_looking.sent = {}


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

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        if self.broken:
            raise CorruptBatch("not what was sent")
        self.offset = asked.offset + 1
        return True

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        self.refusals.append(answer.error_code)
        return False

    @property
    def is_flushed(self) -> bool:
        return self.flushing.is_set()

    async def wait_flushed(self) -> None:
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
        self.held |= {key_of(TOPIC, index): offset for index, offset in named(request).items()}
        for index in forgotten(request):
            del self.held[key_of(TOPIC, index)]
        parts = [FetchResponsePartition(partition_index=key[1], error_code=self.says(key)) for key in self.held]
        return FetchResponse(session_id=4, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)])


def fetching(
    scenario: Callable[[Leader, Fetcher], Awaitable[None]],
    leader: Leader | None = None,
    rate: ReplicationQuota | None = None,
    in_sync: Collection[Key] = (),
) -> None:
    async def run(leader: Leader) -> None:
        throttled = ThrottledReplicas(rate or ReplicationQuota(), in_sync.__contains__)
        lane = FetchLane(in_sync.__contains__, {}, is_behind=False)
        fetcher = Fetcher(1, leader, lambda: (2, 50, ""), LIMITS, throttled, lane)
        keeping = asyncio.ensure_future(fetcher.run())
        await scenario(leader, fetcher)
        assert not keeping.done()
        keeping.cancel()

    run_fast(run(leader or Leader()), timeout_s=HOUR_S)


class Terse(Leader):
    """Answers what a question names, as a leader does in whose log nothing moves."""

    async def __call__(self, request: FetchRequest) -> FetchResponse:
        answer = await super().__call__(request)
        parts = [part for part in answer.responses[0].partitions if part.partition_index in named(request)]
        return FetchResponse(session_id=4, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)])


class CutOnce(Copied):
    """Cut by the first answer, to where it ends: it asks for the same again."""

    answers = 0

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        self.answers += 1
        self.is_waiting = self.answers == 1
        return False


@by(fetching, Terse())
async def test_who_is_cut_is_named_again_at_the_same_place(leader: Leader, fetcher: Fetcher, /) -> None:
    """Its leader told it all, and tells nothing twice: a replica of an idle partition stayed as it was, out of its
    in-sync set, where a cut was over before the next question (simulated seed 3 of several brokers)."""
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


class Idle(Copied):
    """Nothing comes for it: it stays where it is."""

    answers = 0

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        self.answers += 1
        return True


@by(fetching, Terse())
async def test_who_follows_again_at_the_same_place_is_answered(leader: Leader, fetcher: Fetcher, /) -> None:
    """Regression: a role that ended and began again between two questions was not named, because its place was known.
    No answer told the new role that its log is its leader's, so the replica of an idle partition stayed out of the
    in-sync set."""
    before, after, other = Idle(5), Idle(5), Copied(10)
    fetcher.follow(A, before)
    fetcher.follow(B, other)
    while not before.answers:
        await asyncio.sleep(0.01)
    fetcher.leave(A, before)
    fetcher.follow(A, after)
    await asyncio.sleep(1.0)
    assert after.answers


@by(fetching)
async def test_nothing_is_asked_before_all_that_came_is_flushed(leader: Leader, fetcher: Fetcher, /) -> None:
    """The question's offsets are the flushed ends: one replica's slow disk holds the next question back."""
    first, second = Copied(), Copied(10)
    second.flushing.clear()
    fetcher.follow(A, first)
    fetcher.follow(B, second)
    await asyncio.sleep(5.0)
    assert len(leader.questions) == 1
    second.flushing.set()
    await asyncio.sleep(0.05)
    assert named(leader.questions[1]) == {0: 1, 1: 11}


@by(fetching)
async def test_who_is_refused_or_cannot_take_it_waits_alone(leader: Leader, fetcher: Fetcher, /) -> None:
    """It is asked for again a little later, neither in a busy loop nor never; the other goes on."""
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


@by(fetching)
async def test_a_broker_that_is_away_is_asked_now_and_then_and_then_from_the_start(
    leader: Leader, fetcher: Fetcher, /
) -> None:
    """Its session is gone with its process."""
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


@by(fetching)
async def test_what_is_cut_or_left_is_not_asked_for(leader: Leader, fetcher: Fetcher, /) -> None:
    """And what comes for it all the same is dropped."""
    kept, cut, left = Copied(), Copied(10), Copied(20)
    fetcher.follow(A, kept)
    fetcher.follow(B, cut)
    fetcher.follow(key_of(TOPIC, 2), left)
    await asyncio.sleep(0.5)
    cut.is_waiting = True
    fetcher.leave(key_of(TOPIC, 2), left)
    gone = left.offset
    await asyncio.sleep(0.5)
    assert left.offset == gone and set(leader.held) == {A}
    cut.is_waiting = False
    fetcher.wake(B)
    at_cut = cut.offset
    await asyncio.sleep(0.5)
    assert cut.offset > at_cut and set(leader.held) == {A, B}


class Counted(Copied):
    """In whose leader's log nothing moves, and which counts who looks."""

    looks = 0

    def next_fetch(self) -> FetchPosition | None:
        Counted.looks += 1
        return super().next_fetch()

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        return False


class Parking(Leader):
    """Answers the first question of a session by nothing, and the next ones by what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[int] = []

    async def __call__(self, request: FetchRequest) -> FetchResponse:
        await asyncio.sleep(0.01)
        self.questions.append(request)
        parts = [FetchResponsePartition(partition_index=index) for index in self.moved]
        return FetchResponse(session_id=4, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)])


@by(fetching, Parking())
async def test_a_question_looks_at_what_changed_and_not_at_what_is_followed(
    leader: Leader, fetcher: Fetcher, /
) -> None:
    """Of 5 000 replicas, each was looked at for each question: 7 ms of the loop, for one that moved as for none."""
    count = 5_000
    assert isinstance(leader, Parking)
    copies = [Counted() for _ in range(count)]
    for index, copy in enumerate(copies):
        fetcher.follow(key_of(TOPIC, index), copy)
    await asyncio.sleep(0.5)
    assert len(named(leader.questions[0])) == count
    Counted.looks, before = 0, len(leader.questions)
    await asyncio.sleep(1.0)
    assert len(leader.questions) > before + 50 and Counted.looks == 0, "idle"
    copies[7].offset = 3
    fetcher.wake(key_of(TOPIC, 7))
    before = len(leader.questions)
    await asyncio.sleep(0.1)
    assert [named(asked) for asked in leader.questions[before:] if asked.topics] == [{7: 3}]
    assert Counted.looks == 1, "one of 5 000 moved"
    Counted.looks, before = 0, len(leader.questions)
    leader.moved = [8]
    await asyncio.sleep(1.0)
    rounds = len(leader.questions) - before
    assert rounds > 50 and Counted.looks <= 2 * (rounds + 1), "one of 5 000 is answered in each round"


@by(fetching)
async def test_who_waits_its_time_is_asked_for_again_though_all_do(leader: Leader, fetcher: Fetcher, /) -> None:
    """Nothing else moves that could have the next question asked; who left and came back is not delayed."""
    leader.says = lambda _: ErrorCode.UNKNOWN_LEADER_EPOCH
    first, second = Copied(), Copied(10)
    fetcher.follow(A, first)
    fetcher.follow(B, second)
    await asyncio.sleep(1.0)
    assert 3 <= len(first.refusals) <= 12 and 3 <= len(second.refusals) <= 12
    leader.says = lambda _: 0
    fetcher.leave(B, second)
    fetcher.follow(B, second)
    await asyncio.sleep(0.5)
    assert first.offset > 5 and second.offset > 15


class Log(Leader):
    """Has so much for each partition, a byte an offset, and gives as much as a question lets, as a leader does."""

    def __init__(self, ends: dict[int, int]) -> None:
        super().__init__()
        self.ends = ends
        self.given: list[tuple[float, int, int]] = []  # when, partition, bytes

    async def __call__(self, request: FetchRequest) -> FetchResponse:
        loop = asyncio.get_running_loop()
        self.questions.append(request)
        if request.session_epoch == 0:
            self.held.clear()
        self.held |= {key_of(TOPIC, index): offset for index, offset in named(request).items()}
        for index in forgotten(request):
            del self.held[key_of(TOPIC, index)]
        parts = self._parts(request)
        await asyncio.sleep(0.001 if parts or not request.min_bytes else request.max_wait_ms / 1000)
        self.given += [(loop.time(), part.partition_index, len(part.records)) for part in parts]
        return FetchResponse(session_id=4, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)])

    def _parts(self, request: FetchRequest) -> list[FetchResponsePartition]:
        room, parts = request.max_bytes, []
        for (_, index), offset in self.held.items():
            size = min(self.ends[index] - offset, 1 << 16, room)
            if size > 0 or request.session_epoch == 0:
                room -= size
                parts.append(
                    FetchResponsePartition(partition_index=index, high_watermark=self.ends[index], records=bytes(size))
                )
        return parts


class Taking(Copied):
    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        self.offset = asked.offset + len(answer.records)
        return True


def test_a_throttled_copy_comes_at_its_rate_and_holds_nobody_back() -> None:
    """1 MB/s for what is out of sync and named; the other is there at once."""
    leader, size, limit = Log({0: 8_000_000, 1: 8_000_000}), 8_000_000, 1_000_000

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        assert isinstance(leader, Log)
        throttled, free = Taking(), Taking()
        fetcher.follow(A, throttled, is_throttled=True)
        fetcher.follow(B, free)
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)
        assert free.offset == size and throttled.offset < 2 * limit
        while throttled.offset < size:
            await asyncio.sleep(0.05)
            took_s = asyncio.get_running_loop().time() - began_s
            assert throttled.offset <= limit * (took_s + 1) + (1 << 16), "never more than the window lets"
        assert 7 <= took_s <= 9, took_s
        assert len(leader.questions) < 2_000, "no busy loop while it is held"

    fetching(scenario, leader, ReplicationQuota(limit))


def test_who_is_in_sync_or_caught_up_is_not_throttled() -> None:
    """It would fall out of the in-sync set by it; Kafka asks what the leader's high watermark is, we the image too."""
    leader = Log({0: 3_000_000, 1: 3_000_000, 2: 3_000_000})

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        assert isinstance(leader, Log)
        held, member, caught_up = Taking(), Taking(), Taking(3_000_000)
        for key, copy in ((A, held), (B, member), (key_of(TOPIC, 2), caught_up)):
            fetcher.follow(key, copy, is_throttled=True)
        await asyncio.sleep(0.5)
        for _ in range(10):  # as its leader's log grows
            leader.ends[2] += 10
            await asyncio.sleep(0.6)
            assert caught_up.offset == leader.ends[2] and member.offset == 3_000_000
        assert held.offset < 1_000_000

    fetching(scenario, leader, ReplicationQuota(100_000), in_sync=[B])


def test_a_throttle_that_is_set_or_lifted_counts_at_once() -> None:
    """Of the rate, and of the list."""
    rate = ReplicationQuota()

    async def scenario(leader: Leader, fetcher: Fetcher) -> None:
        copy = Taking()
        fetcher.follow(A, copy)
        await asyncio.sleep(0.01)
        rate.limit = 1000
        fetcher.throttle(A, is_throttled=True)
        await asyncio.sleep(0.1)
        before = copy.offset
        await asyncio.sleep(3.0)
        assert copy.offset == before
        rate.limit = 5_000_000
        fetcher.rate_changed()
        await asyncio.sleep(0.5)
        assert before < copy.offset
        rate.limit = 1000
        await asyncio.sleep(0.5)
        before = copy.offset
        await asyncio.sleep(3.0)
        assert copy.offset == before
        fetcher.throttle(A, is_throttled=False)
        await asyncio.sleep(0.5)
        assert copy.offset > before + 10_000_000

    fetching(scenario, Log({0: 1 << 40}), rate)
