"""A split (one task's share of a partition's history), and the losses that a read reports. All values pickle.

The pieces of a split are in offset order and do not overlap. A split and the declared gaps inside `[start_offset,
end_offset)` cover that range. Missing or damaged history is a DataLoss or a line in `Loss`, never silent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from coldstore.manifest.manifest_entries import RemoteSegment

log = logging.getLogger(__name__)

VERIFY: Final = (
    "run `thermocline scrub` or `thermocline bucket verify --deep`, restore the object from a copy or earlier version"
)
STEP_OVER: Final = "or read with failOnDataLoss=false (fail_on_data_loss=False) to step over it"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Wanted rows: offsets `[start_offset, end_offset)`, timestamps `[min, max)` in ms, None = open."""

    start_offset: int
    end_offset: int
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SplitPart:
    """A byte range of one segment object: whole batches with offsets `[start_offset, end_offset)`.

    `log_start` and `log_end` are positions in the log bytes, at batch borders (from the footer's offset index, or 0 and
    the log's size). Rows of the first and last batch may be outside the offsets; the RowFilter drops them.
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
    pieces: tuple[SplitPart, ...]
    gaps: tuple[tuple[int, int], ...] = ()  # declared gaps inside the range: logged and counted, never an error

    @property
    def log_bytes(self) -> int:
        return sum(piece.log_end - piece.log_start for piece in self.pieces)


@dataclass(slots=True)
class Loss:
    """Losses of a read: declared gaps, and (only with fail_on_data_loss=False) skipped damage."""

    gaps: list[tuple[str, int, int, int]] = field(default_factory=list)  # topic, partition, first, end (exclusive)
    damage: list[str] = field(default_factory=list)  # one line each: topic, partition, offsets, object, what to do


class DataLoss(Exception):
    """History is missing or damaged. The message has topic, partition, offsets, object, and a remedy."""


class LossPolicy:
    """Raises on the first loss of a read with `fail`; otherwise counts it in `loss` and logs it."""

    def __init__(self, loss: Loss, *, fail: bool, quiet: bool = False) -> None:
        """`quiet`: the caller logs the counted losses."""
        self.loss = loss
        self._quiet = quiet
        self.fail = fail

    def report(
        self,
        topic: str,
        partition: int,
        first: int,
        end: int,
        what: str,
        *,
        key: str | None = None,
        cause: BaseException | None = None,
        remedy: str = VERIFY,
        verb: str = "are lost",
    ) -> None:
        """Some or all offsets `[first, end)` of a partition cannot be read. Raises DataLoss, or counts the loss."""
        where = f" (object {key})" if key is not None else ""
        line = f"{topic}-{partition}: offsets [{first}, {end}) {verb}{where}: {what}"
        if self.fail:
            raise DataLoss(f"{line}; {remedy}, {STEP_OVER}") from cause
        if not self._quiet:
            log.warning("%s; skipped", line)
        self.loss.damage.append(f"{line}; {remedy}")
