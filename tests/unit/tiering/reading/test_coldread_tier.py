"""G6 over the whole tier: what a partition's own bucket gives is what its local log gives, across the seam too."""

from __future__ import annotations

import asyncio

from coldstore.stores.directory import DirectoryStore
from logformat.record_batch import read_header, walk
from seams.rng import SeededRng
from tests.support.tier.cold_log import content
from tests.support.tier.tier_kit import House, Life, Opened
from tests.support.workers import LoopWorkers
from tiering.reading.batch_slices import ColdSlice


async def cold_from(opened: Opened, offset: int, bytes_max: int) -> bytes:
    """From the batch that holds `offset` to the remote end, through the tier as the broker reads it."""
    data = b""
    while offset < opened.tier.remote_end_offset:
        found = opened.tier.read(offset, bytes_max, min_one=True)
        if not isinstance(found, ColdSlice):
            async with asyncio.timeout(60):
                await found
            continue
        piece = content(found)
        offset = [header.next_offset for _, header in walk(piece)][-1]
        data += piece
    return data


def hot_from(opened: Opened, offset: int, end: int) -> bytes:
    """The same range from local segments."""
    data = b""
    while offset < end:
        found = opened.log.read(offset, 1 << 20, end, min_one=True)
        assert found is not None
        piece = found.file.read_at(found.position, found.length)
        offset = [header.next_offset for _, header in walk(piece)][-1]
        data += piece
    return data


async def equal_tiers(life: Life) -> None:
    opened = await life.open(new=True)
    for batch in range(120):
        life.append(1 + batch % 5, size=20 + 23 * (batch % 11))
    await opened.flusher.flush()
    await opened.tier.seal_and_copy()
    end = opened.log.log_end_offset
    assert opened.tier.remote_end_offset == end and opened.tier.partition_state.manifest.live.segments > 5
    whole = hot_from(opened, 0, end)
    for bytes_max in (1, 700, 10_000):
        assert await cold_from(opened, 0, bytes_max) == whole
    for offset in range(0, end, 7):
        expected = hot_from(opened, offset, end)
        assert (await cold_from(opened, offset, 4000)) == expected
        assert read_header(expected).base_offset <= offset
    times = {header.max_timestamp for _, header in walk(whole)}
    first = await opened.tier.offset_for_timestamp(min(times), end)
    assert first is not None and tuple(first) == (min(times), 0)


async def test_hot_and_cold_give_the_same_bytes_from_a_bucket_on_s3() -> None:
    """Every offset, several answer sizes, through service, manifest, footers and chunk cache."""
    life = await House().start()
    await equal_tiers(life)
    figures = life.service.figures()
    assert figures["cold_cache_misses"] > 0 and figures["cold_fetch_requests"] > 0
    await life.stop()


async def test_hot_and_cold_give_the_same_bytes_from_a_directory_bucket() -> None:
    """The same where the objects are files: sent from where they lie."""
    house = House()
    store = DirectoryStore(house.disk, LoopWorkers(), "/bucket", SeededRng(5))
    life = await house.start(store=store)
    await equal_tiers(life)
    assert life.service.figures()["cold_fetch_requests"] == 0
    await life.stop()
    await store.close()
