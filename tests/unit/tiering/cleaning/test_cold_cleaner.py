"""Compaction of the bucket: what stays, what is replaced, and when the replaced goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec.structs import replace

from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.keys import SegmentKey, manifest_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_entries import REPLACED_MAX
from coldstore.object_store import Got, ObjectInfo, StoreUnavailable
from coldstore.roots.root import NewerFormat, RootCodec, RootFormat
from hotstore.cleaning.engine import LocalEngine
from logformat.record_batch import walk
from logformat.records import iter_records
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.tier_kit import DATA, LIMITS, LOG, TIER, TOPIC_ID, House, Life, cold_bytes, settle
from tests.support.workers import LoopWorkers
from tiering.cleaning import scratch
from tiering.copying.copier import NoLongerLive

COMPACT = replace(LOG, compacts=True, segment_bytes=2000, min_cleanable_dirty_ratio=0.0, delete_retention_ms=60_000)
COMPACT_TIER = replace(TIER, configs={"remote.storage.enable": "true", "cleanup.policy": "compact"})
FAST = replace(LIMITS, cold_compaction_bytes_per_hour=1 << 40, cold_compaction_grace_ms=600_000)
VALUE = b"v" * 300


def table(data: bytes) -> dict[bytes, tuple[int, bytes | None]]:
    """Key → newest (offset, value) in whole batches that follow each other; no key is in it twice with two offsets."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    expected = None
    for position, header in walk(data):
        assert expected in (None, header.base_offset)
        expected = header.next_offset
        if header.is_control:
            continue
        for record in iter_records(data[position : position + header.size]):
            assert record.key is not None
            found[record.key] = (record.offset, record.value)
    return found


def records_of(data: bytes) -> int:
    return sum(header.record_count for _, header in walk(data) if not header.is_control)


async def put_until_copied(life: Life, keys: int, rounds: int) -> dict[bytes, tuple[int, bytes | None]]:
    """`rounds` of new values for each key, sealed and copied; the newest of each."""
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for number in range(rounds):
        for key in range(keys):
            name, value = b"key-%d" % key, b"%d/" % number + VALUE
            newest[name] = (life.put((name, value)), value)
    await life.opened[0].tier.seal_and_copy()
    return newest


async def passed(life: Life) -> None:
    """Wait until the bucket is compacted to its end."""

    def is_clean() -> bool:
        manifest = life.opened[0].tier.partition_state.manifest
        return manifest is not None and 0 < manifest.remote_end_offset == manifest.clean_end_offset

    await settle(is_clean, within_s=700)


async def findings(house: House) -> list[str]:
    found = await BucketInspector(house.memory, LoopWorkers()).verify(TOPIC_ID, 0, deep=True)
    return [f"{each.kind.value}: {each.detail}" for each in found]


async def test_objects_lose_what_newer_ones_supersede_and_become_one() -> None:
    house = House()
    life = await house.start(limits=FAST)
    await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    newest = await put_until_copied(life, keys=5, rounds=6)
    await passed(life)
    manifest = await house.manifest()
    assert manifest.clean_end_offset == manifest.remote_end_offset
    data = cold_bytes(house, manifest)
    assert table(data) == newest
    assert records_of(data) == 5
    assert manifest.replaced and not house.failures
    assert await findings(house) == []
    await asyncio.sleep(500)
    assert len(house.objects()) > len(manifest.tail)
    await asyncio.sleep(120)
    assert house.objects() == sorted(str(each.key(TOPIC_ID, 0)) for each in manifest.tail)
    await life.stop()


async def test_full_objects_of_which_little_stays_become_one() -> None:
    """Each was as large as a segment, so by its size before cleaning no two would have joined."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    newest = await put_until_copied(life, keys=5, rounds=12)
    before = (await house.manifest()).tail
    assert len(before) >= 8 and all(2 * each.log_bytes > COMPACT.segment_bytes for each in before[:-1])
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    manifest = await house.manifest()
    assert len(manifest.tail) == 1 and table(cold_bytes(house, manifest)) == newest
    assert await findings(house) == [] and not house.failures
    await life.stop()


async def test_objects_of_which_all_stays_do_not_join() -> None:
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    newest = await put_until_copied(life, keys=60, rounds=1)
    before = (await house.manifest()).tail
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    manifest = await house.manifest()
    assert manifest.tail == before and len(before) >= 8 and table(cold_bytes(house, manifest)) == newest
    await life.stop()


async def test_the_first_replacement_raises_the_manifests_format() -> None:
    """A program from before would drop the list of replaced objects: it refuses the root."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=6)
    older = RootCodec(RootFormat.first(Manifest))
    key = manifest_key(TOPIC_ID, 0)
    before = await house.memory.get(key)
    assert older.decode(key, before).content == await house.manifest()
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    await asyncio.sleep(1000)
    manifest = await house.manifest()
    assert manifest.clean_end_offset and not manifest.replaced, "the grace is over"
    with pytest.raises(NewerFormat, match="format 2, but this version knows 1"):
        older.decode(key, await house.memory.get(key))
    await life.stop()


async def test_a_pass_goes_on_when_retention_deletes_an_object_before_it_is_rewritten() -> None:
    """The first part of a pass over a large topic takes hours within its budget. If each deletion ended the pass, the
    bucket of a topic with `compact,delete` would never be compacted."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=COMPACT_TIER)
    newest = await put_until_copied(life, keys=5, rounds=6)
    second = (await house.manifest()).tail[1]
    shared = life.service.cleaning
    assert shared is not None
    shared.bytes_per_hour = 200_000  # the pass takes several minutes
    opened.log.reconfigure(replace(COMPACT, segment_bytes=20_000))
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_ms=1))
    await settle(lambda: shared.counters.read_bytes > 0)
    assert shared.counters.written_bytes == 0 == shared.counters.passes
    await opened.tier.delete_records(second.base_offset)
    await passed(life)
    assert shared.counters.passes == 1
    assert table(cold_bytes(house, await house.manifest())) == newest
    await life.stop()


async def test_a_pass_ends_when_its_objects_were_withdrawn_though_the_configs_are_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiering was switched off and on within one pause of a pass: the log was copied again, with all its records. The
    pass noted the new objects as clean. Their older records stayed for ever, and a tombstone above them was removed."""
    monkeypatch.setattr(scratch, "KEPT_MAX", 0)
    house = House()
    life = await house.start(limits=replace(FAST, gc_grace_ms=600_000))
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=COMPACT_TIER)
    await put_until_copied(life, keys=5, rounds=1)
    gone = life.put((b"key-1", None))
    for number in range(40):
        life.put((b"other-%d" % number, VALUE))
    await opened.tier.seal_and_copy()
    shared = life.service.cleaning
    assert shared is not None
    shared.bytes_per_hour = 1_000_000  # a pause of some seconds after each object
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    end, state = opened.tier.remote_end_offset, opened.tier.partition_state
    await settle(lambda: bool(state.manifest and state.manifest.replaced), within_s=500)
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    opened.tier.reconfigure(replace(COMPACT_TIER, enabled=False, configs=off))
    await settle(lambda: state.manifest is not None and not state.manifest.live.segments, within_s=2)
    opened.tier.reconfigure(COMPACT_TIER)
    await settle(lambda: opened.tier.remote_end_offset == end, within_s=2)
    assert shared.counters.passes == 0, "the pass goes on"
    await asyncio.sleep(500)
    shared.bytes_per_hour = 1 << 40
    await passed(life)
    found = table(cold_bytes(house, await house.manifest()))
    assert found[b"key-1"] == (gone, None)
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_ms=0))
    await settle(lambda: opened.log.local_log_start_offset > gone)
    for _ in range(3):
        await asyncio.sleep(61)
        await put_until_copied(life, keys=1, rounds=60)
        await passed(life)
    assert b"key-1" not in table(cold_bytes(house, await house.manifest())), "a deleted key came back"
    assert await findings(house) == []
    await life.stop()


async def test_an_archive_is_never_touched() -> None:
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=3, rounds=6)
    before = await house.manifest()
    await asyncio.sleep(2000)
    assert await house.manifest() == before
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    assert (await house.manifest()).replaced
    await life.stop()


async def test_replaced_objects_stay_for_the_grace_and_then_go_whoever_leads() -> None:
    house = House()
    life = await house.start(limits=FAST)
    await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    await put_until_copied(life, keys=5, rounds=6)
    await passed(life)
    replaced = {str(each.key(TOPIC_ID, 0)) for each in (await house.manifest()).replaced}
    assert replaced and replaced <= set(house.objects())
    await life.kill()

    life = await house.start(limits=FAST)
    opened = await life.open(log=COMPACT, tier=COMPACT_TIER)
    await settle(lambda: opened.tier.partition_state.claimed)
    await asyncio.sleep(300)  # a collection of the claim comes after its grace
    assert replaced <= set(house.objects())
    assert await findings(house) == []
    await asyncio.sleep(320)
    manifest = await house.manifest()
    assert manifest.replaced == ()
    assert house.objects() == sorted(str(each.key(TOPIC_ID, 0)) for each in manifest.tail)
    assert await findings(house) == []
    assert not house.failures
    await life.stop()


async def test_garbage_of_a_failed_commit_that_was_replaced_stays_for_the_grace() -> None:
    """A commit whose outcome was unknown had named the object, and a later pass replaced it. Readers of an older root
    still need it, and so does the bucket until its replacement is verified."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    await put_until_copied(life, keys=5, rounds=6)
    await passed(life)
    each = (await house.manifest()).replaced[0]
    key, copier = each.key(TOPIC_ID, 0), opened.tier.expirer._copier
    copier.remember_garbage(key)
    await copier.collect_garbage()
    assert str(key) in house.objects() and not copier.has_garbage
    await life.stop()


async def test_garbage_of_a_pass_that_fails_beside_a_collection_is_deleted_too() -> None:
    """Regression: the copies' collection forgot the object that was noted last, not the one that it had deleted."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    await put_until_copied(life, keys=1, rounds=1)
    copier, store = opened.tier.expirer._copier, opened.tier.partition_state.store
    first, second = (SegmentKey(TOPIC_ID, 0, 1_000_000, 0, UUID(int=number)) for number in (1, 2))
    copier.remember_garbage(first)
    deleted: list[str] = []

    async def delete(keys: Sequence[str]) -> None:
        if not deleted:
            copier.remember_garbage(second)
        deleted.extend(keys)

    store.delete = delete  # type: ignore[method-assign]
    await copier.collect_garbage()
    assert deleted == [str(first), str(second)] and not copier.has_garbage
    await life.stop()


async def test_what_was_deleted_does_not_stay_in_replaced_objects() -> None:
    """DeleteRecords in the middle of a grace: objects that compaction replaced hold the same records, and go with them.
    They stayed until the grace's end."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    await put_until_copied(life, keys=40, rounds=2)
    life.put((b"key-35", VALUE))  # so that an object far above the first is replaced too
    await opened.tier.seal_and_copy()
    await passed(life)
    before = await house.manifest()
    named = before.tail[0]
    old = {str(each.key(TOPIC_ID, 0)) for each in before.replaced if each.base_offset < named.end_offset}
    others = {str(each.key(TOPIC_ID, 0)) for each in before.replaced} - old
    assert old and others and old <= set(house.objects())
    await opened.tier.delete_records(named.end_offset)
    await settle(lambda: not old & set(house.objects()), within_s=30)
    await asyncio.sleep(1)
    after = await house.manifest()
    assert after.deletion_cursor == named.end_offset
    assert {str(each.key(TOPIC_ID, 0)) for each in after.replaced} == others <= set(house.objects())
    assert await findings(house) == [] and not house.failures
    await life.stop()


@pytest.mark.parametrize("is_cleaned", [True, False], ids=["local log cleaned", "local segments deleted"])
async def test_a_tombstone_goes_only_when_nothing_older_lies_below_and_its_time_is_over(is_cleaned: bool) -> None:
    """Nothing older lies below it in the bucket, nor in the local log (`test_deletion_over_both_tiers`)."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    await put_until_copied(life, keys=3, rounds=3)
    gone = life.put((b"key-1", None))
    await put_until_copied(life, keys=1, rounds=7)
    await passed(life)
    if is_cleaned:
        await opened.open_log.lease.checkpoint_cleaned(gone + 1, lambda: None)  # type: ignore[union-attr]
    else:
        opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_ms=0))
        await settle(lambda: opened.log.local_log_start_offset > gone)
    for _ in range(2):
        found = table(cold_bytes(house, await house.manifest()))
        assert found[b"key-1"] == (gone, None)
        await asyncio.sleep(61)
        await put_until_copied(life, keys=1, rounds=12)
        await passed(life)
    found = table(cold_bytes(house, await house.manifest()))
    assert sorted(found) == [b"key-0", b"key-2"]
    assert await findings(house) == []
    await life.stop()


@pytest.mark.parametrize(("kept_max", "reads"), [(scratch.KEPT_MAX, 1), (2, 2), (0, 2)])
async def test_a_dirty_object_is_read_once_while_the_scratch_directory_has_room(
    kept_max: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for its keys and again to clean it, without room."""
    monkeypatch.setattr(scratch, "KEPT_MAX", kept_max)
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    newest = await put_until_copied(life, keys=5, rounds=6)
    await asyncio.sleep(5)
    keys = [str(each.key(TOPIC_ID, 0)) for each in (await house.manifest()).tail]
    found: Counter[str] = Counter()
    get = house.memory.get

    async def counted(key: str, start: int = 0, length: int | None = None) -> Got:
        found[key] += 1
        return await get(key, start, length)

    monkeypatch.setattr(house.memory, "get", counted)
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    counts = [found[key] for key in keys]
    assert counts == [1] * min(kept_max, len(keys)) + [2] * max(len(keys) - kept_max, 0) and max(counts) == reads
    assert table(cold_bytes(house, await house.manifest())) == newest
    scratch_directory = f"{DATA}/{scratch.SCRATCH_DIRECTORY}"
    assert house.disk.list_dir(scratch_directory) == []
    await life.stop()


async def test_a_record_stays_while_its_newer_one_is_on_the_disk_only() -> None:
    house = House()
    life = await house.start(limits=FAST)
    await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    held = await put_until_copied(life, keys=4, rounds=4)
    for key in range(4):
        life.put((b"key-%d" % key, b"only local"))
    await life.opened[0].flusher.flush()
    await passed(life)
    assert table(cold_bytes(house, await house.manifest())) == held
    await life.lose_disk()


async def test_an_object_that_cannot_be_read_is_named_and_the_partition_is_served() -> None:
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=3, rounds=6)
    segment = (await house.manifest()).tail[1]
    key = str(segment.key(TOPIC_ID, 0))
    sound = house.memory.objects[key]
    house.memory.objects[key] = replace(sound, data=sound.data[:40] + b"!" + sound.data[41:])
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await settle(lambda: bool(opened.tier.status().uncompacted_why))
    assert key in opened.tier.status().uncompacted_why
    assert not (await house.manifest()).replaced
    house.memory.objects[key] = sound
    await passed(life)
    assert opened.tier.status().uncompacted_why == ""
    await life.stop()


async def test_a_seal_that_meets_replaced_objects_verifies_what_took_their_place() -> None:
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    for _ in range(12):
        for number in range(12):
            life.put((b"key-%d" % (number % 3), VALUE))
        await opened.tier.seal_and_copy()
    await passed(life)
    await opened.tier.seal_and_copy()
    assert opened.tier.partition_state.sure_end_offset == opened.log.log_end_offset
    assert not house.failures
    await life.stop()


async def test_a_seal_pauses_while_the_commit_that_replaced_its_objects_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: it asked for the replaced objects again and again, without a pause."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=6)
    put, head, is_held, heads = house.memory.put_root, house.memory.head, asyncio.Event(), 0

    async def put_and_wait(key: str, data: bytes, if_match: str | None) -> str:
        etag = await put(key, data, if_match)
        if (await house.manifest()).replaced:
            is_held.set()
            await asyncio.Event().wait()
        return etag

    async def count(key: str) -> ObjectInfo:
        nonlocal heads
        heads += 1
        return await head(key)

    monkeypatch.setattr(house.memory, "put_root", put_and_wait)
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await asyncio.wait_for(is_held.wait(), 700)
    monkeypatch.setattr(house.memory, "head", count)
    sealing = asyncio.ensure_future(opened.tier.seal_and_copy())
    await asyncio.wait([sealing], timeout=5)
    assert 0 < heads < 100
    sealing.cancel()
    await life.kill()


async def test_passes_follow_one_another_while_the_map_becomes_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waited for five minutes: a bucket with ten maps of keys was dirty for an hour."""
    begin = LocalEngine.begin
    monkeypatch.setattr(LocalEngine, "begin", lambda engine, _, rules: begin(engine, 10 * 24, rules))
    house = House()
    life = await house.start(limits=FAST)
    await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    newest = await put_until_copied(life, keys=30, rounds=3)
    began_s = asyncio.get_running_loop().time()
    await passed(life)
    assert life.service.cleaning is not None and life.service.cleaning.counters.passes >= 5
    assert asyncio.get_running_loop().time() - began_s < 60
    assert table(cold_bytes(house, await house.manifest())) == newest
    await life.stop()


async def test_many_small_objects_are_compacted_in_several_groups() -> None:
    """Regression: objects that fit into one made one group, however many. A group of more objects than the root's list
    of replaced ones has room for was never replaced, and nothing above it."""
    house = House()
    life = await house.start(limits=replace(FAST, cold_compaction_grace_ms=60_000))
    log = replace(COMPACT, segment_bytes=600)
    opened = await life.open(new=True, log=replace(log, compacts=False), tier=TIER)
    newest = await put_until_copied(life, keys=5, rounds=120)
    assert (await house.manifest()).live.segments > REPLACED_MAX
    opened.log.reconfigure(replace(log, segment_bytes=1 << 30))
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    data = cold_bytes(house, await house.manifest())
    assert table(data) == newest and records_of(data) == 5
    await life.stop()


async def test_an_object_that_was_replaced_during_its_verification_does_not_count_as_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Local bytes would be deleted although the object that took its place may not be verified."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=6)
    entry, partition = (await house.manifest()).tail[0], opened.tier.partition_state
    head, may_answer = house.memory.head, asyncio.Event()

    async def late(key: str) -> ObjectInfo:
        if key == str(entry.key(TOPIC_ID, 0)):
            await may_answer.wait()
        return await head(key)

    monkeypatch.setattr(house.memory, "head", late)
    verifying = asyncio.create_task(opened.tier.expirer._copier.verify(entry))
    await asyncio.sleep(0)
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await passed(life)
    may_answer.set()
    with pytest.raises(NoLongerLive):
        await verifying
    assert entry not in partition.verified
    await life.stop()


async def test_retention_counts_the_bytes_that_are_left_when_a_pass_ends_beside_the_end_of_tiering() -> None:
    """Regression: while the root waited for the pass, retention kept the bucket's size of before. With the small
    objects of after, all records in the bucket were too many, also those that the disk holds."""
    house = House()
    life = await house.start(limits=FAST)
    local = replace(TIER, local_retention_bytes=6000)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=local)
    await put_until_copied(life, keys=5, rounds=20)
    await settle(lambda: opened.log.local_log_start_offset > 0)
    state, held, goes_on = opened.tier.partition_state, asyncio.Event(), asyncio.Event()
    put_root = house.memory.put_root

    async def put_late(key: str, *more: object) -> str:
        shared = life.service.cleaning
        if key == manifest_key(TOPIC_ID, 0) and shared is not None and shared.counters.written_bytes:
            held.set()
            await goes_on.wait()
        return await put_root(key, *more)  # type: ignore[arg-type]

    house.memory.put_root = put_late  # type: ignore[method-assign]
    opened.log.reconfigure(replace(COMPACT, segment_bytes=20_000, local_retention_bytes=6000))
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_bytes=6000))
    await asyncio.wait_for(held.wait(), 700)
    assert state.manifest is not None and state.manifest.live.log_bytes > 20_000
    start = opened.log.local_log_start_offset
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    opened.log.reconfigure(replace(COMPACT, tiered=False, compacts=False, retention_bytes=12_000))
    opened.tier.reconfigure(replace(COMPACT_TIER, enabled=False, retention_bytes=12_000, configs=off))
    await asyncio.sleep(3)
    goes_on.set()
    await settle(lambda: opened.log.log_start_offset >= start)
    await asyncio.sleep(3)
    assert opened.log.local_bytes < 12_000
    assert opened.log.log_start_offset == start == opened.log.local_log_start_offset
    await life.stop()


@pytest.mark.parametrize("is_default", [False, True], ids=["topic's config", "broker's config"])
async def test_a_pass_whose_configs_change_while_its_files_are_opened_ends(
    monkeypatch: pytest.MonkeyPatch, *, is_default: bool
) -> None:
    """Regression: the pass was planned by the old `min.compaction.lag.ms`, and noted the new configs as its own. It did
    not see at all that `log.cleaner.min.compaction.lag.ms` of all brokers was changed."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=6)
    before, opening = await house.manifest(), list[object]()
    open_files = scratch.ColdCleaning.open_files

    async def open_late(shared: scratch.ColdCleaning) -> scratch.ScratchFiles:
        files = await open_files(shared)
        if not opening:
            opening.append(files)
            lag_ms, lag = 86_400_000, {} if is_default else {"min.compaction.lag.ms": "86400000"}
            opened.log.reconfigure(replace(COMPACT, min_compaction_lag_ms=lag_ms))
            configs = COMPACT_TIER.configs | lag  # type: ignore[operator]
            opened.tier.reconfigure(replace(COMPACT_TIER, min_compaction_lag_ms=lag_ms, configs=configs))
        return files

    monkeypatch.setattr(scratch.ColdCleaning, "open_files", open_late)
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await settle(lambda: bool(opening), within_s=500)
    await asyncio.sleep(1000)
    assert (await house.manifest()).tail == before.tail and not house.failures
    await life.stop()


async def test_local_bytes_stay_if_their_verified_object_is_replaced_before_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: objects that a run of retention had verified were replaced while it verified later ones. It deleted
    the local bytes, although the object that took their place was not verified."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=6)
    state, before = opened.tier.partition_state, (await house.manifest()).tail
    keys = [str(entry.key(TOPIC_ID, 0)) for entry in before]
    head, asked, goes_on = house.memory.head, asyncio.Event(), asyncio.Event()

    async def head_late(key: str) -> ObjectInfo:
        if key not in keys:
            raise StoreUnavailable("the object that took their place is not verified")
        if key == keys[2]:
            asked.set()
            await goes_on.wait()
        return await head(key)

    monkeypatch.setattr(house.memory, "head", head_late)
    state.verified.forget_all()  # as after a change of leaders
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_bytes=1))
    await asyncio.wait_for(asked.wait(), 700)
    await passed(life)
    goes_on.set()
    await asyncio.sleep(5)
    manifest = state.manifest
    assert manifest is not None and manifest.was_replaced(before[0].uuid)
    assert opened.log.local_log_start_offset == 0
    await life.stop()


@pytest.mark.parametrize("due", ["before the root is read", "afterwards", "all the time"])
async def test_local_bytes_stay_if_the_commit_that_replaced_their_objects_has_no_answer(
    monkeypatch: pytest.MonkeyPatch, due: str
) -> None:
    """Regression: objects stayed verified when the commit that replaced them was stored and not answered, also when the
    root had been read again. Local bytes went, although the object that took their place was not verified."""
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=6)
    state, before = opened.tier.partition_state, (await house.manifest()).tail
    assert state.sure_end_offset == before[-1].end_offset
    keys = [str(entry.key(TOPIC_ID, 0)) for entry in before]
    head, put, get, is_away = house.memory.head, house.memory.put_root, house.memory.get, False

    async def head_old(key: str) -> ObjectInfo:
        if key not in keys:
            raise StoreUnavailable("the object that took their place is not verified")
        return await head(key)

    async def put_and_lose(key: str, data: bytes, if_match: str | None) -> str:
        nonlocal is_away
        if is_away:
            raise StoreUnavailable("away")
        etag = await put(key, data, if_match)
        known = state.manifest
        if known is None or known.replaced or not (await house.manifest()).replaced:
            return etag
        is_away = True
        raise StoreUnavailable("the answer is lost")

    async def get_or_not(key: str, start: int = 0, length: int | None = None) -> Got:
        if is_away and key == manifest_key(TOPIC_ID, 0):
            raise StoreUnavailable("away")
        return await get(key, start, length)

    monkeypatch.setattr(house.memory, "head", head_old)
    monkeypatch.setattr(house.memory, "put_root", put_and_lose)
    monkeypatch.setattr(house.memory, "get", get_or_not)
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await settle(lambda: is_away, within_s=700)
    if due != "afterwards":
        opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_bytes=1))
    await asyncio.sleep(60)
    if due != "before the root is read":
        is_away = False
        await state.manifests.load()
        assert state.manifest is not None and state.manifest.replaced
        opened.tier.reconfigure(replace(COMPACT_TIER, local_retention_bytes=1))
    await asyncio.sleep(20)
    assert opened.log.local_log_start_offset == 0
    await life.stop()


class ExpiringStore(MemoryStore):
    """Holds the GETs of `held` back. `is_refusing`: no root is stored."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__()
        self.objects = inner.objects
        self.held = ""
        self.is_held = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.is_refusing = False

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        if key == self.held:
            self.is_held.set()
            await self.goes_on.wait()
        return await super().get(key, start, length)

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if self.is_refusing:
            raise StoreUnavailable("503")
        return await super().put_root(key, data, if_match)


async def test_an_object_that_expires_before_a_pass_reads_it_is_not_reported_as_missing() -> None:
    """Regression: records were deleted during a pass, and the object after the grace, while the root still named it.
    The pass was counted as failed, and the status said that an object is missing."""
    house = House()
    store = ExpiringStore(house.memory)
    life = await house.start(limits=FAST, store=store)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER)
    await put_until_copied(life, keys=5, rounds=12)
    first, store.held = (await house.manifest()).tail[0], house.objects()[0]
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(COMPACT_TIER)
    await asyncio.wait_for(store.is_held.wait(), 700)
    await opened.tier.delete_records(first.end_offset)
    store.is_refusing = True
    await asyncio.sleep(8)  # the grace of 5 s is over, the store's time-out of 10 s is not
    assert store.held not in house.objects() and (await house.manifest()).deletion_cursor == 0
    store.goes_on.set()
    await asyncio.sleep(1)
    assert opened.tier.status().uncompacted_why == ""
    store.is_refusing = False
    await passed(life)
    await life.stop()
