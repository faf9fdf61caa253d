"""Histories of a replica against a list: it leads, begins epochs, follows other leaders, is cut, stops and crashes.

The machine of `test_hotstore_crash_machine` with what replication adds. Always true: the log is the list, byte for
byte; its lineage is what the list says, and an epoch without a record may be at its end; whoever holds a slice never
reads anything but what was answered.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from hotstore.errors import DivergingAppend, LeaderEpochFenced
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.record_batch import read_header
from seams.files.disk import File
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, copied, new_log, read_all
from tests.unit.hotstore.recovery.test_hotstore_crash_machine import LogMachine, Stored, one_step

HELD_MAX = 8


class HistoryMachine(LogMachine):
    """Model: besides the list, the epoch that began at its end, and slices that readers hold."""

    begun: EpochStart | None = None
    ever_begun: frozenset[EpochStart] = frozenset()
    """And not cut since: a checkpoint may name them still."""
    held: tuple[tuple[File, int, bytes], ...] = ()

    @property
    def is_live(self) -> bool:
        return self.job is None and self.log.state is LogState.ONLINE and not self.disk.faults

    @rule(ahead=st.integers(0, 3))
    def begin_epoch(self, ahead: int) -> None:
        if self.log.state is LogState.FAILED:
            return
        self.epoch += ahead
        self.log.begin_epoch(self.epoch)
        self.begun = EpochStart(self.epoch, self.end)
        self.ever_begun |= {self.begun}

    @precondition(lambda self: self.is_live)
    @rule(above=st.integers(0, 3))
    def cut_to_the_end(self, above: int) -> None:
        """A follower learns that its leader knows nothing of an epoch it led without writing (KAFKA-10706)."""
        self.log.truncate_to(self.end + above, self.now_ms)
        self._epochs_cut(self.end)

    @precondition(lambda self: self.is_live)
    @rule(
        back=st.integers(0, 6),
        wrote=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 200)), min_size=1, max_size=8),
        at_once=st.integers(1, 4),
    )
    def follow(self, back: int, wrote: list[tuple[int, int, int]], at_once: int) -> None:
        """Another leader's log shares a beginning with ours: cut there, and copy what it wrote, by (epochs on, records,
        bytes)."""
        if back:
            self.truncate(back)
        self.cut_to_the_end(0)
        start = self.end
        _, leader = new_log(CrashDisk(), LogConfig(segment_bytes=1 << 20), start_offset=start)
        for on, count, size in wrote:
            self.epoch += on
            append(leader, batch(count, size=size, fill=b"f"), self.epoch)
        batches = read_all(leader, start)
        for first in range(0, len(batches), at_once):
            copied(self.log, batches[first : first + at_once], self.now_ms)
        for data in batches:
            header = read_header(data)
            self.batches.append(Stored(header.base_offset, header.next_offset, data, -1))

    @precondition(lambda self: self.is_live and self.log.leader_epoch > 0)
    @rule()
    def older_leaders_are_refused(self) -> None:
        older = self.log.leader_epoch - 1
        with pytest.raises(LeaderEpochFenced):
            self.log.begin_epoch(older)
        _, leader = new_log(CrashDisk(), LogConfig(), start_offset=self.end)
        append(leader, batch(), older)
        with pytest.raises(DivergingAppend):
            copied(self.log, read_all(leader, self.end))

    @rule(back=st.integers(1, 20))
    def hold(self, back: int) -> None:
        """A connection begins to send; it may take long."""
        log = self.log
        offset = max(self.end - back, log.local_log_start_offset)
        if log.state is LogState.FAILED or offset >= self.end:
            return
        found = log.read(offset, 500, self.end, min_one=True)
        assert found is not None
        data = found.file.read_at(found.position, found.length)
        self.held = (*self.held, (found.file, found.position, data))[-HELD_MAX:]

    @precondition(lambda self: self.is_live)
    @rule(back=st.integers(0, 10))
    def records_are_deleted(self, back: int) -> None:
        offset = max(self.promised - back, 0)
        inside = [stored.base_offset for stored in self.batches if stored.base_offset <= offset]
        if inside and self.log.advance_log_start(inside[-1]):
            self.directory.checkpoints.sample([self.log]).run()
            self.retained = max(self.retained, self.log.log_start_offset)

    def reopen(self, disk: CrashDisk, *, may_lose: bool, clean: bool = False) -> None:
        self.held = ()
        for stored in self.batches:
            self.ever_begun |= {EpochStart(read_header(stored.data).leader_epoch, stored.base_offset)}
        super().reopen(disk, may_lose=may_lose, clean=clean)
        # An epoch without a record is remembered where the checkpoint was written meanwhile, else forgotten:
        # one that began, or one whose records a power cut took, all of them.
        latest = self.log.epochs.latest
        self.begun = (
            latest if latest in self.ever_begun and latest is not None and latest.start_offset == self.end else None
        )

    def _epochs_cut(self, offset: int) -> None:
        super()._epochs_cut(offset)
        self.begun = None
        self.ever_begun = frozenset(epoch for epoch in self.ever_begun if epoch.start_offset < offset)

    @invariant()
    def the_lineage_is_that_of_the_list(self) -> None:
        log = self.log
        expected = self.epochs_before.truncate_from_end(self.end + 1)
        for stored in self.batches:
            epoch = read_header(stored.data).leader_epoch
            if expected.latest is None or epoch > expected.latest.epoch:
                expected = expected.assign(epoch, stored.base_offset)
        latest = _latest(expected)
        if self.begun is not None and self.begun.start_offset == self.end and self.begun.epoch > latest:
            expected = expected.assign(*self.begun)
        start = log.local_log_start_offset
        if start == self.end and log.leader_epoch < _latest(expected):
            return  # nothing is in it: a cut may have taken the epoch that deleted records left at its start
        assert log.epochs.truncate_from_start(start) == expected.truncate_from_start(start)
        assert log.leader_epoch == _latest(expected)
        saved = LeaderEpochs.from_bytes(log.epochs.to_bytes())
        assert saved == log.epochs

    @invariant()
    def slices_show_what_was_answered(self) -> None:
        for file, position, data in self.held:
            assert data.startswith(file.read_at(position, len(data)))


def _latest(epochs: LeaderEpochs) -> int:
    return -1 if epochs.latest is None else epochs.latest.epoch


HistoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHistoryMachine = HistoryMachine.TestCase


@pytest.mark.parametrize("seed", range(60))
def test_random_histories(seed: int) -> None:
    """The same driven by plain chance, which goes deeper."""
    machine = HistoryMachine()
    machine.begin()
    chance = random.Random(seed)
    for _ in range(120):
        wrote = [(chance.choice([0, 0, 1, 2]), chance.randint(1, 3), chance.randrange(200)) for _ in range(6)]
        step = chance.choice(["follow", "begin", "cut", "hold", "hold", "delete", "refused", *["any"] * 6])
        if step == "begin":
            machine.begin_epoch(chance.randrange(3))
        elif step == "hold":
            machine.hold(chance.randint(1, 20))
        elif step == "any":
            one_step(machine, chance)
        elif machine.is_live:
            if step == "follow":
                machine.follow(chance.randrange(6), wrote[: chance.randint(1, 6)], chance.randint(1, 4))
            elif step == "cut":
                machine.cut_to_the_end(chance.randrange(3))
            elif step == "delete":
                machine.records_are_deleted(chance.randrange(10))
            elif machine.log.leader_epoch > 0:
                machine.older_leaders_are_refused()
        machine.offsets_are_in_order()
        machine.the_lineage_is_that_of_the_list()
        machine.slices_show_what_was_answered()
    machine.reads_show_the_list(400, 0, 0)
