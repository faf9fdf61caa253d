"""Segment objects for tests: real batches, scanned and sealed as a copier would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import RemoteSegment
from coldstore.segments.segment_object import SegmentFooter, build_footer, entry_from_footer
from coldstore.segments.segment_scanner import Scan, SegmentScanner
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import BatchRecord, ProducerEntry, ProducerState
from logformat.records import Record, encode_batch
from tests.support.tier.cold_values import TOPIC_ID

T0 = 1_700_000_000_000


def batches(base: int, sizes: Sequence[int], *, epoch: int = 1, value_bytes: int = 20) -> list[bytes]:
    """One batch a size (records in it), offsets without a hole from `base`, timestamps growing with them."""
    made = []
    for size in sizes:
        records = [Record(n, T0 + n, b"k%d" % n, (b"%d." % n) * (value_bytes // 2)) for n in range(base, base + size)]
        made.append(encode_batch(records, base_offset=base, leader_epoch=epoch))
        base += size
    return made


def scan(
    log: bytes,
    base: int,
    end: int,
    *,
    piece: int = 1 << 20,
    chunk_bytes: int = 4096,
    interval: int = 500,
    lineage: LeaderEpochs | None = None,
) -> Scan:
    """What a copier does with the bytes of `[base, end)`; Corrupt as the scanner raises it."""
    scanner = SegmentScanner(base, len(log), lineage=lineage, chunk_bytes=chunk_bytes, index_interval_bytes=interval)
    for at in range(0, len(log), piece):
        scanner.feed(memoryview(log)[at : at + piece])
    return scanner.finish(end)


@dataclass(frozen=True)
class MadeObject:
    key: SegmentKey
    log: bytes
    data: bytes
    scan: Scan
    footer: SegmentFooter
    entry: RemoteSegment


def segment_object(base: int, sizes: Sequence[int], *, epoch: int = 1, n: int = 1, **options: int) -> MadeObject:
    """The object of `batches(base, sizes)` under a key made from `n`."""
    value_bytes = options.pop("value_bytes", 20)
    return object_of(batches(base, sizes, epoch=epoch, value_bytes=value_bytes), base, sum(sizes), epoch, n, **options)


def object_of(log_batches: Sequence[bytes], base: int, offsets: int, epoch: int, n: int, **options: int) -> MadeObject:
    log = b"".join(log_batches)
    key = SegmentKey(TOPIC_ID, 0, base, epoch, UUID(int=(n << 64) + base, version=4))
    scanned = scan(log, base, base + offsets, **options)
    producers = ProducerState(
        base + offsets,
        (ProducerEntry(7, 0, (BatchRecord(0, 4, base, base + offsets - 1, T0),), T0),),
    )
    lineage = (
        LeaderEpochs((EpochStart(0, 0), EpochStart(epoch, base))) if base else LeaderEpochs((EpochStart(epoch, 0),))
    )
    data = log + build_footer(key, "events", scanned, lineage=lineage, producers=producers)
    footer = SegmentFooter.parse(data[len(log) :], len(data))
    return MadeObject(key, log, data, scanned, footer, entry_from_footer(footer, key))
