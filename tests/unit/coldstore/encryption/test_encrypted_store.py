"""The encrypting store: the conformance of all stores, what lies in the store below it, and what it costs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.envelope import CHUNK_BYTES, plain_size, stored_size
from coldstore.encryption.keys import KeyRing
from coldstore.encryption.marker import TRAILER_BYTES, KeyRefused
from coldstore.inspection.probe import Verification, probe
from coldstore.object_store import Got, ObjectStore
from coldstore.stores.directory import DirectoryStore
from coldstore.stores.metered import MeteredStore
from logformat.errors import Corrupt
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng, SystemRng
from tests.support.store.keys import ring_of, sealed_bytes
from tests.support.store.memory_store import MemoryStore, StoredObject, trailed, upload_of
from tests.support.store.store_conformance import StoreConformance
from tests.support.workers import InlineWorkers

RING = ring_of("now", "before")


class EncryptedMemoryPlace:
    checks_checksums = True
    keeps_checksums = True
    refuses_reused_names = True

    def __init__(self) -> None:
        self._below = MemoryStore()
        self.workers = ThreadWorkers()

    def open(self) -> ObjectStore:
        return EncryptedStore(self._below, RING, self.workers, SystemRng())

    def fill(self, keys: list[str], data: bytes) -> None:
        self._below.objects.update({key: StoredObject(sealed_bytes(key, data, RING), '"e"', None) for key in keys})


class EncryptedDirectoryPlace:
    checks_checksums = True
    keeps_checksums = False
    refuses_reused_names = True

    def __init__(self, root: str) -> None:
        self._root = root
        self.workers = ThreadWorkers()

    def open(self) -> ObjectStore:
        below = DirectoryStore(PosixDisk(), self.workers, self._root, SystemRng())
        return EncryptedStore(below, RING, self.workers, SystemRng())

    def fill(self, keys: list[str], data: bytes) -> None:
        for key in keys:
            path = f"{self._root}/{key}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(sealed_bytes(key, data, RING))


class TestEncryptedMemoryStore(StoreConformance):
    @pytest.fixture
    def place(self) -> Iterator[EncryptedMemoryPlace]:
        place = EncryptedMemoryPlace()
        yield place
        place.workers.close()


class TestEncryptedDirectoryStore(StoreConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[EncryptedDirectoryPlace]:
        place = EncryptedDirectoryPlace(str(tmp_path / "bucket"))
        yield place
        place.workers.close()


def over(below: ObjectStore, ring: KeyRing = RING) -> EncryptedStore:
    return EncryptedStore(below, ring, InlineWorkers(), SystemRng())


def data_of(size: int) -> bytes:
    return (bytes(i * 31 % 251 for i in range(10_007)) * (size // 10_007 + 1))[:size]


def run_now(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 5 * CHUNK_BYTES), st.integers(1, 200_000), st.data())
def test_any_range_of_any_object_is_the_plaintext(size: int, piece: int, data: st.DataObject) -> None:
    """As a store without encryption answers it: the same bytes, the same size; whether the trailer is known or not."""
    plain, below = data_of(size), MemoryStore()
    ranges = data.draw(st.lists(st.tuples(st.integers(0, max(0, size - 1)), st.integers(1, size + 1)), max_size=4))
    tails = data.draw(st.lists(st.integers(1, size + 100), max_size=2))

    async def scenario() -> None:
        await over(below).put_segment("k", trailed(plain, piece=piece))
        store = over(below)
        for start, length in ranges if size else ():
            for reader in (store, over(below)):
                got = await reader.get("k", start, length)
                assert (got.data, got.size) == (plain[start : start + length], size)
        for tail in tails:
            assert (await over(below).get("k", -tail)).data == (await store.get("k", -tail)).data == plain[-tail:]
        assert (await store.get("k")).data == plain and (await store.head("k")).crc32c == crc32c(plain)
        assert [info.size async for info in store.list("")] == [size]

    run_now(scenario())


async def test_nothing_of_the_plaintext_lies_in_the_store() -> None:
    """Neither of segments nor of roots."""
    below, secret = MemoryStore(), b"orders of Alice: 4711"
    store = over(below)
    etag = await store.put_root("cluster.json", b'{"topic": "' + secret + b'"}', None)
    await store.put_root("cluster.json", b'{"topic": "' + secret + b'!"}', etag)
    await store.put_segment("topics/t", upload_of(secret * 10_000))
    for stored in below.objects.values():
        assert secret not in stored.data and secret[:8] not in stored.data


async def test_equal_roots_are_different_objects() -> None:
    """Each write has a key of its own, so an ETag never comes again and nobody sees that a root did not change."""
    store = over(MemoryStore())
    first = await store.put_root("cluster.json", b"{}", None)
    assert await store.put_root("cluster.json", b"{}", first) != first
    assert (await store.get("cluster.json", 0, 65_536)).data == b"{}"


async def test_a_ranged_read_of_a_known_object_is_one_request() -> None:
    """After the footer's tail read, an upload, or a first read; a root is one request always."""
    below = MeteredStore(MemoryStore(), SystemClock(), log_max=100)
    writer = over(below)
    await writer.put_segment("s", upload_of(data_of(1_000_000)))
    await writer.put_root("r", b"{}", None)
    below.log.clear()
    await writer.get("s", 500_000, 1000)
    assert len(below.log) == 1
    reader = over(below)
    await reader.get("s", -5000)
    await reader.get("s", 100_000, 300_000)
    length = below.log[-1].length
    assert length is not None and length <= 300_000 + 3 * (CHUNK_BYTES + 16)
    await reader.get("r", 0, 65_536)
    assert len(below.log) == 4


async def test_a_head_proves_what_is_stored() -> None:
    """The store's checksum must be the trailer's; then the answer is the plaintext's, which the manifest names."""
    below = MemoryStore()
    await over(below).put_segment("s", upload_of(data_of(300_000)))
    assert (await over(below).head("s")).crc32c == crc32c(data_of(300_000))
    stored = below.objects["s"]
    below.objects["s"] = StoredObject(stored.data, stored.etag, 7)
    with pytest.raises(Corrupt, match="CRC32C"):
        await over(below).head("s")


async def test_the_probe_asks_the_store_itself() -> None:
    """A store that takes a wrong checksum is found out, although encryption would have refused it."""
    honest = await probe(over(MemoryStore()), SeededRng(1))
    assert honest.passed and honest.takes_trailers and honest.verification is Verification.HEAD
    lying = await probe(over(MemoryStore(checks_checksums=False)), SeededRng(1))
    assert lying.verification is Verification.READ_BACK


async def test_a_plain_object_is_refused() -> None:
    """No silent downgrade: a plain root needs an operator, a plain segment is damage."""
    below = MemoryStore()
    await below.put_root("cluster.json", b'{"a": 1}', None)
    await below.put_segment("s", upload_of(data_of(1000)))
    for length in (None, 65_536):
        with pytest.raises(KeyRefused, match="not encrypted"):
            await over(below).get("cluster.json", 0, length)
    for start, length in ((0, None), (10, 10), (-10, None)):
        with pytest.raises(Corrupt, match="not encrypted"):
            await over(below).get("s", start, length)


async def test_a_mixed_bucket_is_read_where_plain_objects_are_accepted() -> None:
    """Old objects are plain, new ones are encrypted; sizes are right for both, also in listings."""
    below, ring = MemoryStore(), ring_of("now", accepts_plain=True)
    sizes = (0, 1, 144, 145, 200, CHUNK_BYTES + 160, 300_000)
    for size in sizes:
        await below.put_segment(f"plain/{size}", upload_of(data_of(size)))
    store = over(below, ring)
    for size in sizes:
        await store.put_segment(f"sealed/{size}", upload_of(data_of(size)))
    fresh = over(below, ring)
    assert {info.key: info.size async for info in fresh.list("")} == {
        f"{kind}/{size}": size for kind in ("plain", "sealed") for size in sizes
    }
    for kind in ("plain", "sealed"):
        for size in sizes[1:]:
            key, data = f"{kind}/{size}", data_of(size)
            for reader in (fresh, over(below, ring)):
                assert (await reader.get(key)).data == data and (await reader.get(key, -3)).data == data[-3:]
                got = await reader.get(key, size // 2, 1000)
                assert (got.data, got.size) == (data[size // 2 :][:1000], size)
            assert (await fresh.head(key)).size == size
    below.objects["plain/200"] = StoredObject(sealed_bytes("plain/200", data_of(200), ring), '"n"', None)
    assert (await fresh.get("plain/200", 5, 10)).data == data_of(200)[5:15], "encrypted since"


class FlippingStore(MemoryStore):
    """The next answer to a GET has one bit flipped, `from_end` bytes before its end."""

    from_end = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        got = await super().get(key, start, length)
        if not self.from_end:
            return got
        data = bytearray(got.data)
        data[-self.from_end] ^= 1
        self.from_end = 0
        return Got(bytes(data), got.etag, got.size)


@pytest.mark.parametrize("accepts_plain", [False, True])
@pytest.mark.parametrize("from_end", [1, 8, 60, 100, 120, 128])
async def test_a_bit_that_flipped_in_transit_is_damage_once(from_end: int, accepts_plain: bool) -> None:
    """Of magic, wrapped key, key id, key check, version: never a missing key, which nobody asks for again, and never
    remembered as a plain object."""
    below, ring = FlippingStore(), ring_of("now", accepts_plain=accepts_plain)
    await over(below, ring).put_segment("s", upload_of(data_of(200_000)))
    await over(below, ring).put_root("r", b'{"root": 1}', None)
    store = over(below, ring)
    for read in (lambda: store.get("s", -500), lambda: store.get("s", 70_000, 500), lambda: store.get("r", 0, 65536)):
        below.from_end = from_end
        with pytest.raises(Corrupt):
            await read()
        assert (await read()).data in (data_of(200_000)[-500:], data_of(200_000)[70_000:70_500], b'{"root": 1}')


async def test_a_listing_is_complete_beside_deletions_and_damage() -> None:
    """A mixed bucket's listing asks for the end of each object: one that is gone by then is left out, one whose trailer
    is damaged is listed, and reading it says so."""
    below = MemoryStore()
    store = over(below, ring_of("now", accepts_plain=True))
    for key in ("a", "b", "c"):
        await store.put_segment(key, upload_of(data_of(1000)))
    damaged = bytearray(below.objects["b"].data)
    damaged[-TRAILER_BYTES + 60] ^= 1
    below.objects["b"] = StoredObject(bytes(damaged), '"d"', None)
    listing = over(below, ring_of("now", accepts_plain=True)).list("")
    found = [await anext(listing)]
    del below.objects["a"], below.objects["c"]
    found += [info async for info in listing]
    assert [(info.key, info.size) for info in found] == [("a", 1000), ("b", 1000)]
    with pytest.raises(Corrupt):
        await store.get("b")


async def test_a_ring_without_an_active_key_writes_plain_objects() -> None:
    """The first step of switching encryption on: every broker can read what the others will encrypt."""
    below = MemoryStore()
    store = over(below, ring_of("now", active=None, accepts_plain=True))
    await store.put_root("cluster.json", b"{}", None)
    await store.put_segment("s", upload_of(b"plain"))
    assert below.objects["cluster.json"].data == b"{}" and below.objects["s"].data == b"plain"
    await over(below, ring_of("now")).put_segment("t", upload_of(b"sealed"))
    assert (await store.get("t")).data == b"sealed" and (await store.get("s", 1, 2)).data == b"la"


async def test_an_old_key_reads_and_a_missing_one_is_named() -> None:
    """Rotation: the new key is active, the old one is still there; without it nothing is lost and nothing written."""
    below = MemoryStore()
    await over(below, ring_of("before")).put_segment("s", upload_of(b"old"))
    assert (await over(below).get("s")).data == b"old"
    await over(below).put_segment("t", upload_of(b"new"))
    before = dict(below.objects)
    for read in (over(below, ring_of("now")).get("s", -2), over(below, ring_of("now")).head("s")):
        with pytest.raises(KeyRefused, match="'before'"):
            await read
    assert below.objects == before and (await over(below, ring_of("now")).get("t")).data == b"new"


async def test_a_trailer_that_was_cut_off_is_refused_though_it_is_known() -> None:
    """A reader that knows the object notices that it has another size."""
    below = MemoryStore()
    store = over(below)
    await store.put_segment("s", upload_of(data_of(200_000)))
    below.objects["s"] = StoredObject(below.objects["s"].data[:-TRAILER_BYTES], '"cut"', None)
    with pytest.raises(Corrupt):
        await store.get("s", 0, 1000)


async def test_known_trailers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used goes; reading it again costs one request more."""
    monkeypatch.setattr("coldstore.encryption.encrypted_store.KNOWN_MAX", 3)
    store = over(MemoryStore())
    for number in range(10):
        await store.put_segment(f"s{number}", upload_of(data_of(100)))
    assert len(store._known) == 3
    assert (await store.get("s0", 5, 5)).data == data_of(100)[5:10]


def test_sizes_that_no_encrypted_object_has_are_listed_as_they_are() -> None:
    """Somebody else's file in the bucket."""
    assert plain_size(5) is None and plain_size(stored_size(0)) == 0
