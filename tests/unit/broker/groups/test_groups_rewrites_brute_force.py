"""Offsets in and outside of transactions, against a model that reads the log and skips what rewrites repeat.

Any order of commits, transactional commits, markers, group deletions, rewrites that are interrupted behind any batch,
and loads: from the whole log, from a rewrite's begin, from a snapshot. A rewrite must change nothing, so the live state
and each replayed one are what the other records say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.error_codes import ErrorCode as E
from broker.groups.records import OffsetRecord, parse
from broker.internal_topics import rewriting
from broker.internal_topics.batches import batches_in, is_begin_of_rewrite
from broker.internal_topics.rewriting import Rewrites
from logformat.errors import Retryable
from logformat.gap import gap_batches
from tests.support.fast_loop import run_fast
from tests.support.groups.group_world import GroupWorld
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog, MemoryPartition
from tests.unit.broker.groups.test_groups_open_offsets import mark, put, settle, stable

At = tuple[str, int]
PIDS, GROUPS, PARTITIONS = range(3), ("g0", "g1"), range(2)


class Model:
    """The offsets as the records say that are in the log for the first time."""

    def __init__(self) -> None:
        self.plain: dict[At, int] = {}
        self.opened: dict[int, dict[At, tuple[int, int, int]]] = {}  # by producer: (order, epoch, offset)
        self.order = 0

    def read(self, batches: Iterable[bytes]) -> None:
        for data in batches:
            for batch in batches_in(data):
                if batch.marker is not None:
                    self.end(batch.marker.producer_id, batch.marker.producer_epoch, batch.marker.is_commit)
                elif batch.rewrite is None:
                    self.records(batch.records)

    def records(self, records: Iterable[Any]) -> None:
        for key, value, producer in records:
            record = parse(key, value)
            if not isinstance(record, OffsetRecord):
                continue
            at, self.order = (record.key.group_id, record.key.partition), self.order + 1
            if producer is not None and record.value is not None:
                held = self.opened.setdefault(producer.producer_id, {})
                held[at] = (self.order, producer.producer_epoch, record.value.offset)
                continue
            self.override(at, self.order)
            if record.value is None:
                self.plain.pop(at, None)
            else:
                self.plain[at] = record.value.offset

    def override(self, at: At, before: int) -> None:
        for held in self.opened.values():
            if at in held and held[at][0] < before:
                del held[at]

    def end(self, pid: int, epoch: int, is_commit: bool) -> None:
        for at, (order, of_epoch, offset) in list(self.opened.get(pid, {}).items()):
            if of_epoch > epoch:
                continue
            self.opened[pid].pop(at, None)
            if is_commit:
                self.override(at, order)
                self.plain[at] = offset

    def epoch_of(self, pid: int) -> int:
        return max((row[1] for row in self.opened.get(pid, {}).values()), default=0)


class Log(MemoryOffsetsLog):
    """Calls `on_rewritten` when a batch of a rewrite is in the log, before that is known."""

    def __init__(self) -> None:
        super().__init__(1)
        self.writes_first = True
        self.on_rewritten: Callable[[], None] = lambda: None
        self.model = Model()
        self._read = 0

    def shard_log(self, index: int, leader_epoch: int = 1) -> MemoryPartition:
        return _Partition(self, index, leader_epoch)

    def modelled(self) -> Model:
        self.model.read(self.batches[0][self._read :])
        self._read = len(self.batches[0])
        return self.model

    def keep(self, batches: list[bytes]) -> None:
        """The disk is lost but for these."""
        self.modelled()
        self.batches[0], self._read = batches, len(batches)


class _Partition(MemoryPartition):
    def _write(self, batch: bytes) -> int:
        end = super()._write(batch)
        (found,) = batches_in(batch)
        if found.rewrite is not None:
            assert isinstance(self._log, Log)
            self._log.on_rewritten()
        return end


class World:
    def __init__(self) -> None:
        self.log = Log()
        self.w = GroupWorld(self.log)
        self.asked: list[asyncio.Task[Any]] = []
        self.number = 0

    def ask(self, step: tuple[Any, ...]) -> None:
        """Begin one of the steps that are records; markers are appended at once."""
        self.number += 1
        match step:
            case ("commit", group, partition, _):
                self.asked.append(self.w.ask(self.w.commit(group, self.number, partition=partition)))
            case ("open", group, partition, pid):
                epoch = self.log.modelled().epoch_of(pid)
                self.asked.append(self.w.ask(put(self.w, group, self.number, pid, epoch, partition)))
            case ("delete", group, _, _):
                self.asked.append(self.w.ask(self.w.groups.admin.delete(group)))
            case (("end" | "abort") as how, _, partition, pid):
                mark(self.w, pid, partition, is_commit=how == "end")  # of epoch 0 or 1

    async def quiet(self) -> None:
        await settle()
        for task in self.asked:
            async with asyncio.timeout(60):
                await task
        self.asked.clear()
        await settle()

    async def rewrite(self, how: str, meanwhile: list[tuple[Any, ...]], stop: int) -> None:
        """`meanwhile`: a step behind each batch of it. `how`: what happens behind the batch `stop`."""
        steps, count = iter(meanwhile), 0

        def rewritten() -> None:
            nonlocal count
            if (step := next(steps, None)) is not None:
                self.ask(step)
            count += 1
            if count == stop and how == "moved":
                self.w.move_leadership()
            elif count == stop and how == "failed":
                self.log.fail_after.append(Retryable("not committed in time"))

        self.log.on_rewritten = rewritten
        self.w.shard().growth.is_whole = False
        try:
            async with asyncio.timeout(60):
                await Rewrites(self.w.groups.log).write_due()
        finally:
            self.log.on_rewritten = lambda: None
            self.log.fail_after.clear()
        async with asyncio.timeout(60):
            await self.w.groups.log.wait_loaded()
        await self.quiet()

    async def load(self, how: str) -> None:
        if how == "snapshot":
            end, batches = await self.w.snapshot()
            self.log.snapshots[0] = end, batches
        elif how == "lost" and 0 in self.log.snapshots:
            await self.w.kill()
            end = self.log.snapshots[0][0]
            kept = [batch for batch in self.log.batches[0] if next(iter(batches_in(batch))).next_offset > end]
            if not kept or not is_begin_of_rewrite(kept[0]):  # else the log seems to start at that rewrite
                if not kept:  # a start declares the lost tail a gap before anything is appended
                    first = self.log.ends[0]
                    kept, self.log.ends[0] = list(gap_batches(first, first + 1, 1)), first + 1
                self.log.keep(kept)
                self.log.starts[0] = max(self.log.starts[0], end)
            await self.w.ready()
        elif how == "moved":
            self.w.move_leadership()
            await self.w.groups.log.wait_loaded()
        else:
            await self.w.restart()

    async def check(self) -> None:
        model = self.log.modelled()
        for group in GROUPS:
            for partition in PARTITIONS:
                at = group, partition
                assert await self.w.fetch(group, partition=partition) == model.plain.get(at, -1), at
                is_open = any(at in held for held in model.opened.values())
                assert (await stable(self.w, group, partition) == E.UNSTABLE_OFFSET_COMMIT) == is_open, at


_records = st.tuples(
    st.sampled_from(["commit", "open", "open", "open", "end", "end", "abort", "delete"]),
    st.sampled_from(GROUPS),
    st.sampled_from(PARTITIONS),
    st.sampled_from(PIDS),
)
_rewrites = st.tuples(
    st.just("rewrite"),
    st.sampled_from(["moved", "moved", "failed", "whole"]),
    st.lists(_records, max_size=6),
    st.integers(1, 8),
)
_loads = st.tuples(st.just("load"), st.sampled_from(["restart", "moved", "snapshot", "lost"]))


@pytest.mark.parametrize("batch", [1, 2, 200])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_records | _records | _rewrites | _loads, max_size=25), st.permutations(list(PIDS)))
def test_a_rewrite_changes_nothing(batch: int, steps: list[tuple[Any, ...]], order: list[int]) -> None:
    """At the end every transaction is committed, in any order, so that one which was forgotten shows."""

    async def whole() -> None:
        world = World()
        await world.w.ready()
        for step in steps:
            match step:
                case ("rewrite", how, meanwhile, stop):
                    await world.rewrite(how, meanwhile, stop)
                case ("load", how):
                    await world.load(how)
                case _:
                    world.ask(step)
                    await world.quiet()
            await world.check()
        await world.w.restart()
        await world.check()
        for pid in order:
            mark(world.w, pid, 1)
            await settle()
            await world.check()
        await world.w.restart()
        await world.check()
        await world.w.kill()
        assert not world.w.failures

    with mock.patch.object(rewriting, "_RECORDS_PER_BATCH", batch):
        run_fast(whole())
