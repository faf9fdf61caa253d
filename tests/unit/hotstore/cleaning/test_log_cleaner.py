"""Passes over real logs of a data directory, through their leases: what survives, what a role's end leaves, what a full
disk and damage do, and which log is chosen."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from hotstore.cleaning.clean_pass import _open_outputs
from hotstore.cleaning.cleaner_config import CleanerConfig
from hotstore.cleaning.engine import CleanedSegment, LocalEngine
from hotstore.cleaning.log_cleaner import LogCleaner
from hotstore.host.data_dir import DataDir
from hotstore.host.lease import Lease, LeaseOver
from hotstore.host.log_host import LogHost
from hotstore.log.log_config import LogConfig
from hotstore.log.log_swap import SegmentRun
from logformat.compaction.filler import looks_like_filler
from logformat.compaction.rules import CleanRules
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import read_header
from logformat.records import Record, encode_batch, iter_records
from logformat.values import TopicPartition
from seams.files.syncs import WorkerSyncs
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    DATA,
    META,
    RecordingOwner,
    SteppedWorkers,
    append,
    read_all,
    small_steps_ahead,
)
from tests.support.fast_loop import FastClock

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, compacts=True, min_cleanable_dirty_ratio=0.01)
TABLE = TopicPartition("table", 0)
ID = UUID(int=5)

Pairs = Iterable[tuple[bytes, bytes | None]]


class Scene:
    """A data directory with compacted logs, and its cleaner; the work of the engine is done in this process."""

    def __init__(self, cleaner: CleanerConfig | None = None) -> None:
        at_once: Any = SteppedWorkers(immediate=True)
        net: Any = None
        self.disk = CrashDisk()
        self.clock = FastClock()
        self.world = World(self.disk, at_once, WorkerSyncs(at_once), self.clock, SeededRng(1), net)
        self.directory = DataDir.open(self.disk, DATA)
        self.directory.format(META)
        self.directory.remove_clean_marker()
        small_steps_ahead(self.directory)
        self.logs = LogHost(self.directory, self.world)
        self.engine = LocalEngine(SeededRng(2))
        self.config = cleaner or CleanerConfig()
        self.cleaner = LogCleaner(
            self.logs, self.world, lambda: self.config, lambda: LocalEngine(SeededRng(3)), lambda: True
        )

    async def lent(self, place: TopicPartition = TABLE, config: LogConfig = CONFIG, topic_id: UUID = ID) -> Lease:
        opened = await self.logs.create(place, topic_id, config)
        return self.lend(opened)

    def lend(self, opened: Any) -> Lease:
        lease = self.logs.lend(opened, "leader epoch 1")
        lease.listen(RecordingOwner())
        return lease

    async def put(self, lease: Lease, pairs: Pairs, a_batch: int = 2) -> None:
        """Append records, `a_batch` a batch; all of it is committed and flushed, small files written."""
        records = list(pairs)
        for at in range(0, len(records), a_batch):
            some = records[at : at + a_batch]
            data = encode_batch([Record(n, 1_000 + n, key, value) for n, (key, value) in enumerate(some)])
            append(lease.log, bytearray(data), 1, self.clock.wall_ms())
        await self.commit(lease)

    async def commit(self, lease: Lease) -> None:
        await lease.flusher.flush()
        lease.flusher.tick(self.clock.wall_ms())
        for _ in range(20):
            await asyncio.sleep(0)
        owner: Any = lease.log.owner
        owner.cleanable = lease.log.log_end_offset

    async def clean(self) -> bool:
        return await self.cleaner.clean_dirtiest(self.engine)


def table(lease: Lease) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every record a consumer gets."""
    found = []
    for data in read_all(lease.log, lease.log.local_log_start_offset):
        if not read_header(data).is_control:
            found += [(record.offset, record.key, record.value) for record in iter_records(data)]
    return found


def newest(pairs: Pairs) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, (key, value) in enumerate(pairs)}


async def test_the_newest_record_of_each_key_survives_at_its_offset() -> None:
    scene = Scene()
    lease = await scene.lent()
    pairs = [(b"k%d" % (n * 7 % 13), b"v%d" % n) for n in range(100)]
    await scene.put(lease, pairs)
    before = lease.log.local_bytes
    assert await scene.clean()
    active = lease.log.active_info().base_offset
    cleaned = newest(pairs[:active])
    expected = [(n, k, v) for n, (k, v) in enumerate(pairs) if n >= active or cleaned[k][0] == n]
    assert table(lease) == expected
    assert lease.log.local_bytes < before
    assert scene.logs.cleaned_offset(lease.opened) == active
    assert not await scene.clean()  # nothing is dirty now


async def test_the_log_stays_without_a_hole_and_opens_again() -> None:
    scene = Scene()
    lease = await scene.lent()
    pairs = [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)]
    await scene.put(lease, pairs)
    assert await scene.clean()
    batches = [read_header(data) for data in read_all(lease.log, 0)]
    assert all(one.next_offset == two.base_offset for one, two in pairwise(batches))
    assert any(looks_like_filler(header) for header in batches)
    found = table(lease)
    lease.end()
    assert await scene.logs.close(lease.opened, clean=True)
    opened = await scene.logs.open(TABLE, ID, CONFIG)
    assert opened is not None and opened.log.recovery.scanned_bytes <= 600
    assert table(scene.lend(opened)) == found


async def test_passes_go_on_until_a_small_map_has_seen_all_keys() -> None:
    """Ten times as many keys as the map holds: each pass cleans up to where its map was full."""
    scene = Scene(CleanerConfig(dedupe_buffer_bytes=24 * 64))
    lease = await scene.lent()
    pairs = [(b"k%d" % (n % 400), b"v%d" % n) for n in range(1_200)]
    await scene.put(lease, pairs)
    passes = 0
    while await scene.clean():
        passes += 1
        assert passes < 100
    assert passes > 5
    active = lease.log.active_info().base_offset
    cleaned = newest(pairs[:active])
    assert table(lease) == [(n, k, v) for n, (k, v) in enumerate(pairs) if n >= active or cleaned[k][0] == n]


async def test_a_role_that_ends_ends_the_pass_and_the_next_role_cleans() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    before = table(lease)
    work = asyncio.ensure_future(scene.clean())
    for _ in range(30):
        await asyncio.sleep(0)
    lease.end()
    await lease.returned()
    assert await work
    assert not scene.cleaner.uncleanable
    next_lease = scene.lend(lease.opened)
    await scene.commit(next_lease)
    assert set(table(next_lease)) <= set(before)
    assert await scene.clean()
    assert len(table(next_lease)) < len(before)
    assert not [name for name in next_lease.log.directory.list() if name.endswith(".cleaned")]


async def test_a_truncation_while_a_pass_runs_throws_its_result_away() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    work = asyncio.ensure_future(scene.clean())
    for _ in range(25):
        await asyncio.sleep(0)
    await lease.truncate(10)
    await work
    found = table(lease)
    assert lease.log.log_end_offset == 10 and all(offset < 10 for offset, _, _ in found)
    assert (scene.logs.cleaned_offset(lease.opened) or 0) <= 10
    await scene.put(lease, [(b"k%d" % (n % 3), b"w%d" % n) for n in range(80)])
    assert await scene.clean()
    active = lease.log.active_info().base_offset
    assert len([row for row in table(lease) if row[0] < active]) == 3


async def test_records_after_a_truncation_do_not_count_as_committed_by_an_earlier_pass() -> None:
    """Regression: the pass had mapped the log before its truncation. It noted its end as a high watermark, and an
    unclean start kept records by it that no replica had acknowledged."""
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    took, pairs = scene.cleaner._throttle.took, [(b"k%d" % (n % 3), b"w%d" % n) for n in range(80)]

    async def truncated_meanwhile(read_bytes: int) -> None:
        scene.cleaner._throttle.took = took  # type: ignore[method-assign]
        await lease.truncate(10)
        await scene.put(lease, pairs)

    scene.cleaner._throttle.took = truncated_meanwhile  # type: ignore[method-assign]
    assert await scene.clean()
    assert lease.log.log_end_offset == 90
    assert scene.directory.checkpoints.high_watermark(TABLE) <= 10


class Retention(LocalEngine):
    """An engine. After its first cleaned segment, retention deletes `count` segments of the log of `lease`."""

    def __init__(self, lease: Lease, count: int) -> None:
        super().__init__(SeededRng(4))
        self.lease = lease
        self.count = count

    def finish_segment(self) -> CleanedSegment:
        finished = super().finish_segment()
        count, self.count = self.count, 0
        if count:
            start = self.lease.log.sealed_segments()[count].base_offset
            self.lease.advance_log_start(start)
            assert len(self.lease.delete_local_before(start)) == count
        return finished


async def test_what_retention_leaves_of_a_run_is_cleaned_all_the_same() -> None:
    """A pass merges several segments. Retention deletes the first of them meanwhile. The old record of a deleted key in
    another of these segments must not stay: its tombstone goes after its time, and the key would be back."""
    scene = Scene()
    lease = await scene.lent(config=replace(CONFIG, delete_retention_ms=100_000))
    rest: list[tuple[bytes, bytes | None]] = [(b"x%d" % (n % 2), b"y" * 50) for n in range(16)]
    await scene.put(lease, [(b"first", b"v"), *rest, (b"gone", b"v"), *rest])
    assert await scene.clean()
    gone = next(offset for offset, key, _ in table(lease) if key == b"gone")
    small = [segment.end_offset for segment in lease.log.sealed_segments() if segment.end_offset <= gone]
    assert small, "retention has segments to delete below the record"
    await scene.put(lease, [(b"gone", None), *rest])
    retention = Retention(lease, len(small))
    assert await scene.cleaner.clean_dirtiest(retention)
    assert retention.count == 0 and lease.log.log_start_offset <= gone
    while await scene.clean():
        pass
    assert [value for _, key, value in table(lease) if key == b"gone"] == [None]
    await asyncio.sleep(101)
    await scene.put(lease, rest)
    while await scene.clean():
        pass
    assert b"gone" not in {key for _, key, _ in table(lease)}, "a deleted key is back"


async def test_a_full_disk_costs_the_pass_only_and_its_files_go() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    before = table(lease)
    scene.disk.capacity_bytes = 0
    assert await scene.clean()
    scene.disk.capacity_bytes = 1 << 40
    assert table(lease) == before and not lease.log.failure
    assert not [name for name in lease.log.directory.list() if name.endswith((".cleaned", ".swap"))]
    assert "no space" in scene.cleaner.uncleanable[TABLE].why
    assert not await scene.clean()  # it waits before it tries again
    await asyncio.sleep(301)
    assert await scene.clean() and TABLE not in scene.cleaner.uncleanable


async def test_damage_makes_a_log_uncleanable_and_others_are_cleaned() -> None:
    scene = Scene()
    lease = await scene.lent()
    other_place = TopicPartition("table", 1)
    other = await scene.lent(other_place)
    for each in (lease, other):
        await scene.put(each, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    scene.disk.flip_bit(f"{DATA}/table-0/{0:020d}.log", 80, 0)
    assert await scene.clean() and await scene.clean()
    assert "CRC" in scene.cleaner.uncleanable[TABLE].why and other_place not in scene.cleaner.uncleanable
    assert scene.logs.cleaned_offset(other.opened) == other.log.active_info().base_offset
    assert scene.cleaner.counters.failed_passes == 1


async def test_the_dirtiest_log_is_cleaned_first() -> None:
    scene = Scene()
    first, second = await scene.lent(), await scene.lent(TopicPartition("table", 1))
    for lease in (first, second):
        await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(40)])
    assert await scene.clean() and await scene.clean()
    await scene.put(second, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(60)])
    await scene.put(first, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(20)])
    assert await scene.clean()
    assert scene.logs.cleaned_offset(second.opened) == second.log.active_info().base_offset


async def test_a_quiet_log_rolls_after_the_maximal_lag_and_is_cleaned() -> None:
    scene = Scene()
    config = replace(CONFIG, segment_bytes=1 << 20, max_compaction_lag_ms=60_000, min_cleanable_dirty_ratio=1.0)
    lease = await scene.lent(config=config)
    await scene.put(lease, [(b"k", b"v%d" % n) for n in range(10)])
    assert not await scene.clean()
    await asyncio.sleep(61)
    assert not await scene.clean()  # it rolled; the next look finds the sealed segment
    assert lease.log.active_info().bytes == 0
    await scene.commit(lease)
    assert await scene.clean()
    assert [row[:2] for row in table(lease)] == [(9, b"k")]


@pytest.mark.parametrize("tiered", [False, True])
async def test_a_tombstone_goes_after_its_horizon_but_never_from_a_tiered_log(tiered: bool) -> None:
    scene = Scene()
    config = replace(CONFIG, delete_retention_ms=100_000, tiered=tiered)
    lease = await scene.lent(config=config)
    rest: list[tuple[bytes, bytes | None]] = [(b"x%d" % n, b"y" * 50) for n in range(20)]
    await scene.put(lease, [(b"k", b"v"), (b"k", None), *rest])
    assert await scene.clean()
    assert (1, b"k", None) in table(lease) and (0, b"k", b"v") not in table(lease)
    await asyncio.sleep(101)
    await scene.put(lease, rest)
    assert await scene.clean()
    assert ((1, b"k", None) in table(lease)) is tiered


# --- what the simulation found ----------------------------------------------------------------------------------------


async def test_a_tombstone_behind_a_full_map_does_not_go_before_its_key_is_known() -> None:
    """Simulated seed 13: the map was full before the tombstone, which got its horizon though older records of its key
    stayed; a later pass, full again before it, dropped it, and the key was back."""
    scene = Scene(CleanerConfig(dedupe_buffer_bytes=24 * 13))
    lease = await scene.lent(config=replace(CONFIG, segment_bytes=2_000, delete_retention_ms=1))
    pairs: list[tuple[bytes, bytes | None]] = [(b"gone", b"v")]
    pairs += [(b"k%d" % n, b"v") for n in range(25)]
    pairs += [(b"gone", None), *((b"l%d" % n, b"v" * 50) for n in range(60))]
    await scene.put(lease, pairs, a_batch=1)
    while await scene.clean():
        seen = [value for _, key, value in table(lease) if key == b"gone"]
        assert seen in ([b"v", None], [None], []), "its value without its tombstone"
        await asyncio.sleep(1)


async def test_a_role_that_ends_with_a_steps_answer_is_asked_for_no_more() -> None:
    """Simulated seed 40: the next step was a late effect of the role that was over."""
    for turns in range(120):
        scene = Scene()
        late: list[str] = []
        scene.logs.late_effect = late.append
        lease = await scene.lent()
        await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(30)])
        work = asyncio.ensure_future(scene.clean())
        for _ in range(turns):
            await asyncio.sleep(0)
        lease.end()
        await work
        assert not late, turns
        await lease.returned()


async def test_a_role_that_ends_while_another_log_is_rolled_is_not_rolled() -> None:
    """The flush of the first one takes a while."""
    scene = Scene()
    late: list[str] = []
    scene.logs.late_effect = late.append
    config = replace(CONFIG, segment_bytes=1 << 20, max_compaction_lag_ms=1_000)
    leases = [await scene.lent(TopicPartition("table", number), config) for number in range(2)]
    for lease in leases:
        append(lease.log, bytearray(encode_batch([Record(0, 1_000, b"k", b"v")])), 1, scene.clock.wall_ms())
    await asyncio.sleep(2)
    rolling = asyncio.ensure_future(scene.clean())
    await asyncio.sleep(0)
    leases[1].end()
    await rolling
    assert not late
    assert [lease.log.active_info().bytes for lease in leases] != [0, 0]


@pytest.mark.parametrize("offset", [20, 500], ids=["below its end", "above its end"])
async def test_a_log_that_begins_elsewhere_is_not_clean_after_a_power_cut_either(offset: int) -> None:
    """What was clean of the records before says nothing of those that are copied now: a tombstone among them would go,
    and leave what it deletes."""
    scene = Scene()
    lease = await scene.lent(config=replace(CONFIG, tiered=True))
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    assert await scene.clean() and (scene.logs.cleaned_offset(lease.opened) or 0) > 20
    await lease.begin_at(offset, LeaderEpochs(), (), forget_start=False)
    disk = scene.disk.crash(SeededRng(1), 0.0)
    directory = DataDir.open(disk, DATA)
    assert directory.checkpoints.cleaned_offset(TABLE) is None


# --- scenarios --------------------------------------------------------------------------------------------------------


def reopened(scene: Scene, keep: float = 0.0) -> Scene:
    """After a power cut."""
    again = Scene.__new__(Scene)
    at_once: Any = SteppedWorkers(immediate=True)
    net: Any = None
    again.disk, again.clock = scene.disk.crash(SeededRng(4), keep), scene.clock
    again.world = World(again.disk, at_once, WorkerSyncs(at_once), again.clock, SeededRng(1), net)
    again.directory = DataDir.open(again.disk, DATA)
    small_steps_ahead(again.directory)
    again.logs = LogHost(again.directory, again.world)
    again.engine = LocalEngine(SeededRng(2))
    again.config = scene.config
    again.cleaner = LogCleaner(
        again.logs, again.world, lambda: again.config, lambda: LocalEngine(SeededRng(3)), lambda: True
    )
    return again


async def test_a_swap_that_waited_for_its_turn_is_not_made_for_a_role_that_is_over() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    run, goes_on = SegmentRun(tuple(lease.log.sealed_runs()[:2])), asyncio.Event()
    size = await cleaned_beside(scene, lease, run)
    before = table(lease)
    turn = asyncio.ensure_future(lease.opened.at.alone(goes_on.wait))
    await asyncio.sleep(0)
    swap = asyncio.ensure_future(lease.swap(run, size, lambda: None))
    await asyncio.sleep(0.1)
    lease.end()
    goes_on.set()
    await turn
    with pytest.raises(LeaseOver):
        await swap
    assert table(lease) == before and lease.log.holds(run)


async def cleaned_beside(scene: Scene, lease: Lease, run: SegmentRun) -> int:
    """A finished cleaned segment for the run, not swapped in; its size."""
    engine, rules = scene.engine, CleanRules(scene.clock.wall_ms(), 1_000)
    engine.begin(1 << 16, rules)
    for segment in run.segments:
        engine.map(segment.file, 0, segment.size)
    engine.begin_segment(
        run.base_offset, CONFIG.index_interval_bytes, *_open_outputs(lease.log.directory, run.base_offset)
    )
    for segment in run.segments:
        engine.clean(segment.file, 0, segment.size)
    done = engine.finish_segment()
    engine.end()
    return done.size


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
async def test_a_power_cut_after_a_pass_takes_nothing(keep: float) -> None:
    """What was swapped in was synced before what it replaces went."""
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    assert await scene.clean()
    found = table(lease)
    again = reopened(scene, keep)
    opened = await again.logs.open(TABLE, ID, CONFIG)
    assert opened is not None and table(again.lend(opened)) == found


@pytest.mark.parametrize(
    ("kind", "skip"), [("create", 1), ("write", 0), ("write", 1), ("write", 2), ("sync", 0), ("sync", 2)]
)
async def test_a_disk_that_is_full_in_the_middle_of_a_segment_gets_its_space_back_at_once(kind: str, skip: int) -> None:
    """Not with the next pass, which comes in five minutes; and the next one finishes."""
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    before = table(lease)
    scene.disk.inject(kind, errno.ENOSPC, ".cleaned", skip=skip)
    assert await scene.clean() and TABLE in scene.cleaner.uncleanable
    assert table(lease) == before and not lease.log.failure
    assert not [name for name in lease.log.directory.list() if name.endswith((".cleaned", ".swap"))]
    scene.disk.heal()
    await asyncio.sleep(301)
    assert await scene.clean() and len(table(lease)) < len(before)


async def test_a_crash_loop_while_passes_run_keeps_the_newest_of_each_key() -> None:
    scene = Scene()
    lease = await scene.lent()
    pairs = [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)]
    await scene.put(lease, pairs)
    wanted = {key: (offset, value) for offset, key, value in table(lease)}
    for turns in range(0, 200, 7):
        work = asyncio.ensure_future(scene.clean())
        for _ in range(turns):
            await asyncio.sleep(0)
        before = scene
        scene = reopened(scene, 0.5)
        work.cancel()
        del before
        opened = await scene.logs.open(TABLE, ID, CONFIG)
        assert opened is not None
        lease = scene.lend(opened)
        await scene.commit(lease)
        assert {key: (offset, value) for offset, key, value in table(lease)} == wanted


async def test_only_what_is_committed_is_cleaned() -> None:
    """A record that a truncation may still take must not take an older one of its key with it."""
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % n, b"v%d" % n) for n in range(30)])
    await scene.put(lease, [(b"k%d" % (n % 30), b"w%d" % n) for n in range(60)])
    owner: Any = lease.log.owner
    owner.cleanable = 30
    before = table(lease)
    await scene.clean()
    assert table(lease) == before
    assert (scene.logs.cleaned_offset(lease.opened) or 0) <= 30
    await lease.truncate(30)
    assert {key for _, key, _ in table(lease)} == {b"k%d" % n for n in range(30)}


async def test_a_truncation_lowers_the_checkpoint_durably() -> None:
    """Else what comes there next counts as clean: nothing older of its keys would go, and its tombstones would."""
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    assert await scene.clean() and (scene.logs.cleaned_offset(lease.opened) or 0) > 20
    await lease.truncate(20)
    end = lease.log.log_end_offset
    assert (scene.logs.cleaned_offset(lease.opened) or 0) <= end <= 20
    assert (reopened(scene).directory.checkpoints.cleaned_offset(TABLE) or 0) <= end


async def test_a_topic_made_again_by_the_name_is_dirty() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    work = asyncio.ensure_future(scene.clean())
    for _ in range(40):
        await asyncio.sleep(0)
    lease.end()
    assert await work
    await lease.returned()
    await scene.logs.set_aside(TABLE, ID)
    again = await scene.lent(topic_id=UUID(int=6))
    assert scene.logs.cleaned_offset(again.opened) is None
    assert not [name for name in again.log.directory.list() if name.endswith((".cleaned", ".swap"))]
    await scene.put(again, [(b"k%d" % (n % 3), b"w%d" % n) for n in range(90)])
    assert await scene.clean()
    assert all(value is not None and value.startswith(b"w") for _, _, value in table(again))


async def test_a_tombstone_stays_until_its_horizon() -> None:
    scene = Scene()
    lease = await scene.lent(config=replace(CONFIG, delete_retention_ms=100_000))
    rest: list[tuple[bytes, bytes | None]] = [(b"x%d" % n, b"y" * 50) for n in range(20)]
    await scene.put(lease, [(b"k", b"v"), (b"k", None), (b"lone", None), *rest])
    assert await scene.clean()
    await asyncio.sleep(90)
    await scene.put(lease, rest)
    assert await scene.clean()
    assert {(1, b"k", None), (2, b"lone", None)} <= {*table(lease)}


async def test_a_producer_goes_on_across_its_cleaned_last_batch() -> None:
    """Its batches are gone from the log; its state is not: what is sent again is known, what comes next is taken, also
    after a restart that reads nothing of them."""
    scene = Scene()
    lease = await scene.lent()
    for sequence in range(6):
        records = [Record(0, 1_000, b"k", b"p%d" % sequence)]
        data = encode_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence)
        append(lease.log, bytearray(data), 1, scene.clock.wall_ms())
    await scene.put(lease, [(b"k", b"v%d" % n) for n in range(60)])
    assert await scene.clean()
    assert not [row for row in table(lease) if (row[2] or b"").startswith(b"p")]
    state = lease.log.producers.at(lease.log.log_end_offset).state()
    lease.end()
    assert await scene.logs.close(lease.opened, clean=True)
    opened = await scene.logs.open(TABLE, ID, CONFIG)
    assert opened is not None
    assert opened.log.producers.at(opened.log.log_end_offset).state() == state
    assert [entry.producer_id for entry in state.producers] == [9]
    crashed = reopened(scene)
    opened = await crashed.logs.open(TABLE, ID, CONFIG)
    assert opened is not None
    assert opened.log.producers.at(opened.log.log_end_offset).state() == state


async def test_a_policy_that_is_switched_while_a_pass_runs_does_it_no_harm() -> None:
    """To delete and back: the log has no hole, what is cleaned stays clean."""
    scene = Scene()
    lease = await scene.lent()
    pairs = [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)]
    await scene.put(lease, pairs)
    work = asyncio.ensure_future(scene.clean())
    for _ in range(25):
        await asyncio.sleep(0)
    lease.log.config = replace(CONFIG, compacts=False)
    await work
    found = table(lease)
    assert not await scene.clean()
    lease.log.config = CONFIG
    await scene.put(lease, [(b"k%d" % (n % 3), b"w%d" % n) for n in range(60)])
    assert await scene.clean()
    assert {row[1] for row in table(lease)} == {row[1] for row in found}


async def test_a_lookup_by_time_and_a_fetch_below_the_cleaned_offset_find_what_is_there() -> None:
    scene = Scene()
    lease = await scene.lent()
    for n in range(90):
        data = encode_batch([Record(0, 1_000 + n, b"k%d" % (n % 3), b"v" * 20)])
        append(lease.log, bytearray(data), 1, scene.clock.wall_ms())
    await scene.commit(lease)
    assert await scene.clean()
    rows = table(lease)
    for n in range(90):
        found = read_all(lease.log, n)
        assert read_header(found[0]).base_offset <= n < read_header(found[0]).next_offset
    offsets = [offset for offset, _, _ in rows]
    for offset in offsets[:3]:
        at = lease.log.offset_for_timestamp(1_000 + offset)
        assert at is not None and at.offset == offset


# --- a pass and the log that it was planned for -----------------------------------------------------------------------


async def test_a_tombstone_stays_while_the_bucket_holds_what_it_deletes() -> None:
    """Tiering was switched off, and the objects of before are read on: there may be the older value."""
    scene = Scene()
    lease = await scene.lent(config=replace(CONFIG, delete_retention_ms=1))
    owner: Any = lease.log.owner
    owner.in_bucket = True
    await scene.put(lease, [(b"k", b"v"), *((b"a%d" % n, b"y" * 50) for n in range(20))])
    rest: list[tuple[bytes, bytes | None]] = [(b"x%d" % n, b"y" * 50) for n in range(20)]
    await scene.put(lease, [(b"k", None), *rest])
    tombstone = next(row for row in table(lease) if row[1:] == (b"k", None))
    for _ in range(3):
        assert await scene.clean()
        await asyncio.sleep(10)
        await scene.put(lease, rest)
    assert tombstone in table(lease)
    owner.in_bucket = False
    for _ in range(3):
        assert await scene.clean()
        await asyncio.sleep(10)
        await scene.put(lease, rest)
    assert tombstone not in table(lease)


def without_cleaning(lease: Lease) -> list[str]:
    return [name for name in lease.log.directory.list() if name.endswith(".cleaned")]


class Before:
    """An engine that calls `hook` when it was asked to finish its segment `number`: before the swap of that segment."""

    def __init__(self, engine: LocalEngine, number: int, hook: Any) -> None:
        self._engine, self._left, self._hook = engine, number, hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def finish_segment(self) -> Any:
        self._left -= 1
        if self._left == 0:
            self._hook()
        return self._engine.finish_segment()


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, compacts=False),
        replace(CONFIG, tiered=True),
        replace(CONFIG, min_compaction_lag_ms=3_600_000),
        replace(CONFIG, delete_retention_ms=10**12),
    ],
    ids=["cleanup.policy=delete", "remote.storage.enable=true", "min.compaction.lag.ms", "delete.retention.ms"],
)
async def test_a_pass_ends_when_the_topic_is_no_longer_what_it_was_planned_for(config: LogConfig) -> None:
    """What `delete` keeps, what is not in the bucket yet, and what stays for a longer time now, stays; nothing is noted
    as clean."""
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    before = table(lease)
    engine: Any = Before(scene.engine, 1, lambda: lease.log.reconfigure(config))
    assert await scene.cleaner.clean_dirtiest(engine)
    assert table(lease) == before and not without_cleaning(lease)
    assert scene.logs.cleaned_offset(lease.opened) is None and not scene.cleaner.uncleanable
    lease.log.reconfigure(CONFIG)
    assert await scene.clean()
    assert len(table(lease)) < len(before)


async def test_a_pass_ends_when_the_topic_was_tiered_meanwhile() -> None:
    """It is tiered no more, with the configs that the pass was planned for. But the bucket holds what a tombstone
    deletes, and the pass would remove the tombstone."""
    scene = Scene()
    lease = await scene.lent(config=replace(CONFIG, delete_retention_ms=1))
    owner: Any = lease.log.owner
    rest: list[tuple[bytes, bytes | None]] = [(b"x%d" % n, b"y" * 50) for n in range(20)]
    await scene.put(lease, [(b"k", b"v"), *rest, (b"k", None), *rest])
    assert await scene.clean()
    await asyncio.sleep(10)
    await scene.put(lease, rest)
    tombstone = next(row for row in table(lease) if row[1:] == (b"k", None))

    def switch() -> None:
        lease.log.reconfigure(replace(lease.log.config, tiered=True))
        owner.in_bucket = True
        lease.log.reconfigure(replace(lease.log.config, tiered=False))

    engine: Any = Before(scene.engine, 1, switch)
    assert await scene.cleaner.clean_dirtiest(engine)
    assert tombstone in table(lease) and not without_cleaning(lease)
    for _ in range(2):
        assert await scene.clean()
        await asyncio.sleep(10)
        await scene.put(lease, rest)
    assert tombstone in table(lease)


@pytest.mark.parametrize("cut", [True, False])
async def test_a_pass_planned_before_a_cut_or_a_beginning_elsewhere_is_over(cut: bool) -> None:
    """A key's newest record may have gone with the cut; of the log that began elsewhere nothing is clean."""
    scene = Scene()
    lease = await scene.lent()
    rest = [(b"x%d" % n, b"y" * 50) for n in range(20)]
    await scene.put(lease, [(b"k", b"old"), *rest[:10], (b"k", b"new"), *rest])
    newest_at = next(offset for offset, key, value in table(lease) if value == b"new")
    loop = asyncio.get_running_loop()
    work: list[asyncio.Task[None]] = []

    def change() -> None:
        coroutine = (
            lease.truncate(newest_at)
            if cut
            else lease.begin_at(lease.log.log_end_offset, LeaderEpochs(), (), forget_start=False)
        )
        work.append(loop.create_task(coroutine))

    engine: Any = Before(scene.engine, 1, change)
    assert await scene.cleaner.clean_dirtiest(engine)
    await work[0]
    assert not scene.cleaner.uncleanable and not without_cleaning(lease)
    assert scene.logs.cleaned_offset(lease.opened) is None
    if cut:
        assert (0, b"k", b"old") in table(lease)


async def test_what_a_killed_broker_left_of_a_pass_goes_at_its_start() -> None:
    scene = Scene()
    lease = await scene.lent()
    await scene.put(lease, [(b"k%d" % (n % 3), b"v%d" % n) for n in range(90)])
    run = SegmentRun(tuple(lease.log.sealed_runs()[:2]))
    await cleaned_beside(scene, lease, run)
    lease.log.directory.sync()
    assert without_cleaning(lease)
    again = reopened(scene, 1.0)
    opened = await again.logs.open(TABLE, ID, CONFIG)
    assert opened is not None
    assert not [name for name in opened.log.directory.list() if name.endswith(".cleaned")]


async def test_an_idle_slot_reaps_the_process_of_its_engine() -> None:
    """A process that ended because it was idle would stay a zombie until the next pass."""
    scene = Scene(CleanerConfig(backoff_ms=1_000))
    reaped: list[float] = []
    for engine in scene.cleaner._engines:
        engine.reap = lambda: reaped.append(asyncio.get_running_loop().time())  # type: ignore[method-assign]
    slot = asyncio.ensure_future(scene.cleaner.services()["log cleaner 0"]())
    await asyncio.sleep(10.5)
    slot.cancel()
    assert len(reaped) == 11
