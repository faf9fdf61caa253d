"""Every single bit of what lies in a bucket, flipped: refused with an error, or harmless; wrong data served: none.

The doors are the real ones: `ManifestReader` with its pages, `ClusterRoot`, the lease, `fetch_footer`, and a
`ColdReader` for the whole of a segment object. A row a kind is printed, as for the files of a data directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace as changed

from broker.membership.lease_watch import Lease
from coldstore.keys import PageKey, cluster_key, lease_key, manifest_key, parse_key
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.manifest.page_reader import PageCache
from coldstore.roots.root import RootStore
from coldstore.segments.segment_reader import fetch_footer
from logformat.errors import Corrupt, Retryable, ThermoclineError
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import claim, cluster_root, created
from tests.support.disk.crash_disk import CrashDisk
from tests.support.fast_loop import FastClock, run_fast
from tests.support.store.memory_store import MemoryStore, StoredObject
from tests.support.tier.cold_log import cold_log, content, put, reading
from tests.support.tier.cold_objects import segment_object
from tests.support.tier.cold_values import TOPIC_ID, remote_segment
from tests.support.workers import LoopWorkers
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.limits import ReadLimits

pytestmark = pytest.mark.not_fast

SMALL = {"root_bytes_max": 8000, "page_entries_min": 8, "pointers_in_root_max": 2}
Door = Callable[[MemoryStore], Coroutine[Any, Any, object]]


def at_once(coroutine: Coroutine[Any, Any, object]) -> object:
    """Run what waits for nothing but turns of the loop, without one: several times faster."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as done:
        return done.value


async def every_bit(store: MemoryStore, key: str, door: Door, *, kind: str, step: int = 1, report: list[str]) -> None:
    """Flip each bit of the object, go through the door, compare with what it gave before."""
    truth = await door(store)
    original = store.objects[key]
    bits = refused = harmless = 0
    wrong: list[str] = []
    for at in range(0, len(original.data) * 8, step):
        damaged = bytearray(original.data)
        damaged[at // 8] ^= 1 << at % 8
        store.objects[key] = changed(original, data=bytes(damaged), etag=f'"{at}"')
        bits += 1
        try:
            found = await door(store)
        except ThermoclineError as refusal:
            assert str(refusal) and not isinstance(refusal, Retryable), refusal
            refused += 1
        else:
            harmless += found == truth
            if found != truth:
                wrong.append(f"{key} byte {at // 8} bit {at % 8}: {found!r}"[:300])
    store.objects[key] = original
    report.append(
        f"{kind:44} {bits:7} bits: {refused:6} refused,      0 repaired, {harmless:6} harmless, {len(wrong)} wrong"
    )
    assert not wrong, "\n".join(wrong[:10])


def shown(capsys: pytest.CaptureFixture[str], report: list[str]) -> None:
    with capsys.disabled():
        print("".join(f"\n  {row}" for row in report), end="")


async def a_manifest(segments: int) -> MemoryStore:
    """A root with some entries in its tail and others in pages of both levels."""
    store = MemoryStore()
    mine = ManifestStore(store, TOPIC_ID, 0, SeededRng(1), FastClock(), **SMALL)  # type: ignore[arg-type]
    await mine.create(1, "events", {"retention.ms": "-1"}, 1 << 20)
    await mine.claim(1, "events", {"retention.ms": "-1"})
    for number in range(segments):
        await mine.commit(lambda m, n=number: m.add(remote_segment(n * 10, n * 10 + 10)))  # type: ignore[misc]
    return store


async def through_manifest(store: MemoryStore, cache: PageCache | None = None) -> object:
    reader = ManifestReader(store, TOPIC_ID, 0, page_cache=cache)
    manifest = await reader.load()
    assert manifest is not None
    return manifest, await reader.segments(manifest, 0, manifest.remote_end_offset)


def test_every_bit_of_a_manifest_root(capsys: pytest.CaptureFixture[str]) -> None:
    """By `ManifestReader.load`: the root's own checksum, and the books."""
    report: list[str] = []
    store = run_fast(a_manifest(3))
    at_once(every_bit(store, manifest_key(TOPIC_ID, 0), through_manifest, kind="manifest root", report=report))
    shown(capsys, report)


def pages_in_use(store: MemoryStore) -> list[str]:
    """Those a reader of the whole manifest needs: without them it is refused."""

    def is_needed(key: str) -> bool:
        without = MemoryStore()
        without.objects = {name: found for name, found in store.objects.items() if name != key}
        try:
            at_once(through_manifest(without))
        except ThermoclineError:
            return True
        return False

    return sorted(key for key in store.objects if isinstance(parse_key(key), PageKey) and is_needed(key))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_of_manifest_pages(step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """By `ManifestReader.segments`: of one level-0 page one bit in five, of the others one in 61; all of them in
    `make test-all`. The other pages are at hand already: only the damaged one is read."""
    report: list[str] = []
    store = run_fast(a_manifest(120))
    pages = pages_in_use(store)
    assert len(pages) > 4
    at_hand = PageCache()
    at_once(through_manifest(store, at_hand))
    for number, key in enumerate(pages):

        async def door(store: MemoryStore, key: str = key) -> object:
            cache = PageCache()
            for other in pages:
                page = at_hand.get(other)
                if other != key and page is not None:
                    cache.put(other, page)
            return await through_manifest(store, cache)

        kind = f"manifest page {number}"
        at_once(every_bit(store, key, door, kind=kind, step=step if number else min(step, 5), report=report))
    shown(capsys, report)


def test_every_bit_of_cluster_and_lease(capsys: pytest.CaptureFixture[str]) -> None:
    """`cluster.json` by `ClusterRoot.load`, `lease.json` by its root."""
    report: list[str] = []
    store = MemoryStore()

    async def format_it() -> None:
        cluster = cluster_root(store)
        await claim(cluster, "incarnation")
        await cluster.commit([created(1, 2)])
        lease = RootStore(store, lease_key(), Lease, SeededRng(1), FastClock())
        await lease.commit(lambda found: found, epoch=1, initial=Lease(1, "incarnation", 4, lease_ms=15_000))

    async def through_cluster(store: MemoryStore) -> object:
        cluster = cluster_root(store)
        loaded = await cluster.load()
        assert cluster.known is not None
        return loaded, cluster.known.epoch, cluster.known.version

    async def through_lease(store: MemoryStore) -> object:
        root = await RootStore(store, lease_key(), Lease, SeededRng(1), FastClock()).load()
        assert root is not None
        return root.content, root.epoch, root.version

    run_fast(format_it())
    at_once(every_bit(store, cluster_key(), through_cluster, kind="cluster.json", report=report))
    at_once(every_bit(store, lease_key(), through_lease, kind="lease.json", report=report))
    shown(capsys, report)


def test_every_bit_of_a_footer(capsys: pytest.CaptureFixture[str]) -> None:
    """By `fetch_footer`, with what the manifest says of the object: all of its sections, parsed."""
    report: list[str] = []
    made = segment_object(0, [3, 1, 7] * 4, n=1)
    store = MemoryStore()
    key = str(made.key)
    store.objects[key] = StoredObject(made.data, '"e"', None)
    footer_bytes = len(made.data) - len(made.log)

    async def through_footer(store: MemoryStore) -> object:
        footer = await fetch_footer(store, made.key, made.entry.object_bytes)
        return footer.statistics, footer.lineage, footer.producer_state(), footer.transactions, footer.chunk_crcs

    async def bits_of_the_footer() -> None:
        whole = store.objects[key]
        truth = await through_footer(store)
        refused = harmless = 0
        for at in range(len(made.log) * 8, len(made.data) * 8):
            damaged = bytearray(whole.data)
            damaged[at // 8] ^= 1 << at % 8
            store.objects[key] = changed(whole, data=bytes(damaged))
            try:
                assert await through_footer(store) == truth, f"byte {at // 8} bit {at % 8}"
            except Corrupt:
                refused += 1
            else:
                harmless += 1
        report.append(
            f"{'footer of a segment object':44} {footer_bytes * 8:7} bits: {refused:6} refused,      0 repaired, "
            f"{harmless:6} harmless, 0 wrong"
        )

    at_once(bits_of_the_footer())
    shown(capsys, report)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bit_of_a_segment_object(step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """By a `ColdReader`, from its first offset to its end: footer, chunk CRCs, then bytes; never a wrong one. One bit
    of every byte in `make test`, all of them in `make test-all`."""
    report: list[str] = []
    log = cold_log([[5, 1, 16]], chunk_bytes=1024)
    made = log.objects[0]

    async def scenario() -> None:
        store = MemoryStore()
        await put(store, log)
        whole = store.objects[str(made.key)]
        counts = {"refused": 0, "harmless": 0}
        for at in range(0, len(made.data) * 8, step):
            damaged = bytearray(made.data)
            damaged[at // 8] ^= 1 << at % 8
            store.objects[str(made.key)] = changed(whole, data=bytes(damaged))
            served, refusal = b"", ""
            limits = ReadLimits(prefetch_chunks=0)
            async with reading(store, CrashDisk(), LoopWorkers(), Tasks(), limits=limits) as reader:
                try:
                    served = await drained(reader, log)
                except (Corrupt, Retryable) as refused:
                    refusal = str(refused)
            assert log.bytes.startswith(served), f"byte {at // 8} bit {at % 8}"
            assert refusal or served == log.bytes
            counts["refused" if refusal else "harmless"] += 1
            await asyncio.sleep(0.001)  # a moment each: so many at one moment are a livelock to the loop
        report.append(
            f"{'segment object':44} {sum(counts.values()):7} bits: {counts['refused']:6} refused,      0 repaired, "
            f"{counts['harmless']:6} harmless, 0 wrong"
        )

    run_fast(scenario())
    shown(capsys, report)


async def drained(reader: Any, log: Any) -> bytes:
    """Everything from the first offset, until it ends or is refused; raises with what was served before lost."""
    data = b""
    while len(data) < len(log.bytes):
        offset = max((base for base, position in log.batches if position <= len(data)), default=0)
        found = reader.read(log.manifests, offset, 1, min_one=True)
        if isinstance(found, ColdSlice):
            piece = content(found)
            assert log.bytes[len(data) :].startswith(piece)
            data += piece
            continue
        async with asyncio.timeout(120):
            await found
    return data
