"""Rules and results of a pass, as values. This module imports no kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from logformat.record_batch import INT64_MAX

LOAD_FACTOR: Final = 0.9
"""Share of a map's slots that are used, as Kafka's log.cleaner.io.buffer.load.factor by default."""


class CleanRules(msgspec.Struct, frozen=True):
    """Rules of a pass. `now_ms` in ms since 1970. A tombstone gets its delete horizon, `now_ms` +
    `delete_retention_ms`, in the first pass that keeps it, and is removed by the first pass after that time (KIP-534).
    A batch that ends at or above `tombstones_end` keeps its tombstones and gets no horizon, because older records of
    their keys may be outside this pass.

    `aborted`: (producer id, first offset, marker's offset) of aborted transactions. This pass removes their records,
    which supersede no other record. Markers stay.

    `last_offsets`: the last offset of the newest data batch of each producer that the log knows, sorted. Such a batch
    keeps its header when it has no record left, because copies of the log and rebuilt snapshots read the producer's
    last sequence from the header (Kafka's LogCleaner, lastRecordsOfActiveProducers)."""

    now_ms: int
    delete_retention_ms: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    last_offsets: tuple[int, ...] = ()
    tombstones_end: int = INT64_MAX


class Mapped(msgspec.Struct, frozen=True):
    """Progress of mapping: the first `taken_bytes`, whole batches with offsets below `end_offset`, are in the map.
    `is_full`: the next batch does not fit."""

    taken_bytes: int
    end_offset: int
    is_full: bool


@dataclass(slots=True)
class CleanStats:
    """Counts of one cleaned segment: records of data batches, bytes of all batches."""

    records_read: int = 0
    records_kept: int = 0
    keyless_dropped: int = 0
    tombstones_dropped: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    fillers: int = 0
