"""Readers whose object compaction replaced and the grace deleted: on at their offset, no row twice, none missing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from coldstore.manifest.manifest import Manifest
from logformat.record_batch import walk
from logformat.records import iter_records
from tests.support.tier.tier_kit import TOPIC, TOPIC_ID, House, Life, cold_bytes
from tests.unit.tiering.cleaning.test_cold_cleaner import (
    COMPACT,
    COMPACT_TIER,
    FAST,
    passed,
    put_until_copied,
    records_of,
    table,
)
from thermocline.pipeline.arrow_store import open_arrow_store
from thermocline.pipeline.scan import SplitReader, scan
from thermocline.pipeline.split import DataLoss, Loss, LossPolicy, RowFilter, Split, SplitPart
from tiering.reading.batch_slices import ColdSlice

NO_GRACE = replace(FAST, cold_compaction_grace_ms=0)


async def cold_read(life: Life, offset: int) -> bytes:
    """Whole batches from the bucket, as a fetch gets them."""
    async with asyncio.timeout(60):
        while True:
            found = life.opened[0].tier.read(offset, 3000, min_one=True)
            if isinstance(found, ColdSlice):
                return b"".join(r.file.read_at(r.position, r.length) for r in found.ranges)
            await found


async def test_a_cold_fetch_goes_on_in_the_new_object() -> None:
    house = House()
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=COMPACT_TIER)
    await put_until_copied(life, keys=3, rounds=8)
    old = (await house.manifest()).tail
    data = await cold_read(life, 0)
    assert data
    opened.log.reconfigure(COMPACT)
    opened.tier.reconfigure(replace(COMPACT_TIER, seal_ms=COMPACT_TIER.seal_ms + 1))
    await passed(life)
    named = {segment.uuid for segment in (await house.manifest()).tail}
    gone = [segment for segment in old if segment.uuid not in named]
    assert gone
    for segment in gone:
        del house.memory.objects[str(segment.key(TOPIC_ID, 0))]
    offset, read = table(data) and 1 + max(at for at, _ in table(data).values()), b""
    end = (await house.manifest()).remote_end_offset
    while offset < end:
        part = await cold_read(life, offset)
        read += part
        offset = 1 + max(header_end(part))
    assert {offset for offset, _ in table(read).values()} <= {
        offset for offset, _ in table(cold_bytes(house, await house.manifest())).values()
    }
    await life.stop()


def header_end(part: bytes) -> list[int]:
    return [header.last_offset for _, header in walk(part)]


def put_bucket(path: Path, objects: dict[str, bytes]) -> None:
    """As a store changes beside a reader that fetches ahead: each object appears whole, the manifest last, and what it
    does not name goes after it."""
    for key in sorted(objects, key=lambda key: key.endswith("manifest.json")):
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        made = path / f"{key}.made"
        made.write_bytes(objects[key])
        made.replace(path / key)
    for file in [each for each in path.rglob("*") if each.is_file()]:
        if str(file.relative_to(path)) not in objects:
            file.unlink()


def split_of(manifest: Manifest) -> Split:
    pieces = tuple(SplitPart(s, s.base_offset, s.end_offset, 0, s.log_bytes) for s in manifest.tail)
    return Split(TOPIC, TOPIC_ID, 0, RowFilter(0, manifest.remote_end_offset), pieces)


def contents(house: House) -> dict[str, bytes]:
    return {key: found.data for key, found in house.memory.objects.items()}


async def two_generations() -> tuple[Manifest, dict[str, bytes], Manifest, dict[str, bytes]]:
    house = House()
    life = await house.start(limits=NO_GRACE)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False, segment_bytes=4000), tier=COMPACT_TIER)
    await put_until_copied(life, keys=6, rounds=10)
    before, objects = await house.manifest(), contents(house)
    opened.log.reconfigure(replace(COMPACT, segment_bytes=9000))
    opened.tier.reconfigure(replace(COMPACT_TIER, seal_ms=COMPACT_TIER.seal_ms + 1))
    await passed(life)
    await asyncio.sleep(10)
    after, later = await house.manifest(), contents(house)
    assert not {each.uuid for each in before.tail} & {each.uuid for each in after.tail if each.base_offset == 0}
    await life.stop()
    return before, objects, after, later


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("rows_before", [0, 1, 7, 13, 40])
async def test_a_scan_that_began_before_ends_with_each_row_once(
    tmp_path: Path, rows_before: int, prefetch: int
) -> None:
    before, objects, after, later = await two_generations()
    put_bucket(tmp_path, objects)
    rows = scan(
        open_arrow_store(tmp_path.as_uri()),
        split_of(before),
        ("offset", "key"),
        target_bytes=1,
        window_bytes=600,
        prefetch=prefetch,
    )
    found: list[int] = []
    while len(found) < rows_before:
        found += next(rows).column("offset").to_pylist()
    put_bucket(tmp_path, later)
    for batch in rows:
        found += batch.column("offset").to_pylist()
    assert found == sorted(set(found))
    assert set(found) <= set(range(before.remote_end_offset))
    data = b"".join(later[str(s.key(TOPIC_ID, 0))][: s.log_bytes] for s in after.tail)
    assert {offset for offset, _ in table(data).values()} <= set(found)
    if rows_before == 0:
        assert len(found) == records_of(data)


@pytest.mark.parametrize("field", [0, 7, 8, 12, 16, 23, 26, 70])
@pytest.mark.parametrize("which", [0, 1, -1])
async def test_damage_in_the_new_object_is_never_stepped_over_in_silence(
    tmp_path: Path, which: int, field: int
) -> None:
    """Regression: the batches of the object that took over were taken by what their headers said. A length or a base
    offset that was damaged hid the batches behind it, and the scan ended without them and without a word."""
    before, objects, after, later = await two_generations()
    segment = after.tail[-1]
    key = str(segment.key(TOPIC_ID, 0))
    log = later[key][: segment.log_bytes]
    begins = [at for at, header in walk(log) if not header.is_control]
    kept = {record.offset for at in begins for record in iter_records(log, at)}
    assert len(begins) > 2
    place = begins[which] + field
    later[key] = log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :] + later[key][segment.log_bytes :]
    for fail in (True, False):
        loss, found, lost = Loss(), list[int](), set[int]()
        put_bucket(tmp_path, objects)
        store = open_arrow_store(tmp_path.as_uri())
        reader = SplitReader(store, split_of(before), ("offset",), LossPolicy(loss, fail=fail), window_bytes=600)
        opened = [reader.open(piece) for piece in reader.split.pieces]
        windows = [(piece, window) for piece in opened if piece is not None for window in reader.windows(piece)]
        put_bucket(tmp_path, later)
        for of in before.tail:
            store.forget(str(of.key(TOPIC_ID, 0)))  # a directory's files stay open
        try:
            for window in windows:
                fetched = reader.fetch(*window)
                for batch in () if fetched is None else reader.rows(fetched):
                    found += batch.column("offset").to_pylist()
        except DataLoss:
            assert fail
            continue
        assert found == sorted(set(found))
        for line in loss.damage:
            first, end = map(int, re.search(r"offsets \[(\d+), (\d+)\)", line).groups())  # type: ignore[union-attr]
            lost |= set(range(first, end))
        missing = kept - set(found)
        assert missing <= lost, (missing, loss.damage)
        assert not fail or not missing
