"""The log against a list, on a disk that forgets: whatever happens in whatever order, nothing promised is lost."""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hotstore.errors import LogFailed, LogFull, OffsetOutOfRange
from hotstore.flush.durability import SyncJob
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState
from logformat.leader_epochs import LeaderEpochs
from seams.rng import SeededRng
from tests.support.disk.crash_disk import CAPACITY_BYTES, CrashDisk
from tests.support.disk.hotstore_kit import ORDERS, append, batch, flush, new_log, open_log, read_all, seal

CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200, tiered=True)


@dataclass
class Stored:
    """A batch of the model: its place, and its bytes as stored."""

    base_offset: int
    end_offset: int
    data: bytes
    sequence: int


class LogMachine(RuleBasedStateMachine):
    """Model: the list of stored batches, the promised (flushed) end, the starts, and what `start_at` said of epochs."""

    @initialize()
    def begin(self) -> None:
        self.disk = CrashDisk()
        self.directory, self.log = new_log(self.disk, CONFIG)
        self.batches: list[Stored] = []
        self.promised = 0
        self.producer_id = 9
        self.job: SyncJob | None = None
        self.epoch = 0
        self.epochs_before = LeaderEpochs()
        self.sequence = 0
        self.now_ms = 10_000
        self.retained = 0

    # --- what a broker does -------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.integers(0, 250), min_size=1, max_size=6),
        count=st.integers(1, 3),
        idempotent=st.booleans(),
        new_epoch=st.booleans(),
    )
    def append_some(self, sizes: list[int], count: int, idempotent: bool, new_epoch: bool) -> None:
        self.epoch += new_epoch
        for size in sizes:
            self.append_one(count, size, idempotent)

    def append_one(self, count: int, size: int, idempotent: bool) -> None:
        self.now_ms += 10
        producer = (self.producer_id, 0, self.sequence) if idempotent else (-1, -1, -1)
        data = batch(
            count, size=size, timestamp=self.now_ms, producer_id=producer[0], epoch=producer[1], sequence=producer[2]
        )
        end = self.end
        try:
            done = append(self.log, data, self.epoch, self.now_ms)
        except LogFull:
            assert self.log.state is LogState.FULL and self.log.log_end_offset == end
            return
        except LogFailed:
            assert self.log.state is LogState.FAILED
            return
        assert (done.base_offset, done.last_offset, done.duplicate) == (end, end + count - 1, False)
        self.batches.append(Stored(end, end + count, bytes(data), producer[2]))
        if idempotent:
            self.sequence += count

    @rule(back=st.integers(0, 4))
    def resend(self, back: int) -> None:
        known = [stored for stored in self.batches if stored.sequence >= 0]
        if back >= len(known) or self.log.state is LogState.FAILED:
            return
        stored = known[-1 - back]
        count = stored.end_offset - stored.base_offset
        data = batch(count, producer_id=self.producer_id, epoch=0, sequence=stored.sequence)
        done = append(self.log, data, self.epoch, self.now_ms)
        assert (done.base_offset, done.last_offset, done.duplicate) == (stored.base_offset, stored.end_offset - 1, True)

    @precondition(lambda self: self.job is None)
    @rule(small_files=st.booleans())
    def sync(self, small_files: bool) -> None:
        self.sync_begins()
        if self.job is not None:
            self.sync_ends()
        if small_files:
            self.write_small_files()

    @precondition(lambda self: self.job is None)
    @rule()
    def sync_begins(self) -> None:
        if self.log.state is not LogState.FAILED:
            self.job = self.log.durability.begin_sync(self.log.active_segment, self.log.log_end_offset)

    @precondition(lambda self: self.job is not None)
    @rule()
    def sync_ends(self) -> None:
        assert self.job is not None
        job, self.job = self.job, None
        try:
            job.run()
        except OSError as error:
            self.log.fail(error)
            return
        if self.log.state is not LogState.FAILED:
            self.log.durability.finish_sync(job)
            self.promised = self.log.flushed_end_offset

    @rule()
    def write_small_files(self) -> None:
        if self.log.state is not LogState.FAILED:
            try:
                seal(self.log)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    self.log.fail(error)

    @rule()
    def roll(self) -> None:
        if self.log.state is not LogState.FAILED:
            with contextlib.suppress(LogFull, LogFailed):
                self.log.roll()

    @rule()
    def write_checkpoints(self) -> None:
        with contextlib.suppress(OSError):
            self.directory.checkpoints.sample([self.log]).run()

    @precondition(lambda self: self.job is None and self.log.state is LogState.ONLINE and not self.disk.faults)
    @rule(back=st.integers(0, 20))
    def delete_local(self, back: int) -> None:
        self.log.delete_local_before(max(self.promised - back, 0))
        self.log.unlink()
        self.retained = self.log.local_log_start_offset

    @precondition(lambda self: self.job is None and self.log.state is LogState.ONLINE and not self.disk.faults)
    @rule(back=st.integers(1, 12))
    def truncate(self, back: int) -> None:
        """A follower cuts its log back where its leader's epochs say so."""
        inside = [stored for stored in self.batches if stored.base_offset >= self.retained]
        if not inside:
            return
        target = inside[max(len(inside) - back, 0)]
        self.directory.checkpoints.lower_recovery_point(ORDERS, target.base_offset)
        self.log.truncate_to(target.base_offset, self.now_ms)
        self.batches = [stored for stored in self.batches if stored.end_offset <= target.base_offset]
        self._epochs_cut(target.base_offset)
        self.promised = self.log.log_end_offset
        self.sequence = 0
        self._forget_producers()

    @precondition(lambda self: self.job is None and self.log.state is LogState.ONLINE and not self.disk.faults)
    @rule(ahead=st.integers(0, 30))
    def start_at_the_cold_end(self, ahead: int) -> None:
        offset = self.end + ahead
        self.epochs_before = LeaderEpochs().assign(self.epoch, offset)
        self.log.start_at(offset, self.epochs_before, ())
        self.batches.clear()
        self.empty_end = offset
        self.promised = self.retained = offset
        self._forget_producers()

    def _epochs_cut(self, offset: int) -> None:
        self.epochs_before = self.epochs_before.truncate_from_end(offset)

    def _forget_producers(self) -> None:
        """What follows comes from a producer the log never saw: sequences of the old one may be gone."""
        self.producer_id += 1
        self.sequence = 0
        for stored in self.batches:
            stored.sequence = -1

    # --- what the world does ------------------------------------------------------------------------------------

    @rule(room=st.integers(0, 300), count=st.integers(1, 3))
    def disk_is_full(self, room: int, count: int) -> None:
        """Appends fail whole after a short write, and go on by themselves when there is space."""
        space = self.disk.space("/")
        self.disk.capacity_bytes = space.total - space.free + room
        self.append_one(count, 100, idempotent=True)
        self.disk.capacity_bytes = CAPACITY_BYTES
        self.append_one(1, 10, idempotent=True)
        assert self.log.state in (LogState.ONLINE, LogState.FAILED)

    @precondition(lambda self: self.job is None)
    @rule(operation=st.sampled_from(["sync", "write"]), keep=st.sampled_from([0.0, 0.5]), seed=st.integers(0, 2**32))
    def disk_fails(self, operation: str, keep: float, seed: int) -> None:
        """A failed sync or write ends the log; the next process recovers it, and then the power goes as well."""
        self.disk.inject(operation, errno.EIO, ".log")
        self.append_one(1, 60, idempotent=False)
        if self.log.state is not LogState.FAILED:
            self.sync(small_files=True)
        assert self.log.state is LogState.FAILED
        self.reopen(self.disk.kill(), may_lose=operation == "write")
        self.reopen(self.disk.crash(SeededRng(seed), keep), may_lose=True)

    @rule(keep=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), seed=st.integers(0, 2**32))
    def power_cut(self, keep: float, seed: int) -> None:
        self.reopen(self.disk.crash(SeededRng(seed), keep), may_lose=True)

    @rule()
    def killed(self) -> None:
        self.reopen(self.disk.kill(), may_lose=False)

    @precondition(lambda self: self.job is None)
    @rule(seed=st.integers(0, 2**32))
    def stops_in_order(self, seed: int) -> None:
        self.disk.heal()
        if self.log.state is LogState.FAILED:
            return
        self.log.close(clean=True)
        self.directory.checkpoints.sample([self.log]).run()
        self.directory.mark_clean()
        self.directory.close()
        self.promised = self.log.log_end_offset
        self.reopen(self.disk.crash(SeededRng(seed), 0.0), may_lose=True, clean=True)

    def reopen(self, disk: CrashDisk, *, may_lose: bool, clean: bool = False) -> None:
        disk.heal()
        self.job = None
        self.disk = disk
        self.directory, self.log = open_log(disk, CONFIG, self.now_ms)
        assert self.directory.was_clean == clean
        end = self.log.log_end_offset
        assert self.promised <= end <= self.end
        assert may_lose or end == self.end
        lost = [stored for stored in self.batches if stored.end_offset > end]
        assert not lost or lost[0].base_offset == end, "cut between batches"
        self.batches = [stored for stored in self.batches if stored.end_offset <= end]
        # Everything a recovered log shows is durable, also after a sync that failed before (fsyncgate).
        self.promised = end
        assert self.log.flushed_end_offset == end
        self.retained = min(self.retained, self.log.local_log_start_offset)
        self._empty_end(end)
        known = [stored for stored in self.batches if stored.sequence >= 0]
        self.sequence = known[-1].sequence + known[-1].end_offset - known[-1].base_offset if known else 0
        if lost and any(stored.sequence >= 0 for stored in lost) and not known:
            self._forget_producers()

    def _empty_end(self, end: int) -> None:
        if not self.batches:
            self.empty_end = end

    # --- what must hold -----------------------------------------------------------------------------------------

    empty_end = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.empty_end

    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.local_log_start_offset <= log.log_end_offset
        assert log.recovery_point <= log.flushed_end_offset <= log.log_end_offset == self.end
        assert log.flushed_end_offset >= self.promised or log.state is LogState.FAILED
        segments = [*log.sealed_segments(), log.active_info()]
        for before, after in pairwise(segments):
            assert before.end_offset == after.base_offset and before.bytes > 0
        assert log.local_bytes == sum(segment.bytes for segment in segments)
        assert log.dirty_bytes >= 0

    @rule(max_bytes=st.integers(1, 900), start=st.integers(0, 200), back=st.integers(0, 30))
    def reads_show_the_list(self, max_bytes: int, start: int, back: int) -> None:
        log = self.log
        if log.state is LogState.FAILED:
            return
        first = log.local_log_start_offset
        offset = min(first + start, self.end)
        limit = max(self.end - back, 0)
        inside = [s.data for s in self.batches if s.end_offset > offset and s.end_offset <= limit]
        if offset < limit:
            found = read_all(log, offset, max_bytes=max_bytes, limit=limit)
            assert found == inside
        with pytest.raises(OffsetOutOfRange):
            log.read(self.end + 1, max_bytes, self.end, min_one=True)

    @rule()
    def ranges_show_the_list(self) -> None:
        if self.log.state is LogState.FAILED:
            return
        first = self.log.local_log_start_offset
        inside = [s for s in self.batches if s.base_offset >= first][1:-1]
        if not inside:
            return
        ranges = self.log.batch_ranges(inside[0].base_offset, inside[-1].end_offset)
        data = b"".join(found.file.read_at(found.position, found.length) for found in ranges)
        assert data == b"".join(stored.data for stored in inside)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogMachine = LogMachine.TestCase


def walk(seed: int, steps: int) -> LogMachine:
    """The same machine driven by plain chance: it goes deeper than hypothesis, which shrinks better."""
    machine = LogMachine()
    machine.begin()
    chance = random.Random(seed)
    for _ in range(steps):
        one_step(machine, chance)
        machine.offsets_are_in_order()
    return machine


def one_step(machine: LogMachine, chance: random.Random) -> None:
    """Whatever may happen next."""
    step = chance.choices(list(STEPS), list(STEPS.values()))[0]
    cut, roll_seed = chance.choice([0.0, 0.0, 0.1, 0.5, 0.9, 1.0]), chance.randrange(2**32)
    live = machine.job is None and machine.log.state is LogState.ONLINE
    if step == "append":
        sizes = [chance.randrange(250) for _ in range(chance.randint(1, 6))]
        machine.append_some(sizes, chance.randint(1, 3), chance.random() < 0.5, chance.random() < 0.1)
    elif step == "resend":
        machine.resend(chance.randrange(5))
    elif step == "sync" and machine.job is None:
        machine.sync(chance.random() < 0.5)
    elif step == "sync in steps":
        (machine.sync_begins if machine.job is None else machine.sync_ends)()
    elif step == "small":
        chance.choice([machine.write_small_files, machine.roll, machine.write_checkpoints])()
    elif step == "read":
        machine.reads_show_the_list(chance.randint(1, 900), chance.randrange(60), chance.randrange(30))
        machine.ranges_show_the_list()
    elif step == "less" and live:
        less = [machine.delete_local, machine.truncate, machine.start_at_the_cold_end]
        chance.choices(less, [6, 3, 1])[0](chance.randint(1, 20))
    elif step == "full":
        machine.disk_is_full(chance.randrange(300), chance.randint(1, 3))
    elif step == "failed" and machine.job is None:
        machine.disk_fails(chance.choice(["sync", "write"]), chance.choice([0.0, 0.5]), roll_seed)
    elif step == "power cut":
        machine.power_cut(cut, roll_seed)
    elif step == "killed":
        machine.killed()
    elif step == "stopped" and machine.job is None:
        machine.stops_in_order(roll_seed)


STEPS = {
    "append": 10,
    "resend": 2,
    "sync": 4,
    "sync in steps": 5,
    "small": 5,
    "read": 2,
    "less": 2,
    "full": 1,
    "failed": 1,
    "power cut": 2,
    "killed": 1,
    "stopped": 1,
}


@pytest.mark.parametrize("seed", range(60))
def test_random_walks_lose_nothing_that_was_promised(seed: int) -> None:
    """Appends, syncs, rolls, cuts, kills, full and failing disks in any order, against the list."""
    walk(seed, 120)


def test_flush_helper_promises_what_a_power_cut_leaves() -> None:
    """The smallest case by hand: what one sync covered is there, byte for byte, what came later is not."""
    disk = CrashDisk()
    _, log = new_log(disk, CONFIG)
    kept = batch(2)
    append(log, kept)
    flush(log)
    append(log, batch(3))
    _, log = open_log(disk.crash(SeededRng(1), 0.0), CONFIG)
    assert read_all(log, 0) == [bytes(kept)]
    assert log.log_end_offset == 2
