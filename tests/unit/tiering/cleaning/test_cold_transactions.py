"""Compaction of a bucket with transactions (TX17): aborted records go and supersede nothing; markers and
section 7 stay."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from coldstore.manifest.manifest import RemoteSegment
from coldstore.segments.segment_object import DecidedTransaction, SegmentFooter, TransactionOutcome
from hotstore.cleaning.cleanable import Cleanable
from logformat.record_batch import Codec, read_header, walk
from logformat.records import Record, encode_batch, iter_records
from logformat.transaction_marker import TransactionMarker, marker_of
from tests.support.tier.tier_kit import House, Life, cold_bytes
from tests.unit.tiering.cleaning.test_cold_cleaner import (
    COMPACT,
    COMPACT_TIER,
    FAST,
    VALUE,
    findings,
    passed,
    records_of,
)
from tests.unit.tiering.cleaning.test_cold_readers_move_on import contents, put_bucket, split_of
from thermocline.pipeline.arrow_store import open_arrow_store
from thermocline.pipeline.scan import scan
from tiering.cleaning import aborted as aborted_room
from tiering.cleaning.aborted import find_aborted
from tiering.cleaning.cold_rewrite import decided_of

TIER_ON = replace(COMPACT_TIER, configs={"remote.storage.enable": "true"})
Table = dict[bytes, tuple[int, bytes | None]]


class Producers:
    """Transactional producers of one life's partition."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.sequences: dict[int, int] = {}

    def put(self, producer_id: int, *pairs: tuple[bytes, bytes | None]) -> int:
        """In the producer's open transaction, or in a new one."""
        opened, clock = self.life.opened[0], self.life.world.clock
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(pairs)
        records = [Record(at, clock.wall_ms(), key, value) for at, (key, value) in enumerate(pairs)]
        data = encode_batch(
            records,
            codec=Codec.LZ4 if sequence % 3 == 2 else Codec.NONE,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        view = memoryview(bytearray(data))
        appended = opened.log.append_transactional(view, read_header(view), self.life.epoch, clock.wall_ms())
        opened.flusher.request()
        if appended.base_offset == opened.log.active_info().base_offset:
            opened.tier.rolled()
        return appended.base_offset

    def end(self, producer_id: int, *, commit: bool) -> int:
        opened, clock = self.life.opened[0], self.life.world.clock
        marker = TransactionMarker(producer_id, 0, commit, 0)
        (offset,) = opened.log.append_markers([marker], self.life.epoch, clock.wall_ms())
        assert isinstance(offset, int)
        return offset

    def end_all(self, rng: Random) -> None:
        for producer_id in tuple(self.life.opened[0].log.producers.transactions.first_offsets):
            self.end(producer_id, commit=rng.random() < 0.5)


async def footers(house: House) -> list[SegmentFooter]:
    manifest = await house.manifest()
    datas = [house.memory.objects[str(s.key(manifest.topic_id, 0))].data for s in manifest.tail]
    return [SegmentFooter.parse(data, len(data)) for data in datas]


async def committed(house: House) -> Table:
    """As a reader of committed records sees the bucket: an object's footer tells it what to leave out."""
    found: Table = {}
    manifest = await house.manifest()
    for segment, footer in zip(manifest.tail, await footers(house), strict=True):
        assert segment.decided == len(footer.transactions)
        aborted = [t for t in footer.transactions if t.outcome is TransactionOutcome.ABORTED]
        data = house.memory.objects[str(segment.key(manifest.topic_id, 0))].data[: segment.log_bytes]
        for position, header in walk(data):
            batch = data[position : position + header.size]
            hidden = header.is_transactional and any(
                t.producer_id == header.producer_id and t.first_offset <= header.base_offset <= t.marker_offset
                for t in aborted
            )
            if not header.is_control and not hidden:
                found |= {record.key or b"": (record.offset, record.value) for record in iter_records(batch)}
    return found


def batches_of_kind(data: bytes) -> tuple[list[int], list[int]]:
    """Offsets of transactional data batches, and of markers."""
    headers = [(header, data[at : at + header.size]) for at, header in walk(data)]
    return (
        [header.base_offset for header, _ in headers if header.is_transactional and not header.is_control],
        [header.base_offset for header, batch in headers if marker_of(batch) is not None],
    )


async def test_an_aborted_record_of_the_bucket_goes_and_supersedes_nothing() -> None:
    """A pass stood still before an object whose footer names an aborted transaction."""
    house = House()
    life = await house.start(limits=FAST)
    await life.open(new=True, log=COMPACT, tier=COMPACT_TIER)
    producers = Producers(life)
    kept = life.put((b"k", b"first"))
    producers.put(7, (b"k", b"aborted" + VALUE), (b"only aborted", VALUE))
    marker = producers.end(7, commit=False)
    for number in range(12):
        life.put((b"x%d" % (number % 3), VALUE))
    await life.opened[0].tier.seal_and_copy()
    assert sum(segment.decided for segment in (await house.manifest()).tail) or (await house.manifest()).replaced
    await passed(life)
    found = await committed(house)
    assert found[b"k"] == (kept, b"first")
    assert sorted(found) == [b"k", b"x0", b"x1", b"x2"]
    data, markers = batches_of_kind(cold_bytes(house, await house.manifest()))
    assert (data, markers) == ([], [marker])
    assert [(t.producer_id, t.marker_offset) for f in await footers(house) for t in f.transactions] == [(7, marker)]
    assert life.opened[0].tier.status().uncompacted_why == "" and not house.failures
    assert await findings(house) == []
    await life.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_readers_of_the_bucket_see_the_same_table_after_passes(seed: int, tmp_path: Path) -> None:
    """Transactions that reach over objects and over passes; the same from the bucket alone, by the pipeline."""
    rng = Random(seed)
    house = House(seed=seed)
    life = await house.start(limits=FAST)
    opened = await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER_ON)
    producers = Producers(life)
    for round_number in range(3):
        for _ in range(40):
            producer_id = rng.randint(1, 3)
            if producer_id in opened.log.producers.transactions.first_offsets and rng.random() < 0.35:
                producers.end(producer_id, commit=rng.random() < 0.5)
            else:
                names = [b"k%d" % rng.randint(0, 6) for _ in range(rng.randint(1, 3))]
                producers.put(producer_id, *((name, b"%d/" % rng.randint(0, 999) + VALUE[:80]) for name in names))
            if rng.random() < 0.2:
                life.put((b"k%d" % rng.randint(0, 6), VALUE))
        producers.end_all(rng)
        await opened.tier.seal_and_copy()
        before = await committed(house)
        _, markers = batches_of_kind(cold_bytes(house, await house.manifest()))
        opened.log.reconfigure(COMPACT)
        opened.tier.reconfigure(replace(COMPACT_TIER, seal_ms=COMPACT_TIER.seal_ms + round_number))
        await passed(life)
        assert await committed(house) == before
        data = cold_bytes(house, await house.manifest())
        assert batches_of_kind(data)[1] == markers
        assert records_of(data) == len(before), "every aborted record is gone, and every superseded one"
        assert await findings(house) == []
        opened.log.reconfigure(replace(COMPACT, compacts=False))
        opened.tier.reconfigure(replace(TIER_ON, seal_ms=TIER_ON.seal_ms + round_number))
    assert not house.failures
    expected = {key: value for key, (_, value) in (await committed(house)).items()}
    await life.stop()
    put_bucket(tmp_path, contents(house))
    rows: dict[bytes, bytes | None] = {}
    for batch in scan(open_arrow_store(tmp_path.as_uri()), split_of(await house.manifest()), ("key", "value")):
        rows |= {row["key"]: row["value"] for row in batch.to_pylist()}
    assert rows == expected


async def test_a_pass_ends_before_it_knows_too_many_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    life = await house.start(limits=FAST)
    await life.open(new=True, log=replace(COMPACT, compacts=False), tier=TIER_ON)
    producers = Producers(life)
    for number in range(12):
        producers.put(7, (b"k%d" % (number % 2), VALUE))
        producers.end(7, commit=False)
    await life.opened[0].tier.seal_and_copy()
    entries = (await house.manifest()).tail
    named = dict(zip(entries, await footers(house), strict=True))
    dirt = Cleanable(0, entries[-1].end_offset, 0, 1, is_due=True)

    async def footer_of(entry: RemoteSegment) -> SegmentFooter:
        return named[entry]

    assert len((await find_aborted(entries, dirt, footer_of)).transactions) == 12
    monkeypatch.setattr(aborted_room, "ABORTED_MAX", entries[0].decided + 1)
    some = await find_aborted(entries, dirt, footer_of)
    assert 0 < len(some.transactions) <= entries[0].decided + 1 and 0 < some.end < dirt.end
    monkeypatch.setattr(aborted_room, "ABORTED_MAX", 0)
    assert (await find_aborted(entries, dirt, footer_of)).end == entries[1].base_offset, "the first is always taken"
    await life.stop()


def test_a_footer_names_a_transaction_once_whatever_its_sources_say() -> None:
    """Regression: two objects that name one marker with different first offsets (the second by a leader that had lost
    its producers) became one whose footer nobody could read: two transactions with one marker."""
    aborted, committed = TransactionOutcome.ABORTED, TransactionOutcome.COMMITTED
    first = DecidedTransaction(7, 0, 10, 30, aborted), DecidedTransaction(8, 0, 12, 31, committed)
    second = DecidedTransaction(7, 0, 20, 30, aborted), DecidedTransaction(9, 0, 22, 33, aborted)
    behind_a_gap = (DecidedTransaction(9, 0, 22, 41, aborted),)
    sources = [SimpleNamespace(transactions=each) for each in (first, second, behind_a_gap)]
    assert sorted(decided_of(sources)) == [*first, *behind_a_gap]  # type: ignore[arg-type]
