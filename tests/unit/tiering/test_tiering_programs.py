"""Random programs over one partition's life: no acknowledged record is lost, changed, or shown again once deleted,
and the log start moves only for a reason.

A program mixes what alone is sound: roots whose answers are late or lost, tiering switched off and on, replicas that
come and go, DeleteRecords, retention, compaction, seals, and ends of the process or of the disk. The model is the list
of acknowledged records, the greatest answered deletion, and the greatest start that a config in force made due.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.keys import manifest_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.object_store import Got, ObjectInfo, ObjectStore, StoreUnavailable, Upload
from coldstore.roots.root_format import RootCodec
from coldstore.segments.segment_object import footer_start
from coldstore.stores.operations import Operation
from hotstore.cleaning.clean_pass import PassOver
from hotstore.cleaning.cleaner_config import CleanerConfig
from hotstore.cleaning.engine import LocalEngine
from hotstore.cleaning.log_cleaner import LogCleaner
from hotstore.errors import LogFull, ReservationExhausted
from hotstore.host.lease import Lease
from hotstore.host.open_log import OpenLog
from hotstore.log.log_config import LogConfig
from hotstore.log.segment import Segment
from logformat.errors import ThermoclineError
from logformat.record_batch import INT64_MAX, walk
from logformat.records import iter_records
from seams.rng import SeededRng
from tests.support.disk.hotstore_kit import RecordingOwner
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.tier.tier_kit import LIMITS, LOG, TIER, TOPIC_ID, House, Life, Opened, local_bytes, settle
from tests.support.workers import LoopWorkers
from tests.unit.tiering.cleaning.test_cold_readers_move_on import cold_read
from tiering.partition_state import TieredPartition
from tiering.tier_config import TierConfig

FAST: Final = replace(LIMITS, cold_compaction_bytes_per_hour=1 << 40)
CODEC: Final[RootCodec[Manifest]] = RootCodec(MANIFEST_FORMAT)
FILLERS: Final = 1500
"""Bytes that fillers, gaps and headers may add to a log, beyond what was appended: retention by bytes counts them."""

Record: TypeAlias = "tuple[bytes, bytes | None]"


# hold: a PUT of the root waits, or its answer is lost; release: it continues; land: late PUTs of the root arrive.
# stale: the broker's metadata image is stale; damage: compacted objects are damaged; recover: all of this ends.
STORIES: Final = (
    # what happens in what order; each word is left out at times, and others come between
    "fill, wait, kill|stop|power cut, put, delete|configs, wait, check",
    "fill, wait, hold|store, configs, delete|put, replica|wait, kill|new disk, check",
    "fill, seal, wait, configs, configs, wait, new disk",
    # a life that does not get its claim
    "fill, wait, no puts, no gets, kill|stop, off|configs, delete, wait, new disk",
    "on, fill, wait, no puts, no gets, kill|stop, off, due, wait, wait, wait, new disk",
    # a copy whose commit has no answer, when tiering is switched off
    "hold|store, no gets|wait, fill, wait, off, delete|due, wait, new disk|release, check",
    "off, fill, on, recover, hold, reserve|put, fill, wait, off, delete|due, wait, stale|wait, release, wait, new disk",
    # a start that only the disk knows, when tiering is switched on
    "off, fill, wait, delete|due, wait, stale|no puts, on, wait, wait, new disk",
    "off, fill, slow disk, delete|due, on, wait, stale|wait, wait, wait, new disk",
    "compact, off, fill, on, recover, hold, reserve, fill, wait, off, fill, wait, release, wait, on, seal, wait, "
    "new disk",
    # a withdrawal whose commit has no answer, when tiering is switched on again
    "on, fill, seal, wait, hold, off, wait, on, replica, seal, wait, begin, release|land, wait, begin, kill|new disk",
    # compaction whose commit has no answer, when local segments are due
    "on, fill, wait, damage, slow store|wait, no heads|wait, compact, fill, local, wait, wait, check",
    "on, fill, fill, wait, damage, hold, no gets, no puts|wait, compact, wait, local, wait, recover, wait, check",
    "on, fill, compact, slow disk|slow store, damage, no heads|wait, local, wait, fill, local, wait, check",
)
ANYTHING: Final = (
    "put, put, fill, delete, delete, seal, begin, replica, store, recover, release, land, roll, reserve, on, off, "
    "compact, local, due, configs, configs, hold, no gets, no puts, slow disk, slow store, stale, no heads, stop, "
    "kill, power cut, wait, wait, wait, check"
)


class Configs(msgspec.Struct, frozen=True):
    """A topic's configs that change during a program."""

    is_on: bool = True
    copy_disable: bool = False
    compacts: bool = False
    delete_retention_ms: int = 0
    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int = -1
    local_retention_bytes: int = -1


class FaultyRoots(FaultyStore):
    """Each PUT of a root takes the next of `modes`; a stored object is damaged with the chance `damages`."""

    def __init__(self, inner: ObjectStore, rng: random.Random) -> None:
        super().__init__(inner, SeededRng(rng.random()))
        self.random = rng
        self.modes: list[str] = []
        self.usual = "answered"
        self.late: list[tuple[str, bytes, str | None]] = []
        self.released = asyncio.Event()
        self.damages = 0.0
        self.last_base = -1
        self.damaged: set[str] = set()
        self.copies: set[str] = set()  # as far as they were not sent twice
        self.named: set[str] = set()  # objects that an attempt at a root named, stored or not

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        mode = self.modes.pop(0) if self.modes else self.usual
        self.named |= {str(each.key(TOPIC_ID, 0)) for each in CODEC.decode(key, Got(data, "", len(data))).content.tail}
        if mode == "not stored":
            raise StoreUnavailable(f"PUT {key}: made up (not stored)")
        if mode == "late":
            self.late.append((key, data, if_match))
            raise StoreUnavailable(f"PUT {key}: made up (stored late, perhaps)")
        if mode == "on its way":
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.late.append((key, data, if_match))
                raise
        etag = await super().put_root(key, data, if_match)
        if mode == "lost":
            raise StoreUnavailable(f"PUT {key}: made up (the answer was lost)")
        if mode == "held":
            await self.released.wait()
        return etag

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        base = int(key.rsplit("/", 1)[1].split("-")[0])
        is_compacted = base < self.last_base
        if base > self.last_base:
            self.copies.add(key)
            self.last_base = base
        info = await super().put_segment(key, body)
        if is_compacted and self.random.random() < self.damages:
            memory = self._inner
            stored = memory.objects[key]  # type: ignore[attr-defined]
            data = stored.data[:70] + bytes([stored.data[70] ^ 1]) + stored.data[71:]
            memory.objects[key] = replace(stored, data=data, crc32c=crc32c(data))  # type: ignore[attr-defined]
            self.damaged.add(key)
        return info

    def release(self) -> None:
        """Let the waiting PUTs continue."""
        self.released.set()
        self.released = asyncio.Event()

    async def land(self) -> None:
        """Roots that are late arrive; their conditions hold or not."""
        late, self.late = self.late, []
        self.random.shuffle(late)
        for each in late:
            with suppress(Exception):
                await self._inner.put_root(*each)

    def fail_reads(self, match: str = "") -> None:
        for operation in (Operation.GET, Operation.GET_IF_CHANGED):
            self.script(operation, Fault.BEFORE, match=match, times=10**6)

    def recover(self) -> None:
        self.calm()
        self.modes.clear()
        self.usual = "answered"
        self.release()


class Owner(RecordingOwner):
    """The log's owner, as `LeaderReplica` without followers."""

    def __init__(self, lease: Lease, partition: TieredPartition) -> None:
        super().__init__()
        self._lease = lease
        self._partition = partition

    def cleanable_end(self) -> int:
        log = self._lease.log
        end = log.stable_end_offset
        return min(end, self._partition.sure_end_offset) if log.config.tiered else end

    def tombstones_end(self) -> int:
        return INT64_MAX if self._partition.is_alone else 0

    def is_in_bucket(self) -> bool:
        return self._partition.is_in_bucket


def keyed(data: bytes, what: str) -> dict[int, Record]:
    """Offset → record of a run of whole batches."""
    found: dict[int, Record] = {}
    for position, header in walk(data):
        if not header.is_control:
            for record in iter_records(data[position : position + header.size]):
                assert record.key is not None, what
                found[record.offset] = record.key, record.value
    return found


class Program:
    """One random program: `acts` are drawn from `seed`."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.house = House(seed=seed)
        self.store = FaultyRoots(self.house.memory, rng)
        self.configs = Configs(
            is_on=rng.random() < 0.7,
            compacts=rng.random() < 0.4,
            delete_retention_ms=rng.choice([0, 1000, 60_000]),
            local_retention_bytes=rng.choice([-1, -1, -1, 0, 4000]),
        )
        self.was_compacted = self.configs.compacts
        self.is_alone = True
        self.can_damage = rng.random() < 0.5
        self.limits = replace(
            FAST,
            gc_grace_ms=rng.choice([300, 5000]),
            cold_compaction_grace_ms=rng.choice([1000, 20_000]),
            store_timeout_s=rng.choice([2.0, 10.0]),
            reservation_offsets=rng.choice([64, 1000]),
        )
        self.slow_s = 0.0
        self.is_fresh = True
        self.number = 0
        self.given: dict[int, Record] = {}  # every offset that a record ever got
        self.acked: dict[int, Record] = {}  # not lost with a disk, and not known to be below the log start
        self.stamps: dict[int, int] = {}
        self.sizes: dict[int, int] = {}  # of batches, by base offset
        self.deleted = 0  # the greatest start of an answered DeleteRecords
        self.allowed = 0  # the greatest start for which there was a reason
        self.shown = 0  # the greatest start that was shown, and that the disk or the root knows
        self.hidden = 0  # the greatest start that was shown before the disk was lost
        self.is_filled = False  # the log has bytes that nobody appended: fillers of gaps, or of compaction
        self.sealed = 0  # the bucket has all below it, by an answered seal
        self.begun = 0  # a replica began here, above the bucket
        self.cleaned = 0  # records below it may supersede others, though the bucket has none of them
        self.outdated: set[str] = set()  # objects that no root named when tiering was switched off
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self.works: set[asyncio.Task[None]] = set()
        self.life: Life
        self.opened: Opened

    def say(self, *words: object) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():.2f} " + " ".join(str(word) for word in words))

    # ── lives ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, *, new: bool = False) -> None:
        self.life = life = await self.house.start(limits=self.limits, store=self.store)
        self._slow_down(life)
        for attempt in range(1000):
            try:
                self.opened = await life.open(
                    new=new, log=self._log_config(), tier=self._tier_config(), is_alone=self.is_alone
                )
                break
            except (ThermoclineError, OSError) as refused:
                assert attempt < 20, refused
                self.say("refused", refused)
                if attempt == 5:
                    self.store.recover()
                await asyncio.sleep(1)
        lease = self.opened.open_log.lease
        assert lease is not None
        state = self.opened.tier.partition_state
        lease.listen(Owner(lease, state))
        state._is_fresh = lambda: self.is_fresh
        self._watch_local_bytes(self.opened)
        cleaner = LogCleaner(
            life.logs,
            life.world,
            lambda: CleanerConfig(backoff_ms=700),
            lambda: LocalEngine(SeededRng(1)),
            lambda: True,
        )
        life.tasks.spawn("cleaner", cleaner.services()["log cleaner 0"]())

    def _slow_down(self, life: Life) -> None:
        note = life.logs._note_start

        async def slowly(of: OpenLog) -> None:
            await asyncio.sleep(self.slow_s)
            await note(of)

        life.logs._note_start = slowly  # type: ignore[method-assign]

    def _watch_local_bytes(self, opened: Opened) -> None:
        """Local bytes go only if the stored root names sound objects in their place, or begins above them."""
        delete, log = opened.log.delete_local_before, opened.log

        def watched(offset: int) -> list[Segment]:
            key = manifest_key(TOPIC_ID, 0)
            stored = self.house.memory.objects[key]
            root = CODEC.decode(key, Got(stored.data, stored.etag, len(stored.data))).content
            for each in root.tail:
                first = max(each.base_offset, log.local_log_start_offset, log.log_start_offset)
                if first < min(each.end_offset, offset) and str(each.key(TOPIC_ID, 0)) in self.store.damaged:
                    self.wrong.append(f"local bytes of {first} go, but its object is damaged")
            return delete(offset)

        log.delete_local_before = watched  # type: ignore[method-assign]

    def _log_config(self) -> LogConfig:
        of = self.configs
        return replace(
            LOG,
            tiered=of.is_on,
            compacts=of.compacts,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=of.delete_retention_ms,
        )

    def _tier_config(self) -> TierConfig:
        fields = msgspec.structs.asdict(self.configs)
        is_on = fields.pop("is_on")
        configs = {name: str(value) for name, value in fields.items()}
        configs["remote.storage.enable"] = "true" if is_on else "false"
        if not is_on:
            configs["remote.log.delete.on.disable"] = "true"
        return replace(TIER, enabled=is_on, configs=configs, **fields)

    async def end(self, how: str) -> None:
        for work in tuple(self.works):
            work.cancel()
        await asyncio.gather(*self.works, return_exceptions=True)
        self.check_start()
        was_on, is_same_disk = self.configs.is_on, how != "new disk"
        if how == "stop":
            state, end = self.opened.tier.partition_state, self.opened.log.log_end_offset
            may_seal = state.config.copies and not (state.switch_offs or self.store.damaged)
            is_sealed = may_seal and self.rng.random() < 0.3
            if is_sealed:
                self.store.recover()
                self.is_fresh = True
            await self.life.stop(seal=is_sealed)
            self.sealed = max(self.sealed, end * is_sealed)
        elif how == "kill":
            await self.life.kill()
        elif how == "power cut":
            await self.life.power_cut(keep=0.5)
        else:
            await self.life._end()
            if self.rng.random() < 0.5:
                await self.store.land()
            await self._lose()
            self.house.lose_disk()
        if self.rng.random() < 0.2:
            self.configs = self._drawn_configs()
            self.was_compacted |= self.configs.compacts
            self.say("configs", self.configs)
        await self.start()
        if was_on and not self.configs.is_on:
            if is_same_disk:
                self.allowed = max(self.allowed, self.opened.log.local_log_start_offset)
            self.sealed = 0

    async def _lose(self) -> None:
        """What the bucket does not hold is lost with the disk."""
        cold, root, end = await self.cold()
        self.say("the bucket has", root, end, "records", len(cold))
        below = {offset: each for offset, each in self.acked.items() if root <= offset < end}
        missing = [offset for offset in self.acked if end <= offset < self.sealed]
        assert not missing, f"sealed below {self.sealed}, but the bucket ends at {end}"
        cold = {offset: each for offset, each in cold.items() if offset >= root}
        superseding = {o: each for o, each in self.acked.items() if root <= o < max(end, self.cleaned)}
        self.compare(superseding, cold, "in the bucket", end)
        self.hidden, self.shown, self.is_filled = max(self.hidden, self.shown), root, True
        self.acked = {offset: each for offset, each in below.items() if offset in cold}
        self.begun = 0

    async def cold(self) -> tuple[dict[int, Record], int, int]:
        """Records of the bucket by the stored root, its log start, and its end."""
        view = await BucketInspector(self.house.memory, LoopWorkers()).view(TOPIC_ID, 0)
        assert view is not None
        manifest = view.manifest
        found: dict[int, Record] = {}
        first = end = manifest.log_start_offset
        for segment in view.live:
            if segment.end_offset > first:
                follows = segment.base_offset <= end if end == first else segment.base_offset == end
                assert follows, f"an object begins at {segment.base_offset}, and the one before ends at {end}"
                end = segment.end_offset
            key = str(segment.key(TOPIC_ID, 0))
            assert key not in self.outdated, f"{key} is named, though tiering was switched off during its copy"
            if key not in self.store.damaged and (segment.end_offset > first or key in self.house.memory.objects):
                found |= self._records_of(key)
            elif key in self.store.damaged:  # whose sound sources stay
                for each in manifest.replaced:
                    source = str(each.key(TOPIC_ID, 0))
                    if segment.base_offset <= each.base_offset < segment.end_offset:
                        found |= self._records_of(source)
        return found, first, end

    def _records_of(self, key: str) -> dict[int, Record]:
        """An object's records; none if it is damaged or deleted."""
        stored = self.house.memory.objects.get(key)
        if stored is None or key in self.store.damaged:
            return {}
        return keyed(stored.data[: footer_start(stored.data, len(stored.data))], key)

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_start(self) -> None:
        """What retention made due under the configs in force, and that the start has a reason."""
        of, log = self.configs, self.opened.log
        now_ms = self.life.world.clock.wall_ms()
        if of.retention_ms >= 0:
            kept = [o for o, stamp in self.stamps.items() if stamp >= now_ms - of.retention_ms and o >= self.allowed]
            self.allowed = max(self.allowed, min(kept, default=log.log_end_offset))
        if of.retention_bytes >= 0:
            left = FILLERS if self.is_filled or self.was_compacted else 0
            if left >= of.retention_bytes:
                self.allowed = max(self.allowed, log.log_end_offset)
            for base in sorted(self.sizes, reverse=True):
                left += self.sizes[base]
                if left >= of.retention_bytes:
                    self.allowed = max(self.allowed, base)
                    break
        start = self.opened.tier.partition_state.log_start_offset
        assert start >= self.shown or not self.opened.tier.partition_state.claimed, (
            f"the log start went back from {self.shown} to {start}"
        )
        self.shown = max(self.shown, start)
        if of.compacts and not of.is_on:
            self.cleaned = log.log_end_offset
        newest = {key: offset for offset, (key, _) in sorted(self.acked.items())}
        below = [offset for offset in self.acked if offset < start]
        gone = [o for o in below if not self.was_compacted or (newest[self.acked[o][0]] == o and self.acked[o][1])]
        assert not gone or max(gone) < self.allowed, (
            f"the log starts at {start}, and {max(gone)} went though nothing at or above {self.allowed} was due"
        )
        for offset in below:
            del self.acked[offset]

    async def check_always(self) -> None:
        """What holds at any time, whatever the store does."""
        self.check_start()
        assert not self.wrong, self.wrong
        local = self.opened.log.local_log_start_offset
        _, root, end = await self.cold()
        start = max(self.opened.log.log_start_offset, root)
        assert local <= max(start, end), f"local bytes below {local} went, but the bucket ends at {end}"
        if self.begun:
            assert self.begun <= max(start, end), f"a replica began at {self.begun}, but the bucket ends at {end}"

    async def check(self) -> None:
        self.store.recover()
        self.slow_s, self.is_fresh = 0.0, True
        opened = self.opened
        await settle(lambda: opened.tier.partition_state.claimed, within_s=300)
        await asyncio.sleep(self.rng.choice([0.0, 0.5, 3.0]))
        found: dict[int, Record] = {}
        for _ in range(200):
            self.check_start()
            root = await self.house.manifest()
            found = await self.read()
            if root == await self.house.manifest():
                break
            await asyncio.sleep(0.05)
        start = opened.tier.partition_state.log_start_offset
        below = min(found, default=INT64_MAX)
        assert below >= self.deleted, f"{below} is shown again: records below {self.deleted} were deleted"
        assert below >= max(self.shown, self.hidden), f"{below} is shown again: the log began at {self.shown}"
        for offset, record in found.items():
            assert self.given.get(offset) == record, f"offset {offset} holds {record}, not {self.given.get(offset)}"
        self.check_start()
        wanted = {o: each for o, each in self.acked.items() if o >= start}
        self.compare(wanted, found, "in the log")
        if not self.store.damaged:
            fetched, local = await self.fetched(start)
            hot = {offset: record for offset, record in found.items() if offset >= local}
            self.compare(wanted, fetched | hot, "as it is fetched")

    def compare(self, wanted: dict[int, Record], found: dict[int, Record], where: str, end: int = INT64_MAX) -> None:
        """Nothing is missing `where`, but what compaction may remove."""
        newest = {wanted[offset][0]: offset for offset in sorted(wanted)}
        keys = {key for key, _ in found.values()}
        for offset, (key, value) in wanted.items():
            if offset >= end:
                continue  # it was in no bucket, but the only replica was cleaned by it
            if offset in found:
                assert found[offset] == (key, value), f"{offset} is changed {where}"
                continue
            assert self.was_compacted, f"{offset} is missing {where}"
            if newest[key] == offset:
                assert value is None, f"{offset}, the newest of {key!r}, is missing {where}"
                assert key not in keys, f"{key!r} is back {where}: its deletion at {offset} is missing"

    async def read(self) -> dict[int, Record]:
        """All records from the log start on, cold below the local start."""
        log = self.opened.log
        cold, _, _ = await self.cold()
        start, local = self.opened.tier.partition_state.log_start_offset, log.local_log_start_offset
        found = {offset: record for offset, record in cold.items() if start <= offset < local}
        hot = keyed(local_bytes(log, max(start, local), log.log_end_offset), "on the disk")
        return found | {offset: record for offset, record in hot.items() if offset >= max(start, local)}

    async def fetched(self, start: int) -> tuple[dict[int, Record], int]:
        """The records below the local start as a consumer gets them, and this start."""
        found: dict[int, Record] = {}
        local, offset = self.opened.log.local_log_start_offset, start
        while offset < local:
            data = await cold_read(self.life, offset)
            assert data, f"a fetch of {offset} has no data"
            found |= {at: record for at, record in keyed(data, "fetched").items() if start <= at < local}
            offset = max(header.next_offset for _, header in walk(data))
        for at, record in found.items():
            assert self.given.get(at) == record, f"a fetch of offset {at} returned {record}"
        return found, local

    # ── acts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def work(self, doing: Awaitable[None]) -> None:
        async def to_its_end() -> None:
            with suppress(ThermoclineError, OSError, TimeoutError):
                await doing

        task = asyncio.ensure_future(to_its_end())
        self.works.add(task)
        task.add_done_callback(self.works.discard)

    async def fill(self) -> None:
        """So much that segments are sealed."""
        await self.put(self.rng.choice([25, 40]))

    async def put(self, batches: int = 0) -> None:
        rng, opened = self.rng, self.opened
        new: dict[int, Record] = {}
        for _ in range(batches or rng.choice([1, 3, 10, 25])):
            records: list[Record] = []
            for _ in range(rng.choice([1, 1, 3])):
                self.number += 1
                key = b"key-%d" % rng.randrange(6)
                is_gone = self.configs.compacts and rng.random() < 0.3
                records.append((key, None if is_gone else b"%d/" % self.number + b"v" * rng.choice([10, 150])))
            try:
                base = self.life.put(*records)
            except (ReservationExhausted, LogFull):
                opened.tier.reserve_soon(opened.log.log_end_offset + 10)
                await asyncio.sleep(0.5)
                continue
            self.sizes[base] = 70 + sum(10 + len(key) + len(value or b"") for key, value in records)
            for at, record in enumerate(records):
                assert base + at not in self.given, f"offset {base + at} is given twice"
                self.given[base + at] = new[base + at] = record
                self.stamps[base + at] = self.life.world.clock.wall_ms()
        await opened.flusher.flush()
        self.acked.update(new)

    async def delete(self) -> None:
        log = self.opened.log
        first, end = log.log_start_offset, log.log_end_offset
        offset = min(end, first + self.rng.choice([1, 7, 20, (end - first) // 2, end - first]))
        if offset <= first:
            return
        self.allowed = max(self.allowed, offset)
        tier = self.opened.tier
        self.say("delete", offset)

        async def deleting() -> None:
            async with asyncio.timeout(60):
                await tier.delete_records(offset)
            self.say("deleted", offset)
            self.deleted = max(self.deleted, offset)

        self.work(deleting())

    async def seal(self) -> None:
        tier, end = self.opened.tier, self.opened.log.log_end_offset
        if not tier.partition_state.config.copies:
            return

        async def sealing() -> None:
            async with asyncio.timeout(30):
                await tier.seal()
            if tier.partition_state.config.copies and not tier.partition_state.switch_offs:
                self.sealed = end
                self.say("sealed", end)

        self.work(sealing())

    def _drawn_configs(self) -> Configs:
        rng, of = self.rng, self.configs
        match rng.choice(["on", "on", "on", "copy", "local", "local", "total", "total", "compact", "no retention"]):
            case "on":
                of = replace(of, is_on=not of.is_on)
            case "copy":
                of = replace(of, copy_disable=not of.copy_disable)
            case "local":
                of = replace(
                    of, local_retention_bytes=rng.choice([-1, 0, 0, 3000]), local_retention_ms=rng.choice([-1, 2000])
                )
            case "total":
                of = replace(of, retention_ms=rng.choice([-1, 1000, 20_000]), retention_bytes=rng.choice([-1, 1, 4000]))
            case "compact":
                of = replace(of, compacts=not of.compacts)
            case _:
                of = replace(of, retention_ms=-1, retention_bytes=-1)
        return of

    def configure(self, to: Configs) -> None:
        self.check_start()
        was_on, self.configs = self.configs.is_on, to
        self.was_compacted |= to.compacts
        self.say("configs", self.configs)
        if was_on and not self.configs.is_on:
            self.allowed = max(self.allowed, self.opened.log.local_log_start_offset)
            self.sealed = 0
            self.outdated |= self.store.copies - self.store.named
        self.opened.log.reconfigure(self._log_config())
        self.opened.tier.reconfigure(self._tier_config())

    async def replica(self) -> None:
        """A replica is assigned or away. One that copies begins above what counts as verified."""
        state = self.opened.tier.partition_state
        self.is_alone = state.is_alone = not self.is_alone
        self.begun = 0
        if not self.is_alone:
            self.opened.tier.is_verifying()
            await asyncio.sleep(self.rng.choice([0.0, 1.0]))
        await self.begin()

    async def begin(self) -> None:
        state = self.opened.tier.partition_state
        if not self.is_alone and state.config.copies:
            self.begun = max(self.begun, self.opened.log.local_log_start_offset, state.sure_end_offset)
            self.say("a replica begins at", self.begun)

    async def break_store(self) -> None:
        rng, store = self.rng, self.store
        kinds = ["answered", "lost", "lost", "not stored", "late", "held", "on its way"]
        others = "usual, reads, heads, deletes, slow disk, latency, latency, damage, stale"
        match rng.choice(["roots"] * 5 + others.split(", ")):
            case "roots":
                store.modes = [rng.choice(kinds) for _ in range(rng.randrange(1, 5))]
                store.usual = rng.choice(["answered", "answered", "not stored"])
                if rng.random() < 0.5:
                    store.fail_reads()
            case "usual":
                store.usual = rng.choice(kinds)
            case "reads":
                store.fail_reads()
            case "heads":
                store.script(Operation.HEAD, Fault.BEFORE, times=rng.choice([1, 3, 1000]))
            case "deletes":
                store.script(Operation.DELETE, rng.choice([Fault.BEFORE, Fault.LOST]), times=rng.choice([1, 3]))
            case "stale":
                self.is_fresh = False
            case "slow disk":
                self.slow_s = rng.choice([0.0, 0.5, 5.0])
            case "latency":
                store.plan = replace(store.plan, latency_s=rng.choice([(0.0, 0.0), (0.0, 0.3), (0.2, 1.0)]))
            case _:
                store.damages = rng.choice([0.0, 0.3]) if self.can_damage else 0.0
        self.say("store", store.modes, store.usual, store.plan.latency_s, self.slow_s, len(store._scripts))

    async def wait(self) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.01, 0.1, 1.0, 1.0, 4.0, 12.0, 40.0]))

    async def act(self, name: str) -> None:
        self.say(name)
        store, of = self.store, self.configs
        match name:
            case "recover":
                store.recover()
                self.is_fresh = True
            case "release":
                store.release()
            case "land":
                await store.land()
            case "hold":
                before = ["answered"] * self.rng.choice([0, 0, 1])
                store.modes = [*before, self.rng.choice(["held", "held", "on its way", "lost", "late"])]
            case "no gets":
                store.fail_reads("manifest.json")
            case "no puts":
                store.usual = "not stored"
            case "no heads":
                store.script(Operation.HEAD, Fault.BEFORE, times=self.rng.choice([1, 3, 1000]))
            case "slow disk":
                self.slow_s = self.rng.choice([0.5, 5.0])
            case "slow store":
                store.plan = replace(store.plan, latency_s=self.rng.choice([(0.0, 0.3), (0.2, 1.0)]))
            case "damage":
                store.damages = 0.4 if self.can_damage else 0.0
            case "stale":
                self.is_fresh = False
            case "roll":
                self.opened.log.roll()
                self.opened.tier.rolled()
            case "reserve":
                self.opened.tier.reserve_soon(self.opened.log.log_end_offset + 1500)
            case "on" | "off":
                self.configure(replace(of, is_on=name == "on"))
            case "compact":
                self.configure(replace(of, compacts=True))
            case "local":
                self.configure(replace(of, local_retention_bytes=self.rng.choice([0, 0, 3000])))
            case "due":
                self.configure(self.rng.choice([replace(of, retention_ms=1000), replace(of, retention_bytes=2000)]))
            case "configs":
                self.configure(self._drawn_configs())
            case "stop" | "kill" | "power cut" | "new disk":
                if name != "new disk" or not store.damaged:
                    await self.end(name)
            case _:
                plain: dict[str, Callable[[], Awaitable[None]]] = {
                    "put": self.put, "fill": self.fill, "wait": self.wait, "delete": self.delete, "seal": self.seal,
                    "begin": self.begin, "replica": self.replica, "store": self.break_store, "check": self.check,
                }  # fmt: skip
                await plain[name]()
        await self.check_always()

    async def run(self, episodes: int) -> None:
        """Each episode is one of the stories, disturbed."""
        rng, store = self.rng, self.store
        await self.start(new=True)
        for _ in range(episodes):
            for word in rng.choice(STORIES).split(", "):
                while rng.random() < 0.2:
                    await self.act(rng.choice(ANYTHING.split(", ")))
                if rng.random() < 0.9:
                    await self.act(rng.choice(word.split("|")))
            if rng.random() < 0.5:
                await self.check()
        await self.check()
        await self.end("kill")
        await self.check()
        if not store.damaged:
            await asyncio.sleep(rng.choice([0.0, 5.0, 30.0]))
            await self.end("new disk")
            await self.check()
        await self.life.kill()
        unexpected = [each for each in self.house.failures if not isinstance(each[1], OSError | PassOver)]
        assert not unexpected, unexpected
        assert not self.house.fenced, self.house.fenced


def play(seed: int) -> None:
    program = Program(seed)
    try:
        run_fast(program.run(1 + seed % 3), timeout_s=200_000)
    except BaseException as failure:
        failure.add_note(f"seed {seed}:\n" + "\n".join(program.trace))
        raise


@pytest.mark.parametrize("seed", range(80))
def test_random_programs_lose_and_show_nothing_against_the_rules(seed: int) -> None:
    play(seed)
