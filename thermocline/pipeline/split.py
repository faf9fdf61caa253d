"""A split: one task's share of a topic-partition's history, as a small value that travels to a worker.

Owns `Piece`, `Split`, `RowFilter`, `Loss`. Always true: the pieces of a split are in offset order, do not overlap, and
a split plus the declared gaps inside `[start_offset, end_offset)` covers that range. Everything here pickles. Must not
know how bytes are fetched or decoded, nor Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from coldstore.manifest.manifest_entries import RemoteSegment


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows outside are not wanted: offsets `[start_offset, end_offset)`, timestamps `[min, max)` in ms, None = open."""

    start_offset: int
    end_offset: int
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A byte range of one segment object: whole batches holding offsets `[start_offset, end_offset)`.

    `log_start`/`log_end` are positions in the log bytes, at batch borders (they come from the footer's offset index, or
    are 0 and the log's size). Rows of the first and last batch may lie outside the offsets: the RowFilter cuts them.
    """

    segment: RemoteSegment
    start_offset: int
    end_offset: int
    log_start: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Split:
    """One task: rows of one topic-partition, from the bucket."""

    topic: str
    topic_id: UUID
    partition: int
    rows: RowFilter
    pieces: tuple[Piece, ...]
    gaps: tuple[tuple[int, int], ...] = ()  # declared gaps inside the range: logged and counted, never an error

    @property
    def log_bytes(self) -> int:
        return sum(piece.log_end - piece.log_start for piece in self.pieces)


@dataclass(slots=True)
class Loss:
    """What a read met that is not there: declared gaps, and (only with fail_on_data_loss=False) damage stepped over."""

    gaps: list[tuple[str, int, int, int]] = field(default_factory=list)  # topic, partition, first, end (exclusive)
    damage: list[str] = field(default_factory=list)  # one line each: topic, partition, offsets, object, what to do


class DataLoss(Exception):
    """History that should be there is missing or damaged. Says topic, partition, offsets, object, and what to do."""
