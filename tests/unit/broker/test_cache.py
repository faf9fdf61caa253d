"""The session machine by itself: ids, epochs, eviction, bounds, and who is told when something moves."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.fetch_sessions.cache import EVICTION_MS_MIN, FetchSessions, Full, Incremental, wanted_by
from broker.fetch_sessions.session import TARGET_BYTES, FetchSession, Target, next_epoch
from broker.wire.messages import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
)
from seams.rng import SeededRng

INT32_MAX = (1 << 31) - 1


def request(
    topic: str = "t", partitions: int = 1, *, session: int = 0, epoch: int = 0, forget: tuple[int, ...] = ()
) -> FetchRequest:
    wanted = [FetchRequestPartition(partition=index) for index in range(partitions)]
    return FetchRequest(
        session_id=session,
        session_epoch=epoch,
        topics=[FetchRequestTopic(topic=topic, partitions=wanted)] if wanted else [],
        forgotten_topics_data=[FetchRequestForgottenTopic(topic=topic, partitions=list(forget))] if forget else [],
    )


class Cache:
    """Sessions on a clock of the test's."""

    def __init__(self, slots: int = 1000, **bounds: int) -> None:
        self.now_ms = 0
        self.sessions = FetchSessions(SeededRng(1), slots, **bounds)

    def begin(self, asked: FetchRequest, version: int = 12) -> Full | Incremental | ErrorCode:
        return self.sessions.begin(asked, version, {}, self.now_ms)

    def open(self, partitions: int = 1, topic: str = "t", session: int = 0) -> int:
        full = self.begin(request(topic, partitions, session=session))
        assert isinstance(full, Full)
        assert full.wants_session
        return self.sessions.create(full.targets, 12, self.now_ms)

    def use(self, session: int, epoch: int) -> FetchSession | ErrorCode:
        begun = self.begin(request(partitions=0, session=session, epoch=epoch))
        assert not isinstance(begun, Full)
        return begun.session if isinstance(begun, Incremental) else begun

    def has(self, session: int) -> bool:
        return session in self.sessions._sessions


class Partition:
    """A source that counts who listens."""

    def __init__(self) -> None:
        self.readers: dict[Target, None] = {}
        self.hurried = 0

    def tell_once(self, reader: Target) -> None:
        self.readers[reader] = None

    def forget(self, reader: Target) -> None:
        self.readers.pop(reader, None)

    def hurry(self) -> None:
        self.hurried += 1

    def move(self) -> None:
        readers, self.readers = self.readers, {}
        for reader in readers:
            reader.changed()


def test_epochs_go_round() -> None:
    """The greatest is followed by 1 (0 would begin a session), the final one by itself."""
    assert [next_epoch(epoch) for epoch in (0, 1, INT32_MAX, -1)] == [1, 2, 1, -1]


def test_a_session_outlives_its_greatest_epoch() -> None:
    """2^31 − 1 fetches later the same session goes on with epoch 1."""
    cache = Cache()
    session_id = cache.open()
    session = cache.use(session_id, 1)
    assert isinstance(session, FetchSession)
    session.epoch = INT32_MAX
    assert cache.use(session_id, INT32_MAX) is session
    assert session.epoch == 1
    assert cache.use(session_id, 1) is session


def test_ids_are_positive_and_nobodys_else() -> None:
    cache = Cache()
    ids = [cache.open() for _ in range(500)]
    assert len(set(ids)) == 500
    assert all(0 < session_id <= INT32_MAX for session_id in ids)


def test_without_slots_there_are_no_sessions() -> None:
    """`max.incremental.fetch.session.cache.slots=0` turns sessions off."""
    cache = Cache(slots=0)
    assert cache.open() == 0
    assert len(cache.sessions) == 0


def test_young_sessions_are_safe_from_greater_ones() -> None:
    """For two minutes nobody's session is taken, however many partitions another one has."""
    cache = Cache(slots=2)
    first, second = cache.open(1), cache.open(2)
    cache.now_ms = EVICTION_MS_MIN
    assert cache.use(first, 1)
    assert cache.use(second, 1)
    assert cache.open(100) == 0
    assert cache.has(first)
    assert cache.has(second)


def test_an_unused_session_goes_first() -> None:
    """Longer than two minutes without a fetch: the next one that needs a slot takes it, even for less."""
    cache = Cache(slots=2)
    big, small = cache.open(100), cache.open(1)
    cache.now_ms = EVICTION_MS_MIN
    assert cache.use(small, 1)
    cache.now_ms += 1
    assert cache.open(1)
    assert not cache.has(big)
    assert cache.has(small)
    assert cache.sessions.evicted_count == 1
    assert cache.open(1) == 0, "the other is in use, and as big"


def test_an_old_session_makes_way_for_a_greater_one_only() -> None:
    """In use, but older than two minutes: the smallest goes, and only for one with more partitions."""
    cache = Cache(slots=3)
    sessions = {size: cache.open(size) for size in (5, 2, 9)}
    cache.now_ms = EVICTION_MS_MIN + 1
    for session in sessions.values():
        assert isinstance(cache.use(session, 1), FetchSession)
    assert cache.open(1) == 0
    assert cache.open(2) == 0
    assert cache.open(3)
    assert [cache.has(session) for session in sessions.values()] == [True, False, True]
    assert cache.open(4) == 0, "the new one is young, the next smallest is greater"
    assert cache.open(6)
    assert not cache.has(sessions[5])


def test_age_counts_as_of_the_last_use() -> None:
    """As in Kafka: a session last used when it was young is taken when it is unused, not before."""
    cache = Cache(slots=1)
    session = cache.open(1)
    cache.now_ms = EVICTION_MS_MIN
    assert cache.use(session, 1)
    cache.now_ms = 2 * EVICTION_MS_MIN
    assert cache.open(50) == 0
    cache.now_ms += 1
    assert cache.open(50)


def test_all_sessions_together_hold_a_bounded_number_of_partitions() -> None:
    """Slots bound sessions, bytes what is in them: a client that asks for too much is served without a session."""
    cache = Cache(bytes_max=10 * (TARGET_BYTES + 4))
    first = cache.open(6)
    assert first
    assert cache.open(5) == 0
    assert cache.open(4)
    assert cache.sessions.partitions == 10
    assert cache.use(first, 1)
    grown = cache.begin(request("u", 1, session=first, epoch=2))
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not cache.has(first)
    assert cache.sessions.partitions == 4
    assert cache.sessions.bytes == 4 * (TARGET_BYTES + 4)


def test_long_names_count_for_what_they_weigh() -> None:
    """A topic that cannot exist may have a name of 32 KiB: it is in the session all the same, and in the bound."""
    cache = Cache(bytes_max=100_000)
    assert cache.open(1, topic="x" * 32_000) == 0
    assert cache.open(1, topic="x" * 20_000)


def test_a_full_fetch_ends_the_session_it_names() -> None:
    """Whether it asks for another one or not; all that was held is given back."""
    for epoch in (0, -1):
        cache = Cache()
        session = cache.open(3)
        begun = cache.begin(request(session=session, epoch=epoch))
        assert isinstance(begun, Full)
        assert begun.wants_session == (epoch == 0)
        assert not cache.has(session)
        assert cache.sessions.bytes == 0


def test_a_session_forgets_down_to_nothing() -> None:
    """The last partition forgotten ends it; that fetch is a full one of what it names: nothing."""
    cache = Cache()
    session = cache.open(3)
    assert isinstance(cache.begin(request(partitions=0, session=session, epoch=1, forget=(0, 1))), Incremental)
    assert cache.sessions.bytes == TARGET_BYTES + 4
    over = cache.begin(request(partitions=0, session=session, epoch=2, forget=(2,)))
    assert isinstance(over, Full)
    assert not over.wants_session
    assert (len(cache.sessions), cache.sessions.bytes) == (0, 0)


@pytest.mark.parametrize("version", [12, 13])
def test_a_session_by_id_is_not_one_by_name(version: int) -> None:
    """FETCH_SESSION_TOPIC_ID_ERROR, and the session stays as it was."""
    cache = Cache()
    full = cache.begin(request(), version)
    assert isinstance(full, Full)
    session = cache.sessions.create(full.targets, version, 0)
    other = 25 - version
    asked = request(session=session, epoch=1)
    assert cache.begin(asked, other) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert isinstance(cache.begin(asked, version), Incremental)


def test_an_unknown_id_is_resolved_when_its_topic_comes() -> None:
    """A topic id that no topic had when it was asked for."""
    sessions = FetchSessions(SeededRng(1), 10)
    topic_id = UUID(int=5)
    asked = FetchRequest(session_epoch=0, topics=[FetchRequestTopic(topic_id=topic_id, partitions=[_part(0)])])
    full = sessions.begin(asked, 13, {}, 0)
    assert isinstance(full, Full)
    (target,) = full.targets.values()
    assert target.topic is None
    session = sessions.create(full.targets, 13, 0)
    sessions.begin(FetchRequest(session_id=session, session_epoch=1), 13, {topic_id: "late"}, 0)
    assert target.topic == "late"


def _part(index: int, **more: int) -> FetchRequestPartition:
    return FetchRequestPartition(partition=index, **more)


def test_of_a_partition_named_twice_the_last_counts() -> None:
    topic = FetchRequestTopic(topic="t", partitions=[_part(0, fetch_offset=1), _part(1), _part(0, fetch_offset=2)])
    found = list(wanted_by(FetchRequest(topics=[topic]), 12, {}).values())
    assert [(target.index, target.wanted.fetch_offset) for target in found] == [(0, 2), (1, 0)]


# ── who is told ──────────────────────────────────────────────────────────────────────────────────────────────────────


def quiet(cache: Cache, session_id: int, sources: list[Partition]) -> FetchSession:
    """A session whose partitions were all looked at and have nothing new."""
    session = cache.use(session_id, 1)
    assert isinstance(session, FetchSession)
    for target, source in zip(session.due_in_turn(), sources, strict=True):
        target.subscribe(source)
    session.due = {}
    return session


def test_only_what_moved_is_due() -> None:
    """A thousand quiet partitions cost nothing; one that moved is looked at once."""
    cache = Cache()
    sources = [Partition() for _ in range(1000)]
    session = quiet(cache, cache.open(1000), sources)
    assert session.due_in_turn() == []
    sources[7].move()
    sources[7].move()
    assert [target.index for target in session.due_in_turn()] == [7]
    assert not sources[7].readers, "told once"


def test_sessions_nobody_uses_any_more_cost_a_producer_one_call_each() -> None:
    """Their clients are gone: the first record tells each session, the next ones nobody."""
    cache = Cache()
    source = Partition()
    for _ in range(100):
        quiet(cache, cache.open(1), [source])
    assert len(source.readers) == 100
    source.move()
    assert len(source.readers) == 0


@pytest.mark.parametrize("how", ["final", "evicted", "forgotten", "outgrown"])
def test_a_session_that_ended_leaves_nothing_at_its_partitions(how: str) -> None:
    """However it ends."""
    cache = Cache(slots=1, bytes_max=20 * TARGET_BYTES)
    sources = [Partition() for _ in range(3)]
    session_id = cache.open(3)
    session = quiet(cache, session_id, sources)
    match how:
        case "final":
            cache.begin(request(session=session_id, epoch=-1))
        case "evicted":
            cache.now_ms = EVICTION_MS_MIN + 1
            assert cache.open(1)
        case "forgotten":
            cache.begin(request(partitions=0, session=session_id, epoch=2, forget=(0, 1, 2)))
        case "outgrown":
            cache.begin(request("u", 100, session=session_id, epoch=2))
    assert session.closed
    assert not any(source.readers for source in sources)
    for target in session.targets.values():
        target.subscribe(sources[0])
    assert not sources[0].readers, "nor comes back"


def test_whoever_waits_is_woken() -> None:
    """By what moves, by another request on the session, and by its end."""
    cache = Cache()
    source = Partition()
    session_id = cache.open(1)
    session = quiet(cache, session_id, [source])
    woken: list[str] = []
    session.park(lambda: woken.append("woken"))
    source.move()
    assert woken == ["woken"]
    assert cache.use(session_id, 2) is session
    assert len(woken) == 2
    cache.begin(request(session=session_id, epoch=-1))
    assert len(woken) == 3


def test_a_flush_is_awaited_while_a_request_waits() -> None:
    """Between two fetches appends may stay unsynced for a moment; the next fetch that waits asks for them."""
    cache = Cache()
    source = Partition()
    session = quiet(cache, cache.open(1), [source])
    (target,) = session.targets.values()
    assert not target.awaits_flush()
    assert source.hurried == 0
    session.park(lambda: None)
    assert source.hurried == 1
    assert target.awaits_flush()
    session.waiter = None
    session.park(lambda: None)
    assert source.hurried == 1, "nothing was put off meanwhile"


def test_after_an_error_the_partition_is_told_again() -> None:
    """Even if its offsets are what they were."""
    target = Target("t", UUID(int=0), _part(0))
    fine = FetchResponsePartition(high_watermark=5, log_start_offset=1)
    assert target.must_answer(fine)
    target.answered(fine)
    assert not target.must_answer(fine)
    wrong = FetchResponsePartition(high_watermark=5, log_start_offset=1, error_code=6)
    assert target.must_answer(wrong)
    target.answered(wrong)
    assert target.must_answer(fine)


def test_a_replica_that_diverged_is_told_again() -> None:
    """It takes nothing but where to cut, and may be cut to the very end of its leader's log, where nothing is new."""
    target = Target("t", UUID(int=0), _part(0))
    parted = FetchResponsePartition(high_watermark=5, log_start_offset=1)
    parted.diverging_epoch = FetchResponseEpochEndOffset(epoch=1, end_offset=5)
    target.answered(parted)
    agrees = FetchResponsePartition(high_watermark=5, log_start_offset=1)
    assert target.must_answer(agrees) and not target.only_high_watermark_is_new(agrees)


def test_what_is_named_again_where_it_was_is_told_again() -> None:
    """A replica that was told the high watermark with a cut to its own end names the partition again at that offset:
    told nothing, it stayed without a high watermark until the next append (simulated seed 2 of three brokers with an
    archive, at e2881a1)."""
    told = FetchResponsePartition(partition_index=0, high_watermark=39, log_start_offset=0)
    wanted = FetchRequestPartition(partition=0, fetch_offset=39)
    target = Target("t", UUID(int=0), wanted)
    session = FetchSession(1, {("t", 0): target}, 0, uses_topic_ids=False)
    target.answered(told)
    assert not target.must_answer(told)
    session.update({("t", 0): Target("t", UUID(int=0), FetchRequestPartition(partition=0, fetch_offset=40))}, ())
    assert not target.must_answer(told), "who goes on waits"
    session.update({("t", 0): Target("t", UUID(int=0), FetchRequestPartition(partition=0, fetch_offset=40))}, ())
    assert target.must_answer(told)
