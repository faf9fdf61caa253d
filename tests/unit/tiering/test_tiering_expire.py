"""Letting go: local bytes only when the bucket surely holds them, objects after the log start moved and the grace."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coldstore.object_store import ObjectInfo, StoreUnavailable, Upload
from coldstore.stores.directory import DirectoryStore
from coldstore.stores.operations import Operation
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from logformat.errors import Fenced, Retryable
from logformat.values import TopicPartition
from seams.files.disk import Space
from seams.rng import SeededRng
from tests.support.collector import without_collector
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.cold_values import remote_segment
from tests.support.tier.tier_kit import LIMITS, LOG, TIER, TOPIC, House, Life, Opened, read_everything, settle
from tests.support.workers import LoopWorkers
from tiering.expiry.cold_expirer import ExpiryVerdict, TotalRetention
from tiering.expiry.disk_quota import LocalBytes, cache_room, excess_bytes, room_bytes, share_pressure
from tiering.tier_config import TierConfig

COLD_FAST = replace(TIER, local_retention_ms=2_000)
UNTIERED = replace(TIER, enabled=False)
INTERNAL = replace(TIER, enabled=False, internal=True, topic="orders")


async def filled(house: House, tier: object = COLD_FAST, batches: int = 60) -> tuple[Life, Opened]:
    life = await house.start()
    opened = await life.open(new=True, tier=tier)  # type: ignore[arg-type]
    await life.fill(batches)
    return life, opened


def all_local_gone(opened: Opened) -> bool:
    return opened.log.local_log_start_offset == opened.log.active_info().base_offset


# ── pure ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(retention: TotalRetention, ends: Sequence[int], **changes: object) -> list[ExpiryVerdict]:
    return [retention.judge(remote_segment(end - 10, end, **changes)) for end in ends]


def test_size_retention_keeps_at_least_the_limit() -> None:
    """As Kafka counts: a segment goes only when what is left is still the limit or more. Each has 1000 bytes."""
    for limit, expired in ((4000, 0), (3999, 0), (3000, 1), (2001, 1), (2000, 2), (0, 4)):
        retention = TotalRetention(retention_ms=-1, retention_bytes=limit, total_bytes=4000, now_ms=0)
        verdicts = judge(retention, (10, 20, 30, 40))
        assert verdicts.count(ExpiryVerdict.EXPIRED) == expired, limit


def test_time_retention_counts_from_the_youngest_record() -> None:
    """Exactly the limit is still kept."""
    segment = remote_segment(0, 10, min_timestamp_ms=0, max_timestamp_ms=5000)
    for now_ms, verdict in ((8000, ExpiryVerdict.KEPT), (8001, ExpiryVerdict.EXPIRED)):
        retention = TotalRetention(retention_ms=3000, retention_bytes=-1, total_bytes=0, now_ms=now_ms)
        assert retention.judge(segment) is verdict


def test_a_gap_without_timestamps_goes_with_the_next_dated_segment() -> None:
    """A segment of declared gaps only neither blocks time retention nor goes by itself."""
    retention = TotalRetention(retention_ms=1, retention_bytes=-1, total_bytes=0, now_ms=10**15)
    undated = remote_segment(0, 10, min_timestamp_ms=-1, max_timestamp_ms=-1)
    assert retention.judge(undated) is ExpiryVerdict.UNDATED
    assert retention.judge(remote_segment(10, 20)) is ExpiryVerdict.EXPIRED


def test_pressure_takes_the_oldest_bytes_of_all_logs() -> None:
    """Whole segments, oldest first, until the excess is covered."""
    held = [LocalBytes(at, 100, owner, is_sure=True) for at, owner in ((5, "a"), (1, "b"), (2, "a"), (9, "b"))]
    assert share_pressure(held, 0) == ({}, 0)
    assert share_pressure(held, 150) == ({"b": 100, "a": 100}, 200)
    assert share_pressure(held, 1000) == ({"a": 200, "b": 200}, 400)


def test_what_nobody_verified_is_asked_for_but_does_not_count() -> None:
    """After a restart: the oldest first, and in their place as much of what surely goes."""
    held = [
        LocalBytes(at, 100, owner, is_sure=sure)
        for at, owner, sure in ((1, "a", False), (2, "b", True), (3, "b", True))
    ]
    assert share_pressure(held, 150) == ({"a": 100, "b": 200}, 200)
    assert share_pressure(held[:1], 150) == ({"a": 100}, 0)


def test_excess_is_over_the_set_limit_or_the_share_of_the_file_system() -> None:
    """Other programs' bytes on the file system are not asked of us."""
    assert excess_bytes(lambda: 500, Space(1000, 0), 400, 0.8) == 100
    assert excess_bytes(lambda: 500, Space(1000, 100), None, 0.8) == 100
    assert excess_bytes(lambda: 50, Space(1000, 0), None, 0.8) == 50


@given(st.integers(0, 2000), st.lists(st.integers(0, 400), min_size=1, max_size=8))
def test_cluster_d59_brokers_on_one_disk_answer_for_their_share_each(others: int, held: list[int]) -> None:
    """What is over is given back once, not once a broker; and as long as it is over, somebody goes on giving.

    Until 2026-11-23 each of N brokers gave back all of it.
    """
    total, brokers = 1000, len(held)
    while True:
        over = others + sum(held) - 800
        free = total - others - sum(held)
        space = Space(total, free)
        parts = [max(0, excess_bytes(partial(int, own), space, None, 0.8, brokers)) for own in held]
        if over <= 0 or not any(held):
            assert not any(parts)
            return
        assert 0 < sum(parts) <= over + brokers - 1
        assert all(part <= own for part, own in zip(parts, held, strict=True))
        held = [own - part for own, part in zip(held, parts, strict=True)]


@given(st.integers(0, 1000), st.integers(0, 100), st.integers(1, 8))
def test_caches_on_one_disk_share_what_is_free_and_what_is_over(used: int, cached: int, brokers: int) -> None:
    """All of them alike: together they pass the file system's share no more than one alone would."""
    cached = min(cached, used // brokers)
    room = cache_room(cached, Space(1000, 1000 - used), 500, 0.8, brokers)
    assert used + brokers * (room - cached) <= 800 or room == 0
    assert room_bytes(lambda: 1000, Space(1000, 10), 100, brokers) * brokers in range(90, 90 + brokers)


# ── local bytes ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_local_segments_go_once_they_are_verified_and_every_record_stays_readable() -> None:
    """Local retention drops what the bucket holds; reads go on over both tiers without a hole."""
    house = House()
    life, opened = await filled(house)
    await settle(lambda: all_local_gone(opened) and opened.log.local_log_start_offset > 0)
    assert opened.log.log_start_offset == 0
    assert len(await read_everything(house, opened)) == 60
    names = house.disk.list_dir(opened.log.path)
    assert [n for n in names if n.endswith(".log")] == [f"{opened.log.local_log_start_offset:020d}.log"]
    await life.stop()

    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert opened.log.log_start_offset == 0
    assert len(await read_everything(house, opened)) == 60
    await life.kill()


@pytest.mark.parametrize("fails", [False, True])
def test_local_segments_that_go_give_their_disk_back_at_once(fails: bool) -> None:
    """A deleted file's bytes are given back when nobody has it open. The soak of three brokers found copied ones open
    until Python's collector of cycles came by, ten minutes later; an S3 client's errors hold what they could not send
    the same way."""

    async def scenario() -> None:
        house = House()
        uploads: list[Upload] = []

        class Keeping(MemoryStore):
            async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
                uploads.append(body)
                if fails and len(uploads) % 2:
                    raise StoreUnavailable("not this time")
                return await super().put_segment(key, body)

        house.memory = house.store = Keeping()
        life, opened = await filled(house)
        files = [weakref.ref(segment.file) for segment in opened.log._locator.segments]
        await settle(lambda: all_local_gone(opened))
        assert len(uploads) >= 5 and len(files) > 5
        assert sum(file() is not None for file in files) <= 1, "the active segment's"
        await life.stop()

    with without_collector():
        run_fast(scenario())


async def test_local_bytes_stay_while_the_object_cannot_be_verified() -> None:
    """A HEAD that fails, an object that is gone or different: nothing local is dropped, status says damaged."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=COLD_FAST)
    store.script(Operation.HEAD, Fault.BEFORE, times=10**6)
    await life.fill(60)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
    await asyncio.sleep(20)
    assert opened.log.local_log_start_offset == 0
    key = house.objects()[0]
    kept = house.memory.objects.pop(key)
    store.calm()
    await settle(lambda: opened.tier.status().blocked_by == "damaged")
    await asyncio.sleep(20)
    assert opened.log.local_log_start_offset == 0
    house.memory.objects[key] = kept
    await settle(lambda: all_local_gone(opened))
    assert opened.tier.status().blocked_by is None
    await life.stop()


async def test_after_a_restart_objects_are_verified_again_before_local_bytes_go() -> None:
    """What an earlier process verified may have changed since: nothing is dropped on its word."""
    house = House()
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    await life.kill()
    key = house.objects()[0]
    del house.memory.objects[key]

    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    await asyncio.sleep(20)
    assert opened.log.local_log_start_offset == 0
    assert opened.tier.status().blocked_by == "damaged"
    await life.kill()


class HeldHead(MemoryStore):
    """Holds the HEAD of `held` back, before or after the store looked. `is_refusing`: no root is stored."""

    def __init__(self, inner: MemoryStore, *, looks_first: bool) -> None:
        super().__init__()
        self.objects = inner.objects
        self.held = ""
        self.is_held = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.is_refusing = False
        self._looks_first = looks_first

    async def head(self, key: str) -> ObjectInfo:
        seen = await super().head(key) if self._looks_first else None
        if key == self.held:
            self.is_held.set()
            await self.goes_on.wait()
        return seen or await super().head(key)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if self.is_refusing:
            raise StoreUnavailable("503")
        return await super().put_root(key, data, if_match)


@pytest.mark.parametrize(("looks_first", "is_named"), [(True, False), (False, False), (False, True)])
async def test_objects_that_expire_during_a_seal_are_not_reported_as_damaged(looks_first: bool, is_named: bool) -> None:
    """Regression: a seal verifies the objects of an earlier manifest. Records were deleted, and their objects after the
    grace, before their turn came: the seal failed, and the partition was reported as damaged."""
    house = House()
    store = HeldHead(house.memory, looks_first=looks_first)
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    await life.kill()
    life = await house.start(store=store)
    opened = await life.open()
    await settle(lambda: opened.tier.partition_state.claimed)
    objects, second = len(house.objects()), (await house.manifest()).tail[1]
    store.held = house.objects()[0]
    sealing = asyncio.ensure_future(opened.tier.seal_and_copy())
    await asyncio.wait_for(store.is_held.wait(), 30)
    await opened.tier.delete_records(second.end_offset)
    store.is_refusing = is_named
    await asyncio.sleep(8)  # the grace of 5 s is over, the store's time-out of 10 s is not
    assert len(house.objects()) == objects - 2
    assert ((await house.manifest()).deletion_cursor == 0) is is_named
    store.goes_on.set()
    await sealing
    assert opened.tier.status().blocked_by is None
    assert opened.tier.partition_state.sure_end_offset == 60
    store.is_refusing = False
    await life.stop()


async def test_local_bytes_of_an_idle_log_go_when_its_damaged_object_is_whole_again() -> None:
    """Limited by size alone, so that no time makes it due: nothing looked again before the next append."""
    house = House()
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    await life.kill()
    key = house.objects()[0]
    kept = house.memory.objects.pop(key)
    life = await house.start()
    opened = await life.open(tier=replace(TIER, local_retention_bytes=0))
    await asyncio.sleep(20)
    assert opened.log.local_log_start_offset == 0
    house.memory.objects[key] = kept
    await asyncio.sleep(20)
    assert opened.log.local_log_start_offset > 0 and opened.tier.status().blocked_by is None
    await life.kill()


async def test_nothing_local_goes_before_the_copy() -> None:
    """With the store down, local retention and disk pressure drop nothing (G12)."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store, limits=replace(LIMITS, local_bytes_max=1000))
    opened = await life.open(new=True, tier=COLD_FAST)
    store.down = True
    await life.fill(60)
    await asyncio.sleep(60)
    assert opened.log.local_log_start_offset == 0 and len(await read_everything(house, opened)) == 60
    store.down = False
    await settle(lambda: all_local_gone(opened))
    await life.stop()


async def test_disk_pressure_gives_back_copied_bytes_only() -> None:
    """Over thermocline.local.bytes.max the oldest copied segments go, though retention would keep them."""
    house = House()
    life = await house.start(limits=replace(LIMITS, local_bytes_max=5000))
    opened = await life.open(new=True, tier=TIER)
    await life.fill(100)
    await settle(lambda: opened.log.local_bytes <= 5000)
    assert opened.log.local_bytes > 2000, "no more than was asked for"
    assert len(await read_everything(house, opened)) == 100
    await life.stop()


async def test_a_power_cut_at_any_effect_of_expiry_leaves_a_log_that_opens() -> None:
    """Copy, then local expiry, cut off at every change of the disk."""
    at = 0
    while True:
        house = House(seed=at)
        life = await house.start()
        opened = await life.open(new=True, tier=TIER)
        await life.fill(40)
        await opened.tier.seal_and_copy()
        left = at

        def count(kind: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "the power is gone", path)

        house.disk.on_effect = count
        opened.tier.reconfigure(COLD_FAST)
        await asyncio.sleep(10)
        house.disk.on_effect = None
        done = all_local_gone(opened) and left >= 0
        await life.power_cut(keep=0.5)
        life = await house.start()
        opened = await life.open(tier=COLD_FAST)
        await settle(lambda opened=opened: opened.tier.partition_state.claimed)  # type: ignore[misc]
        assert len(await read_everything(house, opened)) == 40, at
        await life.kill()
        if done:
            break
        at += 1
    assert at > 10


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_total_retention_by_size_moves_the_start_then_waits_then_deletes() -> None:
    """The root's log start first, the grace, then the objects, then the cursor (KAFKA-15352)."""
    house = House()
    life, opened = await filled(house, COLD_FAST)
    await settle(lambda: all_local_gone(opened))
    before = house.objects()
    opened.tier.reconfigure(replace(COLD_FAST, retention_bytes=5000))
    await settle(lambda: opened.tier.log_start_offset > 0)
    start = opened.tier.log_start_offset
    assert house.objects() == before, "the grace has not passed"
    assert opened.log.log_start_offset == start
    await asyncio.sleep(LIMITS.gc_grace_ms / 1000 + 2)
    manifest = await house.manifest()
    assert manifest.deletion_cursor == start == manifest.log_start_offset
    assert len(house.objects()) == manifest.live.segments < len(before)
    manifest.check()
    held = manifest.live.log_bytes + opened.log.active_info().bytes
    assert held >= 5000 > held - manifest.tail[0].log_bytes
    assert sorted(await read_everything(house, opened)) == list(range(start, 60))
    await life.stop()


@pytest.mark.parametrize("how", ["expired", "purged"])
async def test_deleted_objects_do_not_keep_their_disk(how: str) -> None:
    """In a directory bucket a reader's chunk is the object's open file, and a deleted file's bytes are given back when
    nobody has it open: what retention or a deleted topic took out of the bucket is not at hand any more."""
    house = House()
    store = DirectoryStore(house.disk, LoopWorkers(), "/bucket", SeededRng(5))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=COLD_FAST)
    await life.fill(60)
    await settle(lambda: all_local_gone(opened))
    while isinstance(found := opened.tier.read(0, 1 << 20, min_one=True), asyncio.Future):
        await found
    assert found.ranges[0].file.path.startswith("/bucket/")
    at_hand = life.service.cold._table
    assert len(at_hand.chunks) and len(at_hand.segments)
    if how == "expired":
        opened.tier.reconfigure(replace(COLD_FAST, retention_ms=1))
        await settle(
            lambda: opened.tier.partition_state.manifest.live.segments == 0,
            within_s=LIMITS.gc_grace_ms / 1000 + 60,
        )
    else:
        await life.detach()
        await life.service.purge_topic(opened.tier.partition_state.topic_id, 1, lambda: True)
        life.opened.clear()
    assert not len(at_hand.chunks) and not len(at_hand.segments)
    await (life.stop() if how == "expired" else life.kill())
    await store.close()


async def test_peer_t21_total_retention_by_time_lets_everything_go_from_an_idle_topic() -> None:
    """KAFKA-15272: a segment that had just been rolled was never eligible, and did not expire while its topic idled.
    Records older than retention.ms go, oldest first, the last one too, when nothing comes any more."""
    house = House()
    life, opened = await filled(house, replace(COLD_FAST, retention_ms=20_000, seal_ms=5_000))
    await settle(lambda: opened.tier.remote_end_offset == 60)
    await asyncio.sleep(40)
    manifest = await house.manifest()
    assert manifest.log_start_offset == manifest.deletion_cursor == 60
    assert house.objects() == [] and manifest.live.segments == 0
    assert opened.log.log_start_offset == 60 == opened.log.local_log_start_offset
    life.append()
    await life.stop()
    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert opened.log.log_start_offset == 60 and opened.log.log_end_offset == 61
    await life.kill()


async def test_bytes_in_both_tiers_count_once() -> None:
    """What is local and cold is not deleted early (KAFKA-17062, KAFKA-15479)."""
    house = House()
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    total = (await house.manifest()).live.log_bytes
    opened.tier.reconfigure(replace(TIER, retention_bytes=total))
    await asyncio.sleep(20)
    assert opened.tier.log_start_offset == 0
    opened.tier.reconfigure(replace(TIER, retention_bytes=total // 2))
    await settle(lambda: opened.tier.log_start_offset > 0)
    await life.stop()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST])
async def test_a_deletion_that_fails_is_done_again(fault: Fault) -> None:
    """KAFKA-17428: deleting is repeated until the cursor has moved; nothing dangles."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    await life.open(new=True, tier=replace(COLD_FAST, retention_bytes=3000))
    store.script(Operation.DELETE, fault, times=3)
    await life.fill(60)
    await asyncio.sleep(30)
    manifest = await house.manifest()
    assert store.hits[fault] == 3
    assert 0 < manifest.deletion_cursor == manifest.log_start_offset
    assert len(house.objects()) == manifest.live.segments
    assert not house.failures
    await life.stop()


async def test_a_deletion_cut_off_by_a_kill_is_finished_by_the_next_life() -> None:
    """The root says what is left to delete; the next claim's writer waits its own grace and does it."""
    house = House()
    life, opened = await filled(house, replace(COLD_FAST, retention_bytes=3000))
    await settle(lambda: opened.tier.log_start_offset > 0)
    await asyncio.sleep(2)
    await life.kill()
    assert (await house.manifest()).deletion_cursor == 0
    life = await house.start()
    await life.open(tier=replace(COLD_FAST, retention_bytes=3000))
    await asyncio.sleep(2 * LIMITS.gc_grace_ms / 1000)
    manifest = await house.manifest()
    assert manifest.deletion_cursor == manifest.log_start_offset > 0
    assert len(house.objects()) == manifest.live.segments
    await life.kill()


# ── DeleteRecords ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_design_c26_delete_records_is_durable_before_it_answers() -> None:
    """C26: the log start is in the root when the call returns; a lost disk does not bring the records back."""
    house = House()
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    await opened.tier.delete_records(25)
    assert (await house.manifest()).log_start_offset == 25
    assert opened.log.log_start_offset == 25
    await life.lose_disk()
    life = await house.start()
    opened = await life.open()
    assert opened.log.log_start_offset == 25
    assert sorted(await read_everything(house, opened)) == list(range(25, 60))
    await life.kill()


async def test_design_c26_delete_records_fails_when_the_root_cannot_be_changed() -> None:
    """No root, no answer: the records stay readable."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: opened.tier.remote_end_offset > 0)
    store.down = True
    with pytest.raises(Exception, match="root") as refused:
        await opened.tier.delete_records(25)
    assert refused.type.__name__ in ("Retryable", "Unsettled")
    assert opened.log.log_start_offset == 0
    await life.kill()


async def test_delete_records_that_outlives_its_partition_writes_no_checkpoint() -> None:
    """The topic is deleted and made again while the bucket takes its time: the lines are the new log's by then."""
    house = House()
    life, opened = await filled(house, TIER)
    held = asyncio.Event()
    move_start = opened.tier.expirer.cold.move_start

    async def slowly(offset: int) -> None:
        await held.wait()
        await move_start(offset)

    opened.tier.expirer.cold.move_start = slowly  # type: ignore[method-assign]
    deleting = asyncio.ensure_future(opened.tier.delete_records(25))
    await asyncio.sleep(1)
    await life.detach()
    held.set()
    with pytest.raises(Fenced):
        await deleting
    assert life.data_dir.checkpoints.log_start(TopicPartition(TOPIC, 0)) != 25
    await life.kill()


async def test_delete_records_beyond_what_is_copied() -> None:
    """The deleted part is never copied; the next object begins at or below the log start, and the tiles still tile."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=replace(TIER, copy_disable=True))
    await life.fill(60)
    await opened.tier.delete_records(45)
    opened.tier.reconfigure(TIER)
    await opened.tier.seal_and_copy()
    manifest = await house.manifest()
    manifest.check()
    assert manifest.tail[0].base_offset <= 45 < manifest.tail[0].end_offset
    assert sorted(await read_everything(house, opened)) == list(range(45, 60))
    await life.stop()


async def test_delete_records_of_everything_then_go_on() -> None:
    """Up to the high watermark: nothing is left in either tier, offsets go on."""
    house = House()
    life, opened = await filled(house, COLD_FAST)
    await opened.tier.seal_and_copy()
    await opened.tier.delete_records(60)
    await asyncio.sleep(2 * LIMITS.gc_grace_ms / 1000)
    assert house.objects() == []
    assert life.append() == 60
    await opened.tier.seal_and_copy()
    assert (await house.manifest()).tail[0].base_offset == 60
    await life.stop()


# ── logs that are not tiered ─────────────────────────────────────────────────────────────────────────────────────────


OFF = replace(COLD_FAST, enabled=False, configs={"remote.storage.enable": "false"})


@pytest.mark.parametrize(
    ("kept", "before", "is_alone"),
    [
        (COLD_FAST, replace(COLD_FAST, retention_bytes=1), True),
        (COLD_FAST, replace(COLD_FAST, retention_bytes=1), False),
        (COLD_FAST, OFF, True),
        (COLD_FAST, OFF, False),
        (UNTIERED, replace(UNTIERED, retention_bytes=5000), False),
    ],
    ids=["cold", "cold, replicated", "switched off", "switched off, replicated", "not tiered, replicated"],
)
async def test_a_retention_that_is_raised_while_the_store_is_slow_keeps_what_was_due(
    kept: TierConfig, before: TierConfig, is_alone: bool
) -> None:
    """The log start was decided by the configs of before, and its commit was sent again and again until the store
    answered: up to half a minute after the new configs were acknowledged it took records that they keep."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=kept)
    opened.tier.partition_state.is_alone = is_alone
    await life.fill(60)
    await settle(lambda: all_local_gone(opened) or not kept.enabled)
    await asyncio.sleep(5)
    store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    opened.tier.reconfigure(before)
    await asyncio.sleep(3)
    assert store.hits[Fault.BEFORE]
    opened.tier.reconfigure(kept)
    store.calm()
    await asyncio.sleep(30)
    assert (await house.manifest()).log_start_offset == 0 and opened.log.log_start_offset == 0
    assert len(await read_everything(house, opened)) == 60
    await life.stop()


def slow_notes(logs: LogHost) -> asyncio.Event:
    """From now on the checkpoints of log starts wait for the event."""
    goes_on, note = asyncio.Event(), logs._note_start

    async def slowly(of: OpenLog) -> None:
        await goes_on.wait()
        await note(of)

    logs._note_start = slowly  # type: ignore[method-assign]
    return goes_on


@pytest.mark.parametrize("waits_for", ["the turn", "the disk"])
async def test_a_retention_that_is_raised_while_the_disk_is_slow_keeps_what_was_due(waits_for: str) -> None:
    """Regression: the log start of a log on one broker was decided by the configs of before, and waited for its turn,
    or for its checkpoint. It took records that the new configs keep."""
    kept, before = UNTIERED, replace(UNTIERED, retention_bytes=5000)
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=kept)
    await life.fill(60)
    goes_on = slow_notes(life.logs)
    at = opened.tier.partition_state.lease.opened.at
    turn = asyncio.ensure_future(at.alone(goes_on.wait)) if waits_for == "the turn" else None
    opened.tier.reconfigure(before)
    await asyncio.sleep(3)
    opened.tier.reconfigure(kept)
    goes_on.set()
    await asyncio.sleep(30)
    assert turn is None or turn.done()
    assert opened.log.log_start_offset == opened.log.local_log_start_offset == 0
    await life.kill()
    life = await house.start()
    opened = await life.open(tier=kept)
    assert opened.log.log_start_offset == 0
    assert len(await read_everything(house, opened)) == 60
    await life.stop()


async def test_a_retention_that_is_raised_as_the_role_ends_keeps_what_was_due() -> None:
    """Regression: the role ended while the disk wrote the checkpoint of the next log start. The start did not move, but
    the checkpoint kept it. A kill took records that the next role served, and that the configs keep."""
    kept, before = UNTIERED, replace(UNTIERED, retention_bytes=5000)
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=kept)
    await life.fill(60)
    goes_on = slow_notes(life.logs)
    opened.tier.reconfigure(before)
    await asyncio.sleep(3)
    opened.tier.reconfigure(kept)
    detached = asyncio.ensure_future(life.detach())
    await asyncio.sleep(1)
    goes_on.set()
    await detached
    life.epoch += 1
    opened = await life.open(tier=kept)
    assert len(await read_everything(house, opened)) == 60
    await life.kill()
    life = await house.start(epoch=life.epoch + 1)
    opened = await life.open(tier=kept)
    assert len(await read_everything(house, opened)) == 60
    await life.stop()


async def test_a_log_that_is_not_tiered_has_plain_retention() -> None:
    """By size and by time, the active segment rolled when it alone is too old; nothing reaches the bucket."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=replace(UNTIERED, retention_bytes=5000))
    await life.fill(60)
    await settle(lambda: opened.log.log_start_offset > 0)
    assert 5000 <= opened.log.local_bytes < 7500
    start = opened.log.log_start_offset
    await life.kill()
    life = await house.start()
    opened = await life.open(tier=replace(UNTIERED, retention_ms=30_000))
    assert opened.log.log_start_offset == start
    await asyncio.sleep(45)
    assert opened.log.log_start_offset == 60 == opened.log.log_end_offset
    assert house.objects() == []
    await life.stop()


async def test_of_a_rebuilt_cluster_no_local_record_goes_that_is_nowhere_else() -> None:
    """Found by a reader: retention was that of the defaults, as what was set on all brokers was lost (R29)."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=replace(UNTIERED, retention_bytes=5000))
    opened.tier.partition_state.is_complete = lambda: False
    await life.fill(60)
    await asyncio.sleep(45)
    assert opened.log.log_start_offset == 0 == opened.log.local_log_start_offset
    opened.tier.partition_state.is_complete = lambda: True
    await settle(lambda: opened.log.log_start_offset > 0)
    await life.stop()


async def test_a_lost_disk_begins_at_the_newest_snapshot_of_an_internal_topic() -> None:
    """Old ones go after the grace. What the disk has stays, whatever a snapshot holds: a load asks no bucket (ADR 17);
    it goes where the log start moved."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=INTERNAL)
    assert await opened.tier.read_snapshot() is None
    for n in range(3):
        end = await life.fill(20)
        await opened.tier.commit_snapshot(end, b"state %d" % n)
    assert await opened.tier.read_snapshot() == (60, b"state 2")
    await asyncio.sleep(2 * LIMITS.gc_grace_ms / 1000)
    assert len(house.objects("snapshots")) == 1 and house.objects() == []
    assert opened.log.local_log_start_offset == 0
    await opened.tier.delete_records(57)
    await asyncio.sleep(2 * LIMITS.retention_check_interval_ms / 1000)
    active = opened.log.active_info().base_offset
    assert 0 < active < opened.log.local_log_start_offset == opened.log.log_start_offset == 57
    assert opened.log.sealed_segments() == []
    await life.lose_disk()
    life = await house.start()
    opened = await life.open(tier=INTERNAL)
    assert await opened.tier.read_snapshot() == (60, b"state 2")
    assert opened.log.local_log_start_offset == 60 and opened.log.log_end_offset == 1000
    assert life.append() == 1000
    await life.kill()


async def test_a_snapshot_that_is_not_what_was_written_is_refused() -> None:
    """Bit rot in the bucket: Corrupt, never a wrong group state."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=INTERNAL)
    await opened.tier.commit_snapshot(0, b"state")
    key = house.objects("snapshots")[0]
    house.memory.objects[key].data = b"stote"
    with pytest.raises(Exception, match="not what was written"):
        await opened.tier.read_snapshot()
    await life.stop()


# ── deleted topics ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_purging_a_topic_deletes_its_root_last() -> None:
    """Segments, pages and snapshots first: a purge that is cut off is found again by its root."""
    order: list[str] = []

    class Noting(MemoryStore):
        async def delete(self, keys: Sequence[str]) -> None:
            order.extend(keys)
            await super().delete(keys)

    house = House()
    house.memory = house.store = Noting()
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    await life.detach()
    await life.service.purge_topic(opened.tier.partition_state.topic_id, 1, lambda: True)
    assert house.memory.objects == {}
    assert order[-1].endswith("manifest.json") and len(order) > 3
    await life.service.purge_topic(opened.tier.partition_state.topic_id, 1, lambda: True)
    life.opened.clear()
    await life.kill()


async def test_a_purge_that_the_store_only_pretended_is_noticed() -> None:
    """Cloudflare R2 answered 200 and kept the objects: the purge fails, so that it is tried again."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await life.fill(30)
    await opened.tier.seal_and_copy()
    await life.detach()
    store.script(Operation.DELETE, Fault.IGNORED, times=100)
    with pytest.raises(Exception, match="still listed"):
        await life.service.purge_topic(opened.tier.partition_state.topic_id, 1, lambda: True)
    store.calm()
    await life.service.purge_topic(opened.tier.partition_state.topic_id, 1, lambda: True)
    assert house.memory.objects == {}
    life.opened.clear()
    await life.kill()


def test_segment_bytes_of_the_test_log() -> None:
    """The scenarios above count on segments of 13 to 15 batches."""
    assert LOG.segment_bytes == 2000


async def test_a_log_start_that_moves_during_its_checkpoint_is_checkpointed_before_segments_go() -> None:
    """Regression: the start that DeleteRecords moved meanwhile counted as checkpointed. Its segments went, and after a
    crash the log did not open without the bucket."""
    house = House()
    life, opened = await filled(house, TIER)
    await opened.tier.seal_and_copy()
    partition, expirer = opened.tier.partition_state, opened.tier.expirer
    note, noted = life.logs.checkpoint_start, list[int]()

    async def moved_meanwhile(of: OpenLog) -> None:
        noted.append(of.log.log_start_offset)
        await note(of)
        if len(noted) == 1:
            await partition.move_start(lambda manifest: manifest.set_log_start(20))

    life.logs.checkpoint_start = moved_meanwhile  # type: ignore[method-assign]
    await expirer._drop_local(0)
    await expirer._drop_local(20)
    assert noted == [0, 20] and opened.log.local_log_start_offset > 0
    await life.stop()


@pytest.mark.parametrize("by", ["retention", "DeleteRecords"])
async def test_a_start_that_waits_for_its_disk_while_a_replica_is_assigned_asks_the_root_first(by: str) -> None:
    """Regression: whether the root has to name the new start was decided before the wait. The start of a log with
    replicas moved on one disk alone, so the next leader might serve what was deleted (R7)."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=UNTIERED)
    await life.fill(60)
    state, goes_on, note = opened.tier.partition_state, asyncio.Event(), life.logs._note_start
    is_held = asyncio.Event()

    async def slowly(of: OpenLog) -> None:
        is_held.set()
        await goes_on.wait()
        await note(of)

    life.logs._note_start = slowly  # type: ignore[method-assign]
    if by == "retention":
        opened.tier.reconfigure(replace(UNTIERED, retention_bytes=5000))
    else:
        deleting = asyncio.ensure_future(opened.tier.delete_records(30))
    await asyncio.wait_for(is_held.wait(), 30)
    state.is_alone = False
    goes_on.set()
    if by == "DeleteRecords":
        with pytest.raises(Retryable):
            await deleting
        assert opened.log.log_start_offset == 0 == (await house.manifest()).log_start_offset
        await opened.tier.delete_records(30)
    await settle(lambda: opened.log.log_start_offset > 0)
    assert (await house.manifest()).log_start_offset == opened.log.log_start_offset
    await life.stop()
