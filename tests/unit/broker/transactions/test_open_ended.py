"""Transactions that a declared gap lies in, and those that nobody ends (TX10, TX31 to TX35)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.observe.sources import Sources
from broker.observe.tier_view import facts
from broker.transactions.interfaces import Decision, TransactionalPartition
from broker.transactions.open_ended import OpenEnded
from broker.wire.apis import ApiKey
from logformat.record_batch import read_header, walk
from logformat.transaction_marker import marker_of
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, batches_of, fetch_request
from tests.support.brokers.transaction_kit import end, produce_in, read_committed, with_transactions

VALUE = b"v" * 150
TIMEOUT_MS = 900_000


@dataclass
class FakeOutcomes:
    """`TransactionOutcomes`: what the test says of each producer; None while nobody answers."""

    of: dict[int, Decision | None] = field(default_factory=dict)
    can_abort: bool = True
    asked: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    """The producers whose ongoing transaction was aborted."""

    async def decide(
        self, partition: TransactionalPartition, producer_id: int, producer_epoch: int, *, aborts: bool
    ) -> Decision | None:
        self.asked.append((producer_id, producer_epoch))
        await asyncio.sleep(0.01)
        found = self.of.get(producer_id, Decision.UNKNOWN)
        if found is not Decision.ONGOING or not aborts:
            return found
        self.aborted.append(producer_id)
        return Decision.ABORTED

    async def abort_ongoing(self, partition: TransactionalPartition) -> bool:
        return self.can_abort


@pytest.fixture(autouse=True)
def served_transactions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A gap makes partitions wait for coordinators; the broker's own rounds, with its own coordinator, do not run."""
    monkeypatch.setattr("broker.start.OpenEnded", _Idle)
    yield


class _Idle:
    def __init__(self, *_: object) -> None:
        pass

    async def keep(self) -> None:
        await asyncio.Event().wait()


def keeper(life: Life, outcomes: FakeOutcomes) -> OpenEnded:
    return OpenEnded(life.context.registry.partitions, outcomes, life.clock, lambda: TIMEOUT_MS)


async def with_lost_disk(*, abort_beyond: bool | None, **configs: str) -> tuple[Place, Life, int, int]:
    """A broker that lost its disk. Producer 7's transaction is open at the bucket's end; `abort_beyond`: how it ended
    behind it, in what is lost; None: it is open. Then the first offset of it and the gap's beginning."""
    place = Place()
    life = await place.start(directory="a")
    with_transactions(life)
    await life.create("log", **(SMALL_SEGMENTS | configs))
    partition = life.partition("log")
    for at in range(8):
        await life.produce("log", b"%d" % at + VALUE)
    first = (await produce_in(life, "log", 7, 0, b"a" + VALUE)).base_offset
    if abort_beyond is None:
        await asyncio.sleep(60)
    else:
        for at in range(20):
            await life.produce("log", b"%d" % at + VALUE)
        await end(life, "log", 7, commit=not abort_beyond)
        for at in range(20):  # the segment with the marker is not sealed, or not copied
            if partition.tier.remote_end_offset > first:
                break
            await life.produce("log", b"%d" % at + VALUE)
            await asyncio.sleep(5)
    remote_end = partition.tier.remote_end_offset
    await life.crash()
    await asyncio.sleep(60)
    life = await place.start(directory="b", take_over=True)
    with_transactions(life)
    return place, life, first, remote_end


async def markers_from(life: Life, offset: int) -> list[tuple[int, bool]]:
    """(producer id, whether it commits) of every marker up to the high watermark."""
    found: list[tuple[int, bool]] = []
    await asyncio.sleep(1)  # they are flushed
    while offset < life.partition("log").high_watermark:
        request = fetch_request(("log", 0, offset), max_wait_ms=20_000)
        for data in batches_of((await life.call(ApiKey.FETCH, request)).responses[0].partitions[0]):
            marker, offset = marker_of(data), read_header(data).next_offset
            if marker is not None:
                found.append((marker.producer_id, marker.is_commit))
    return found


async def test_a_transaction_that_reached_into_the_gap_waits_for_its_outcome() -> None:
    """TX34: until it is closed the producer may not append into it; then what the coordinators say is written."""
    place = Place()
    life = await place.start(directory="a")
    with_transactions(life)
    await life.create("log", **SMALL_SEGMENTS)
    await produce_in(life, "log", 7, 0, b"a")
    await produce_in(life, "log", 8, 0, b"b")
    await produce_in(life, "log", 9, 0, b"c")
    await life.crash()
    partition_dir = "/data/a/log-0"
    assert place.disk.list_dir(partition_dir)
    for name in place.disk.list_dir(partition_dir):
        if "reservation" in name:
            place.disk.unlink(f"{partition_dir}/{name}")  # the tail is in doubt: a gap follows it
    life = await place.start(directory="a", take_over=True)
    with_transactions(life)
    partition = life.partition("log")
    assert partition.tier.lost is not None and set(partition.undecided) == {7, 8, 9}
    gap_end = partition.tier.lost[1]
    assert (await produce_in(life, "log", 7, 1, b"late")).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (await produce_in(life, "log", 5, 0, b"new")).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    await life.produce("log", b"plain")
    outcomes = FakeOutcomes({7: Decision.COMMITTED, 8: None}, can_abort=False)
    ended = keeper(life, outcomes)
    await ended.round()
    assert partition.awaits_coordinators and not outcomes.asked
    outcomes.can_abort = True
    await asyncio.sleep(60)
    await ended.round()
    assert sorted(outcomes.asked) == [(7, 0), (8, 0), (9, 0)] and set(partition.undecided) == {8}
    assert partition.last_stable_offset == 1, "what nobody knows yet stands"
    assert (await produce_in(life, "log", 5, 0, b"new")).error_code == ErrorCode.NONE
    outcomes.of[8] = Decision.ABORTED
    await asyncio.sleep(100)
    await ended.round()
    assert not partition.undecided
    assert await markers_from(life, gap_end) == [(7, True), (9, False), (8, False)]
    assert partition.log.producers.coordinator_epoch_of(7) == 0
    assert (await produce_in(life, "log", 7, 1, b"again")).error_code == ErrorCode.NONE


async def test_dying_before_the_markers_forgets_nothing() -> None:
    """The gap is in the log, and the reservation noted: the next start finds the same transactions in it."""
    place = Place()
    life = await place.start(directory="a")
    with_transactions(life)
    await life.create("log", **SMALL_SEGMENTS)
    await produce_in(life, "log", 7, 0, b"a")
    await life.crash()
    for name in place.disk.list_dir("/data/a/log-0"):
        if "reservation" in name:
            place.disk.unlink(f"/data/a/log-0/{name}")
    life = await place.start(directory="a", take_over=True)
    assert life.partition("log").undecided
    for clean in (True, False):
        await life.produce("log", b"plain")
        await (life.stop() if clean else life.crash())
        life = await place.start(directory="a", take_over=True)
        with_transactions(life)
        partition = life.partition("log")
        assert partition.tier.lost is None and set(partition.undecided) == {7}
    await keeper(life, FakeOutcomes({7: Decision.COMMITTED})).round()
    assert not partition.undecided and (await read_committed(life, "log")).values[0] == b"a"


@pytest.mark.parametrize("clean", [True, False])
async def test_the_question_about_a_gap_outlives_whoever_declared_it(clean: bool) -> None:
    """TX32: the gap took the beginning of a transaction. It was declared, and the process ended before the coordinators
    answered: the next start asks, until a transaction that began behind the gap proves that they did."""
    place = Place()
    life = await place.start(directory="a")
    await life.create("log", **SMALL_SEGMENTS)
    await life.produce("log", b"plain")
    await life.crash()
    for name in place.disk.list_dir("/data/a/log-0"):
        if "reservation" in name:
            place.disk.unlink(f"/data/a/log-0/{name}")
    life = await place.start(directory="a", take_over=True)
    assert life.partition("log").tier.lost is not None and life.partition("log").awaits_coordinators
    for _ in range(2):
        await life.produce("log", b"plain")
        await (life.stop() if clean else life.crash())
        life = await place.start(directory="a", take_over=True)
        with_transactions(life)
        partition = life.partition("log")
        assert partition.tier.lost is None and partition.awaits_coordinators
        assert (await produce_in(life, "log", 5, 0, b"new")).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    await keeper(life, FakeOutcomes()).round()
    assert (await produce_in(life, "log", 5, 0, b"new")).error_code == ErrorCode.NONE
    for _ in range(2):
        await (life.stop() if clean else life.crash())
        life = await place.start(directory="a", take_over=True)
        assert not life.partition("log").awaits_coordinators
        if life.partition("log").log.producers.has_open(5, 0):
            await end(life, "log", 5, commit=True)
    await life.stop()


@pytest.mark.parametrize("abort", [True, False])
async def test_what_the_bucket_says_stands(abort: bool) -> None:
    """TX10 (a), TX33: the marker was beyond the bucket's end and is lost, but the footer names the outcome."""
    _, life, first, remote_end = await with_lost_disk(abort_beyond=abort)
    partition = life.partition("log")
    assert first < remote_end
    outcomes = FakeOutcomes({7: Decision.ABORTED if not abort else Decision.COMMITTED})  # it would be wrong
    assert set(partition.undecided) == {7} and partition.tier.lost is not None
    assert partition.last_stable_offset >= remote_end, "all that is in the bucket is decided (TX27)"
    await keeper(life, outcomes).round()
    assert outcomes.asked == [] and not partition.undecided
    assert await markers_from(life, partition.tier.lost[1]) == [(7, not abort)]
    seen = await read_committed(life, "log", first)
    assert (b"a" + VALUE in seen.values) is not abort
    keys = [of for of in seen.aborted if of[0] == 7]
    assert keys == ([(7, first)] if abort else [])


async def test_an_abort_that_only_the_bucket_knows_is_not_read_from_local_files() -> None:
    """The marker was not flushed and is lost; the records are there, and the bucket has them with their outcome. Until
    that is in the log a reader of the local files would be told of no abort (simulated seed 27 of three brokers)."""
    place = Place()
    life = await place.start("thermocline.flush=os", directory="a")
    with_transactions(life)
    await life.create("log", **(SMALL_SEGMENTS | {"local_retention_bytes": "100000"}))
    first = (await produce_in(life, "log", 7, 0, b"a" + VALUE)).base_offset
    for at in range(20):
        await life.produce("log", b"%d" % at + VALUE)
    await asyncio.sleep(60)
    await end(life, "log", 7, commit=False)
    partition = life.partition("log")
    async with asyncio.timeout(50):
        while partition.tier.remote_end_offset <= first:
            await asyncio.sleep(1)
    assert partition.tier.remote_end_offset > first == partition.log.local_log_start_offset
    await life.crash()
    await asyncio.sleep(60)
    name = max(name for name in place.disk.list_dir("/data/a/log-0") if name.endswith(".log"))
    data = place.disk._names[f"/data/a/log-0/{name}"].data
    marker_at = next(at for at, _ in walk(bytes(data)) if marker_of(data, at) is not None)
    del data[marker_at:]
    for name in place.disk.list_dir("/data/a/log-0"):
        if "reservation" in name:
            place.disk.unlink(f"/data/a/log-0/{name}")  # the tail is in doubt: a gap follows it
    life = await place.start(directory="a", take_over=True)
    with_transactions(life)
    partition = life.partition("log")
    assert set(partition.undecided) == {7} and partition.tier.remote_end_offset > first
    before = await read_committed(life, "log", first, max_wait_ms=100)
    assert b"a" + VALUE not in before.values and partition.last_stable_offset == first
    await keeper(life, FakeOutcomes()).round()
    await asyncio.sleep(1)
    after = await read_committed(life, "log", first)
    assert after.aborted == [(7, first)] and b"a" + VALUE not in after.values


async def test_a_transaction_that_nobody_knows_is_aborted_when_it_is_overdue() -> None:
    """TX35: the coordinator's log was lost, the data was not."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await produce_in(life, "log", 7, 0, b"a")
    outcomes = FakeOutcomes()
    ended = keeper(life, outcomes)
    await ended.round()
    assert not outcomes.asked
    await asyncio.sleep(TIMEOUT_MS / 1000 + 30)
    await ended.round()
    assert not outcomes.asked
    await asyncio.sleep(40)
    await produce_in(life, "log", 8, 0, b"b")
    await ended.round()
    assert outcomes.asked == [(7, 0)]
    seen = await read_committed(life, "log")
    assert seen.aborted == [(7, 0)] and seen.last_stable_offset == 1, "producer 8's is young"


async def test_a_clock_that_is_set_forward_ends_no_transaction_that_goes_on() -> None:
    """Regression: the clock of the partition's leader was set forward by 20 minutes. Every transaction that was open
    there counted as overdue, and was aborted at its coordinator, which fenced its producer."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await produce_in(life, "log", 7, 0, b"a")
    await produce_in(life, "log", 8, 0, b"b")
    outcomes = FakeOutcomes({7: Decision.ONGOING})
    ended = keeper(life, outcomes)
    transactions = life.partition("log").log.producers.transactions
    for producer_id in (7, 8):
        transactions._begun_ms[producer_id] -= TIMEOUT_MS + 70_000  # as if the clock had been set forward
    await ended.round()
    assert sorted(outcomes.asked) == [(7, 0), (8, 0)] and not outcomes.aborted
    assert list(transactions.first_offsets) == [7], "only what no coordinator knows is aborted (TX35)"
    assert (await produce_in(life, "log", 7, 1, b"more")).error_code == ErrorCode.NONE
    await end(life, "log", 7, commit=True)
    assert (await read_committed(life, "log")).aborted == [(8, 1)]


async def test_seed_95041_a_clock_that_is_set_back_delays_the_abort_once() -> None:
    """A transaction that began by a clock 50 minutes fast waited 50 minutes more for its end."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await produce_in(life, "log", 7, 0, b"a")
    outcomes = FakeOutcomes()
    ended = keeper(life, outcomes)
    transactions = life.partition("log").log.producers.transactions
    now_ms = ended._clock.wall_ms()
    transactions._begun_ms[7] = now_ms + 3_000_000
    await ended.round()
    await asyncio.sleep(TIMEOUT_MS / 1000 + 59)
    await ended.round()
    assert not outcomes.asked
    await asyncio.sleep(2)
    await ended.round()
    assert outcomes.asked == [(7, 0)] and not transactions.first_offsets


async def test_an_answer_after_the_role_changes_nothing() -> None:
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await produce_in(life, "log", 7, 0, b"a")
    await asyncio.sleep(TIMEOUT_MS / 1000 + 70)
    partition = life.partition("log")

    @dataclass
    class Slow(FakeOutcomes):
        async def decide(
            self, partition_: Any, producer_id: int, producer_epoch: int, *, aborts: bool
        ) -> Decision | None:
            partition.leading = False
            return Decision.ABORTED

    await keeper(life, Slow()).round()
    assert partition.log.log_end_offset == 1
    partition.leading = True


async def test_a_marker_that_came_meanwhile_stands() -> None:
    """The coordinator's own marker, while it was asked: the next transaction of the producer is another one."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await produce_in(life, "log", 7, 0, b"a")
    await asyncio.sleep(TIMEOUT_MS / 1000 + 70)

    @dataclass
    class Slow(FakeOutcomes):
        async def decide(
            self, partition_: Any, producer_id: int, producer_epoch: int, *, aborts: bool
        ) -> Decision | None:
            await end(life, "log", 7, commit=True)
            await produce_in(life, "log", 7, 1, b"next")
            return Decision.ABORTED

    await keeper(life, Slow()).round()
    partition = life.partition("log")
    assert partition.log.producers.has_open(7, 0) and partition.last_stable_offset == 2
    assert (await read_committed(life, "log")).aborted == []


async def test_a_transaction_that_is_open_for_too_long_is_a_condition() -> None:
    """It holds the last stable offset, and with it copying: producer, partition and first offset are named."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await life.produce("log", b"plain")
    await produce_in(life, "log", 7, 0, b"a")
    sources = life.broker._sources
    assert isinstance(sources, Sources)
    assert facts(sources).overdue_transactions == ()
    await asyncio.sleep(TIMEOUT_MS / 1000 + 70)
    assert facts(sources).overdue_transactions == ("producer 7 (open in log-0 since offset 1)",)
    await end(life, "log", 7, commit=False)
    assert facts(sources).overdue_transactions == ()
