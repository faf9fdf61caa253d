"""What a partition's manifest costs when it names a thousand, ten thousand, … a million segments.

    bench/manifest_growth.py                 10³ to 10⁶ segments; writes its section of bench/RESULTS.md
    bench/manifest_growth.py --largest 10000     quickly; nothing is written

The manifest is synthetic: pages as the broker folds them, in a store in memory whose requests and bytes are counted.
Times are this process's alone (no network): what S3 adds is its time to first byte for each request. Segment objects
are not there: what a cold fetch reads of one (two ranged GETs) does not depend on how many others there are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench.many import replace_section
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.keys import manifest_key
from coldstore.manifest.manifest import Manifest, PagePointer, RemoteSegment, Totals
from coldstore.manifest.manifest_entries import HASH_MODULUS, totals_of
from coldstore.manifest.manifest_pages import encode_page, pointer_table, segment_table
from coldstore.manifest.manifest_store import PAGE_ENTRIES_MIN, POINTERS_IN_ROOT_MAX, ManifestStore
from coldstore.manifest.page_reader import PageCache
from coldstore.object_store import ObjectInfo, Upload
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from seams.clock import SystemClock
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng
from tests.support.store.memory_store import MemoryStore, StoredObject
from tests.support.tier.cold_values import TOPIC_ID, remote_segment

SECTION: Final = "## A partition of a million segments"
SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
OFFSETS: Final = 1_000  # of one segment
TAIL: Final = 100
COMMITS: Final = 600  # some of them fold the tail into a page
LOOKUPS: Final = 20


@dataclass
class Cost:
    """Requests, bytes and milliseconds of one act."""

    requests: float
    kib: float
    ms: float
    ms_max: float = 0.0

    def __str__(self) -> str:
        most = f" (most {self.ms_max:.0f})" if self.ms_max else ""
        return f"{self.requests:.3g} req, {self.kib:,.0f} KiB, {self.ms:.1f} ms{most}"


class SortedStore(MemoryStore):
    """Lists without looking at every object for every page of a listing."""

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            yield ObjectInfo(key, 0, "", None)


class Bucket:
    """The synthetic partition."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.memory = SortedStore()
        self.store = MeteredStore(self.memory, SystemClock())
        self.end = count * OFFSETS
        self.rng = SeededRng(count)

    def manifests(self) -> ManifestStore:
        """As a broker that just started: nothing is cached."""
        return ManifestStore(self.store, TOPIC_ID, 0, self.rng, SystemClock(), page_cache=PageCache())

    def segment(self, at: int, epoch: int = 1) -> RemoteSegment:
        return remote_segment(at * OFFSETS, (at + 1) * OFFSETS, epoch=epoch)

    async def fill(self) -> None:
        """Pages of 4 096 entries; the pointers that the root has no room for in pages of pointers."""
        leaves, books, live_hash = [], Totals(), 0
        paged = max(self.count - TAIL, 0)
        for first in range(0, paged, PAGE_ENTRIES_MIN):
            rows = [self.segment(at) for at in range(first, min(first + PAGE_ENTRIES_MIN, paged))]
            leaves.append(await self._put(segment_table(rows), 0))
            books = books + totals_of(rows)
            live_hash += sum(row.identity_hash() for row in rows)
        tail = tuple(self.segment(at) for at in range(paged, self.count))
        books = books + totals_of(tail)
        live_hash += sum(row.identity_hash() for row in tail)
        folded = len(leaves) - 1 if len(leaves) > POINTERS_IN_ROOT_MAX else 0
        pages = [*([await self._put(pointer_table(leaves[:folded]), 1)] if folded else []), *leaves[folded:]]

        def filled(manifest: Manifest) -> Manifest:
            return Manifest(
                topic_id=TOPIC_ID,
                topic="growth",
                partition=0,
                leader_epoch=1,
                remote_end_offset=self.end,
                reserved_end_offset=self.end + (1 << 20),
                added=books,
                live=books,
                live_hash=f"{live_hash % HASH_MODULUS:032x}",
                pages=tuple(pages),
                tail=tail,
            )

        manifests = self.manifests()
        await manifests.create(1, "growth", {}, 1)
        await manifests.claim(1, "growth", {})
        (await manifests.commit(filled)).check()

    async def _put(self, table: object, level: int) -> PagePointer:
        pointer, data = encode_page(table, level, self.rng.uuid(), 1)
        key = str(pointer.key(TOPIC_ID, 0))
        await self.memory.put_segment(key, Upload(len(data), pointer.crc32c, lambda: iter((data,))))
        return pointer

    async def cost(self, acts: int, act: Callable[[int], Awaitable[object]]) -> Cost:
        """The mean of `acts` runs; `ms_max` the longest."""
        before, times = self._counted(), []
        for at in range(acts):
            began = time.perf_counter()
            await act(at)
            times.append((time.perf_counter() - began) * 1e3)
        after = self._counted()
        mean = statistics.fmean(times)
        most = max(times) if acts > 1 else 0.0
        return Cost((after[0] - before[0]) / acts, (after[1] - before[1]) / acts / 1024, mean, most)

    def _counted(self) -> tuple[int, int]:
        meters = [self.store.meters[operation] for operation in Operation]
        return sum(m.requests for m in meters), sum(m.bytes for m in meters)

    @property
    def root_bytes(self) -> int:
        return len(self.memory.objects[manifest_key(TOPIC_ID, 0)].data)


async def measure(count: int) -> dict[str, str]:
    bucket = Bucket(count)
    await bucket.fill()
    found = {"segments": f"{count:,}", "root": f"{bucket.root_bytes / 1024:.1f} KiB"}

    async def start(_: int) -> None:
        manifests = bucket.manifests()
        await manifests.load()
        await manifests.claim(1, "growth", {})

    found["start: load, claim"] = str(await bucket.cost(5, start))

    chosen = random.Random(count)

    async def look_up(_: int) -> None:
        manifests = bucket.manifests()
        await manifests.load()
        offset = chosen.randrange(bucket.end)
        segment = await manifests.find(offset)
        assert segment is not None
        assert segment.base_offset <= offset < segment.end_offset

    found["cold fetch: the segment of an offset, nothing cached"] = str(await bucket.cost(LOOKUPS, look_up))

    manifests = bucket.manifests()
    await manifests.claim(1, "growth", {})
    at = chosen.randrange(count // 2) * OFFSETS
    await manifests.find(at)

    async def go_on(step: int) -> None:
        assert await manifests.find(at + step * OFFSETS) is not None

    found["the segment after it, and so on"] = str(await bucket.cost(200, go_on))

    async def by_time(_: int) -> None:
        fresh = bucket.manifests()
        await fresh.load()
        wanted = bucket.segment(chosen.randrange(count))
        segment = await fresh.find_by_timestamp(wanted.min_timestamp_ms, 0)
        assert segment is not None

    found["by time, nothing cached"] = str(await bucket.cost(LOOKUPS, by_time))

    async def commit(step: int) -> None:
        segment = bucket.segment(count + step)
        await manifests.commit(lambda m: m.add(segment))

    found["commit of one more"] = str(await bucket.cost(COMMITS, commit))
    found["root after it"] = f"{bucket.root_bytes / 1024:.1f} KiB"

    async def expire(_: int) -> None:
        batch: list[RemoteSegment] = []
        async for segment in manifests.segments():
            batch.append(segment)
            if len(batch) == TAIL:
                break
        await manifests.commit(lambda m: m.set_log_start(batch[-1].end_offset))
        await manifests.commit(lambda m: m.expire(batch))

    found["expire the oldest 100"] = str(await bucket.cost(5, expire))
    found["gc: list and compare"] = str(await collect(bucket, manifests))
    found["resident memory"] = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most"
    return found


async def collect(bucket: Bucket, manifests: ManifestStore) -> Cost:
    """With every segment's object listed; its bytes are not needed."""
    nothing = StoredObject(b"", "etag", None)
    manifest = manifests.manifest
    assert manifest is not None
    async for segment in manifests.segments():
        bucket.memory.objects[str(segment.key(TOPIC_ID, 0))] = nothing
    workers = ThreadWorkers()
    inspector = BucketInspector(bucket.store, workers)
    try:
        return await bucket.cost(1, lambda _: inspector.plan_gc(TOPIC_ID, 0))
    finally:
        workers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    options = parser.parse_args()
    measured = []
    for count in SIZES:
        if count <= options.largest:
            measured.append(asyncio.run(measure(count)))
            print("\n".join(f"{name:<52} {figure}" for name, figure in measured[-1].items()), "\n", flush=True)
    if len(measured) == len(SIZES):
        names = list(measured[0])
        lines = [SECTION, "", f"`bench/manifest_growth.py`, {time.strftime('%Y-%m-%d')}; a store in memory.", ""]
        lines += ["| " + " | ".join(figures[names[0]] for figures in [{names[0]: "segments"}, *measured]) + " |"]
        lines += ["|---" * (len(measured) + 1) + "|"]
        lines += [f"| {name} | " + " | ".join(figures[name] for figures in measured) + " |" for name in names[1:]]
        replace_section(Path(__file__).parent / "RESULTS.md", SECTION, "\n".join(lines))


if __name__ == "__main__":
    main()
