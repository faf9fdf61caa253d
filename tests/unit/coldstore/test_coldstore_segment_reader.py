"""Reading segments: chunks planned, batches found exactly, footers and chunks fetched and checked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstore.object_store import Got, ObjectMissing
from coldstore.segments.segment_reader import (
    chunk_is_whole,
    chunk_ref,
    fetch_chunk,
    fetch_committed_footer,
    fetch_footer,
    find_in_block,
    index_position,
    scan_offset,
)
from logformat.errors import Corrupt, InvalidRequest
from logformat.record_batch import walk
from tests.support.store.memory_store import MemoryStore, StoredObject
from tests.support.tier.cold_objects import MadeObject, segment_object

SIZES = [3, 1, 40, 7, 7, 120, 2, 9, 300, 1, 1, 1, 50]


def made(base: int = 1000, **options: int) -> MadeObject:
    return segment_object(base, SIZES * 3, chunk_bytes=4096, interval=700, **options)


def stored(*objects: MadeObject) -> MemoryStore:
    store = MemoryStore()
    for one in objects:
        store.objects[str(one.key)] = StoredObject(one.data, f'"{one.key.uuid}"', None)
    return store


@pytest.mark.parametrize("block_bytes", [61, 700, 64 << 10])
def test_every_offset_is_found_in_its_batch(block_bytes: int) -> None:
    """Index, then headers, in blocks that cut batches wherever they like: each block leads on, none leads past it."""
    one = made()
    for at, header in walk(one.log):
        for offset in range(header.base_offset, header.next_offset):
            found, is_found = index_position(one.footer, offset), False
            while not is_found:
                assert found <= at
                found, is_found = find_in_block(one.log[found : found + block_bytes], found, offset)
            assert found == at
    assert len(one.footer.offset_index) > 5


def test_offsets_outside_the_segment_are_refused() -> None:
    one = made()
    for offset in (999, 1000 + sum(SIZES) * 3):
        with pytest.raises(InvalidRequest):
            index_position(one.footer, offset)


def test_bytes_that_are_no_batch_are_corrupt() -> None:
    """An error, never an endless walk."""
    with pytest.raises(Corrupt):
        find_in_block(bytes(4096), 0, 1100)


ONE = made()


def test_chunks_tile_the_log() -> None:
    count = len(ONE.footer.chunk_crcs)
    chunks = [chunk_ref(ONE.footer, ONE.key, n) for n in range(count)]
    assert b"".join(ONE.data[c.position : c.position + c.length] for c in chunks) == ONE.log
    assert all(chunk_is_whole(c, ONE.data[c.position : c.position + c.length]) for c in chunks)
    for index in (-1, count):
        with pytest.raises(InvalidRequest):
            chunk_ref(ONE.footer, ONE.key, index)


def test_time_look_ups_never_skip_the_answer() -> None:
    """From `scan_offset` on, the first record with the timestamp is still ahead."""
    first, last = ONE.entry.min_timestamp_ms, ONE.entry.max_timestamp_ms
    for n, timestamp in enumerate(range(first, last + 1)):
        offset = scan_offset(ONE.footer, timestamp)
        assert offset is not None and offset <= 1000 + n
    assert scan_offset(ONE.footer, last + 1) is None
    assert scan_offset(ONE.footer, 0) == 1000


async def test_one_get_opens_a_segment() -> None:
    """The tail brings the footer; only one whose footer is larger than the tail needs a second request."""

    class Counting(MemoryStore):
        gets = 0

        async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
            self.gets += 1
            return await super().get(key, start, length)

    store = Counting()
    store.objects = stored(ONE).objects
    footer = await fetch_footer(store, ONE.key, len(ONE.data))
    assert footer.statistics == ONE.footer.statistics and store.gets == 1
    wide = segment_object(0, [1] * 6000, interval=1, value_bytes=4)  # an index entry a batch: 8 + 12 bytes each
    store.objects = stored(wide).objects
    assert len(wide.data) - len(wide.log) > 64 * 1024
    assert (await fetch_footer(store, wide.key, len(wide.data))).statistics == wide.footer.statistics
    assert store.gets == 3
    assert (await fetch_committed_footer(store, wide.key, wide.entry)).statistics == wide.footer.statistics
    assert store.gets == 4, "who has the entry knows the footer's size"


async def test_design_c12_a_damaged_chunk_fails_loudly_a_flipped_answer_is_asked_again() -> None:
    """A bit flip on the way: another GET is right. One at rest: Corrupt, naming object and bytes."""

    class Flipping(MemoryStore):
        flips = 0

        async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
            got = await super().get(key, start, length)
            if not self.flips:
                return got
            self.flips -= 1
            return Got(got.data[:-1] + bytes([got.data[-1] ^ 1]), got.etag, got.size)

    store = Flipping()
    store.objects = stored(ONE).objects
    chunk = chunk_ref(ONE.footer, ONE.key, 1)
    store.flips = 2
    assert await fetch_chunk(store, chunk) == ONE.data[4096:8192]
    store.flips = 2
    assert (await fetch_footer(store, ONE.key, len(ONE.data))).statistics == ONE.footer.statistics
    store.flips = 3
    with pytest.raises(Corrupt):
        await fetch_footer(store, ONE.key, len(ONE.data))
    store.flips = 3
    with pytest.raises(Corrupt, match=str(ONE.key.uuid)):
        await fetch_chunk(store, chunk)
    del store.objects[str(ONE.key)]
    with pytest.raises(ObjectMissing):
        await fetch_chunk(store, chunk)


async def test_design_c13_a_footer_is_believed_only_with_the_manifests_entry() -> None:
    """Another object of the same size under the key, a shorter one, one of another log: refused when opened."""
    two = segment_object(1000, SIZES * 3, n=2, chunk_bytes=4096, interval=700)
    assert len(two.data) == len(ONE.data)
    store = stored(ONE, two)
    assert (await fetch_committed_footer(store, ONE.key, ONE.entry)).statistics.uuid == ONE.key.uuid
    store.objects[str(ONE.key)] = store.objects[str(two.key)]
    with pytest.raises(Corrupt):
        await fetch_committed_footer(store, ONE.key, ONE.entry)
    store.objects[str(ONE.key)] = StoredObject(ONE.data[:-1], '"x"', None)
    with pytest.raises(Corrupt):
        await fetch_committed_footer(store, ONE.key, ONE.entry)
    store.objects[str(ONE.key)] = StoredObject(ONE.data, '"x"', None)
    for change in ({"records": 1}, {"crc32c": 5}, {"max_timestamp_ms": ONE.entry.max_timestamp_ms + 1}):
        with pytest.raises(Corrupt):
            await fetch_committed_footer(store, ONE.key, replace(ONE.entry, **change))
