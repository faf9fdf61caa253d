"""The log of an internal topic with a toy state, as transactions would use it: load, lead, resign, append, snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from broker.internal_topics.batches import KeyValue, batch_of
from broker.internal_topics.interfaces import Live, LogLimits
from broker.internal_topics.internal_log import LOADS_AT_ONCE, InternalLog
from broker.internal_topics.led_shard import Shard
from broker.internal_topics.shard_life import ShardState
from broker.internal_topics.snapshots import Snapshots
from logformat.errors import Corrupt, Fenced, Retryable
from logformat.transaction_marker import TransactionMarker
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock, run_fast
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog

LIMITS = LogLimits(
    append_batch_bytes_max=10_000,
    append_queue_max=1_000,
    append_queue_bytes_max=1 << 20,
    snapshot_interval_ms=4_000,
    close_timeout_ms=5_000,
)


class Table:
    """A toy state: the last value of each key, as a transaction's is by its id."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.values: dict[bytes, bytes] = {}
        self.unloaded = 0

    def apply(self, records: Sequence[KeyValue]) -> None:
        for key, value, _ in records:
            if key == b"rotten":
                raise Corrupt("a record that says nothing")
            self._put(key, value)

    def repeated(self, records: Sequence[KeyValue]) -> None:
        self.apply(records)

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def end_transaction(self, marker: TransactionMarker) -> None:
        """There are none."""

    def lost(self) -> None:
        """Whatever is missing is not there."""

    def restore(self) -> Iterator[None]:
        yield

    def live(self) -> Live:
        held = dict(self.values)
        return Live(len(held), (KeyValue(key, value) for key, value in held.items()))

    def unload(self) -> None:
        self.unloaded += 1
        self.values.clear()

    def write(self, key: bytes, value: bytes | None) -> asyncio.Future[Exception | None]:
        """Applied, and answered, once it is durable."""
        written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(failure: Exception | None) -> None:
            if failure is None:
                self._put(key, value)
            written.set_result(failure)  # fails when it is called twice

        self.shard.submit([KeyValue(key, value)], done)
        return written


class World:
    """One broker's log of an internal topic that lies in memory."""

    def __init__(self, partitions: int = 1) -> None:
        self.memory = MemoryOffsetsLog(partitions)
        self.memory.writes_first = True
        self.failures: list[BaseException] = []
        self.tasks = Tasks(lambda _, failure: self.failures.append(failure))
        self.tables: list[Table] = []
        self.loaded: list[int] = []
        self.kept = 0
        self.log: InternalLog[Table] = InternalLog(
            "memory",
            FastClock(),
            SeededRng(1),
            LIMITS,
            self.tasks,
            lambda _, failure: self.failures.append(failure),
            self._make,
            lambda table: self.loaded.append(table.shard.index),
            self._keep,
        )
        self.snapshots = Snapshots(self.log, FastClock())

    def _keep(self) -> None:
        self.kept += 1

    def _make(self, shard: Shard) -> Table:
        self.tables.append(Table(shard))
        return self.tables[-1]

    def lead(self, epoch: int, *indexes: int) -> None:
        for index in indexes or range(self.memory.partitions):
            self.log.lead(self.memory.shard_log(index, epoch))

    async def led(self, epoch: int) -> None:
        self.lead(epoch)
        await self.log.wait_loaded()

    def table(self, index: int = 0) -> Table:
        table = self.log.ready(index)
        assert table is not None
        return table


def in_world(partitions: int = 1) -> Callable[[Callable[[World], Awaitable[None]]], Callable[[], None]]:
    """Run a test in virtual time; nothing may have failed behind its back."""

    def decorate(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def whole() -> None:
                w = World(partitions)
                await test(w)
                await w.tasks.close()
                assert not w.failures

            run_fast(whole())

        run.__doc__, run.__name__ = test.__doc__, getattr(test, "__name__", "test")
        return run

    return decorate


async def settle() -> None:
    """Let everything come as far as it can without time passing."""
    await asyncio.sleep(0.001)


# ---- load and lead ---------------------------------------------------------------------------------------------------


@in_world()
async def test_what_was_written_in_one_epoch_is_loaded_in_the_next(w: World) -> None:
    """The newest snapshot, then the log above it."""
    await w.led(1)
    for key in (b"a", b"b", b"c"):
        assert await w.table().write(key, b"1") is None
    await w.snapshots.write_all()
    assert await w.table().write(b"b", b"2") is None
    assert await w.table().write(b"c", None) is None
    w.log.resign(0)
    assert w.log.ready(0) is None and w.log.state_of(0) is ShardState.ABSENT
    await w.led(2)
    assert w.table().values == {b"a": b"1", b"b": b"2"}
    assert w.loaded == [0, 0] and [table.unloaded for table in w.tables] == [1, 0]


@in_world()
async def test_a_shard_is_ready_when_the_high_watermark_reached_the_end_it_was_loaded_to(w: World) -> None:
    """R25: what lies above it may still be taken back."""
    await w.led(1)
    w.memory.hold()
    write = w.table().write(b"a", b"1")
    await settle()
    w.lead(2)
    assert isinstance(await write, Fenced)
    await asyncio.sleep(60)
    assert w.log.state_of(0) is ShardState.LOADING
    w.memory.release()
    await w.log.wait_loaded()
    assert w.table().values == {b"a": b"1"}


@in_world(3)
async def test_a_shard_that_cannot_be_loaded_keeps_no_other_waiting(w: World) -> None:
    w.memory.batches[1] = [batch_of([KeyValue(b"rotten", b"")], 0)]
    w.memory.fail_replay = [Retryable("the store is away")]
    w.lead(1)
    await settle()
    states = [w.log.state_of(index) for index in range(3)]
    assert states == [ShardState.LOADING, ShardState.FAILED, ShardState.READY]
    w.memory.batches[1] = []
    await asyncio.sleep(10)
    assert [w.log.state_of(index) for index in range(3)] == [ShardState.READY] * 3
    assert [table.unloaded for table in w.tables].count(1) == 2, "what broken-off loads brought was dropped"


@in_world(10)
async def test_loads_are_bounded(w: World) -> None:
    """Each holds a snapshot in memory."""
    w.memory.hold()
    w.lead(1)
    await settle()
    assert len(w.tables) == LOADS_AT_ONCE
    w.memory.release()
    await w.log.wait_loaded()
    assert len(w.tables) == 10 == len(w.log.all_ready())


@in_world()
async def test_a_resignation_ends_a_load(w: World) -> None:
    w.memory.hold()
    w.lead(1)
    await settle()
    w.log.resign(0)
    w.memory.release()
    await settle()
    assert w.log.state_of(0) is ShardState.ABSENT and not w.loaded and len(w.tasks) == 0
    assert [table.unloaded for table in w.tables] == [1]


@in_world()
async def test_a_topic_that_is_made_again_begins_anew(w: World) -> None:
    """Its epochs may be lower: it is another topic."""
    await w.led(7)
    w.log.forget()
    await w.led(1)
    assert w.log.state_of(0) is ShardState.READY


@in_world()
async def test_a_long_log_is_loaded_in_turns(w: World) -> None:
    """Others are served in between, also within one batch, however large; and at every turn Python's collector is told
    to leave alone what was loaded."""
    records = [KeyValue(b"%d" % at, bytes(50)) for at in range(20_000)]
    w.memory.batches[0] = [batch_of(records[:15_000], 0), batch_of(records[15_000:], 0, 15_000)]
    w.memory.ends[0] = 20_000
    turns = 0
    w.lead(1)
    while w.log.is_loading:
        await asyncio.sleep(0)
        turns += 1
    assert len(w.table().values) == 20_000 and turns > 70 and w.kept > 70


# ---- resign ----------------------------------------------------------------------------------------------------------


@in_world()
async def test_a_resignation_fails_what_is_pending_at_once(w: World) -> None:
    """R11: the write under way and those behind it; nothing is appended after it."""
    await w.led(1)
    table = w.table()
    w.memory.hold()
    writes = [table.write(b"%d" % at, b"") for at in range(3)]
    await settle()
    writes += [table.write(b"%d" % at, b"") for at in range(3, 6)]
    w.log.resign(0)
    assert all(write.done() for write in writes), "synchronously"
    assert all(isinstance(write.result(), Fenced) for write in writes)
    late = table.write(b"late", b"")
    w.memory.release()
    await settle()
    assert isinstance(await late, Fenced) and w.memory.appends == 1


@in_world()
async def test_cluster_d45_an_append_of_an_older_epoch_confirms_nothing(w: World) -> None:
    """D45, KAFKA-20634: the same broker leads again; the high watermark of the new epoch passes the old append, whose
    write was refused: it must not be confirmed, and the state of the new epoch is what it replayed."""
    await w.led(1)
    old = w.table()
    w.memory.hold()
    told: list[Exception | None] = []
    old.shard.submit([KeyValue(b"k", b"old")], told.append)
    await settle()
    w.lead(2)
    assert len(told) == 1 and isinstance(told[0], Fenced)
    w.memory.release()
    await w.log.wait_loaded()
    await settle()
    assert len(told) == 1, "told again, of an outcome in another epoch"
    assert old.values == {} and w.table() is not old
    (shard,) = w.log.shards()
    assert shard.book.end_offset == 1 and w.table().values == {b"k": b"old"}, "replayed, since it is in the log"


@in_world()
async def test_a_stop_lets_appends_end_truly(w: World) -> None:
    """The log does not move to anybody else; a last snapshot has them."""
    await w.led(1)
    table = w.table()
    w.memory.hold()
    write = table.write(b"a", b"1")
    await settle()
    closing = asyncio.get_running_loop().create_task(w.log.close())
    await settle()
    assert not closing.done() and w.log.ready(0) is None
    w.memory.release()
    await closing
    assert await write is None
    await w.snapshots.write_all()
    assert w.memory.snapshots[0][0] == 1 == w.memory.ends[0]


@in_world()
async def test_a_write_at_the_very_end_of_the_broker_is_told_so(w: World) -> None:
    """No task may begin any more."""
    await w.led(1)
    await w.tasks.close()
    told: list[Exception | None] = []
    for _ in range(2):
        w.table().shard.submit([KeyValue(b"k", b"late")], told.append)
    assert told == [], "never while the caller performs effects"
    await settle()
    assert [type(failure) for failure in told] == [Retryable, Retryable]


# ---- snapshots -------------------------------------------------------------------------------------------------------


@in_world()
async def test_a_snapshot_ends_below_a_batch_that_is_under_way(w: World) -> None:
    """What it names is applied: the log above its end has the rest, and must not be folded away."""
    await w.led(1)
    assert await w.table().write(b"a", b"1") is None
    w.memory.hold()
    write = w.table().write(b"a", b"2")
    await settle()
    assert w.memory.ends[0] == 2, "it stands in the log already"
    await w.snapshots.write_all()
    assert w.memory.snapshots[0][0] == 1
    w.memory.release()
    assert await write is None
    w.log.resign(0)
    await w.led(2)
    assert w.table().values == {b"a": b"2"}


@in_world()
async def test_a_changed_shard_has_a_snapshot_after_the_interval_and_an_idle_one_has_none(w: World) -> None:
    await w.led(1)
    keeping = w.tasks.spawn("keep", w.snapshots.keep())
    await asyncio.sleep(30)
    assert not w.memory.snapshots
    assert await w.table().write(b"a", b"1") is None
    await asyncio.sleep(1.1)
    assert w.memory.snapshots[0][0] == 1, "due at once after a quiet time"
    assert await w.table().write(b"a", b"2") is None
    await asyncio.sleep(2)
    assert w.memory.snapshots[0][0] == 1
    await asyncio.sleep(3.1)
    assert w.memory.snapshots[0][0] == 2
    keeping.cancel()


@in_world(3)
async def test_snapshot_trouble_is_told_when_it_begins_and_when_it_ends(w: World) -> None:
    """It was a WARNING a shard and an ERROR a round. Others have their snapshots meanwhile."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.getMessage()}")

    handler, logger = Lines(), logging.getLogger("broker.internal_topics.snapshots")
    logger.addHandler(handler)
    await w.led(1)
    keeping = w.tasks.spawn("keep", w.snapshots.keep())
    w.memory.fail_snapshot = {0: Retryable("the store is away"), 2: Retryable("the store is away")}
    for index in range(3):
        assert await w.table(index).write(b"a", b"1") is None
    await asyncio.sleep(100)
    assert w.memory.snapshots.keys() == {1}
    assert len(lines) == 1 and lines[0].startswith(
        "WARNING a snapshot of memory-0 and 1 more could not be written: the store is away"
    )
    w.memory.fail_snapshot = {}
    await asyncio.sleep(100)
    assert w.memory.snapshots.keys() == {0, 1, 2}
    assert lines[1:] == ["WARNING snapshots of memory are written again, after 1m36s"]
    logger.removeHandler(handler)
    keeping.cancel()


@in_world(2)
async def test_a_last_snapshot_that_fails_is_raised_after_the_others_were_written(w: World) -> None:
    await w.led(1)
    w.memory.fail_snapshot = {0: Retryable("refused")}
    for index in range(2):
        assert await w.table(index).write(b"a", b"1") is None
    with pytest.raises(Retryable, match="refused"):
        await w.snapshots.write_all()
    assert w.memory.snapshots.keys() == {1}


@in_world()
async def test_a_snapshot_that_was_cut_in_an_older_epoch_is_not_committed(w: World) -> None:
    """The encoding takes turns: leadership may move meanwhile."""
    await w.led(1)
    for at in range(1_000):
        w.table().write(b"%d" % at, b"")
    await asyncio.sleep(1)
    writing = asyncio.get_running_loop().create_task(w.snapshots.write_all())
    await asyncio.sleep(0)
    w.log.resign(0)
    await writing
    assert not w.memory.snapshots
