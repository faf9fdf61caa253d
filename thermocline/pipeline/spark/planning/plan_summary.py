"""Summary of a batch's plan, to be printed: amounts read and pruned. Pure.

Pruned is the difference between `held` (everything in the chosen partitions, both tiers) and `read`. Bytes are of log,
before decompression. An index interval at a cut between tasks is read twice and counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from logformat.values import TopicPartition
from thermocline.pipeline.rows import DEFAULT_COLUMNS
from thermocline.pipeline.spark.planning.filters import OFFSET_END, Bounds
from thermocline.pipeline.spark.tiers import PartitionState
from thermocline.pipeline.split import Split
from thermocline.units import show_size

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tasks import Task


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of history. `log_bytes` and `segments` count the bucket only, offsets both tiers."""

    offsets: int = 0
    segments: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The summary of one read. `pushed` False: Spark pushed no filters."""

    url: str
    topics: tuple[str, ...]
    partitions: int
    read: Amount
    held: Amount
    tail_offsets: int
    tasks: int
    columns: tuple[str, ...]
    bounds: Bounds
    pushed: bool

    def line(self) -> str:
        read, held = self.read, self.held
        return (
            f"read of {self.url}: {read.offsets:,} of {held.offsets:,} offsets, {read.segments:,} of "
            f"{held.segments:,} segments, {show_size(read.log_bytes)} of {show_size(held.log_bytes)} of log "
            f"({show_size(self.pruned_bytes)} pruned), {self.tail_offsets:,} offsets from brokers, {self.tasks:,} tasks"
        )

    @property
    def _all_columns(self) -> bool:
        return set(DEFAULT_COLUMNS) <= set(self.columns)

    @property
    def pruned_bytes(self) -> int:
        return max(0, self.held.log_bytes - self.read.log_bytes)

    def lines(self) -> Sequence[tuple[str, str]]:
        read, held = self.read, self.held
        return [
            ("bucket", self.url),
            ("topics", f"{', '.join(self.topics)} ({self.partitions:,} partitions)"),
            ("offsets", _of(read.offsets, held.offsets)),
            ("segments", _of(read.segments, held.segments)),
            ("log bytes", f"{_of(read.log_bytes, held.log_bytes)}: {show_size(read.log_bytes)} to read"),
            ("hot tail", f"{self.tail_offsets:,} offsets come from brokers" if self.tail_offsets else "none"),
            ("tasks", f"{self.tasks:,}"),
            ("filters", self._filters()),
            (
                "columns",
                ", ".join(self.columns)
                + ("; a .schema() with fewer columns decodes fewer, select() does not" if self._all_columns else ""),
            ),
        ]

    def _filters(self) -> str:
        if not self.pushed:
            return "none pushed: spark.sql.python.filterPushdown.enabled is off"
        bounds, parts = self.bounds, []
        if bounds.start_offset > 0:
            parts.append(f"offset >= {bounds.start_offset}")
        if bounds.end_offset < OFFSET_END:
            parts.append(f"offset < {bounds.end_offset}")
        if bounds.min_timestamp_ms is not None:
            parts.append(f"timestamp >= {bounds.min_timestamp_ms} ms")
        if bounds.max_timestamp_ms is not None:
            parts.append(f"timestamp < {bounds.max_timestamp_ms} ms")
        if bounds.topics is not None:
            parts.append(f"topic in {', '.join(sorted(bounds.topics)) or 'nothing'}")
        if bounds.topic_prefix:
            parts.append(f"topic like {bounds.topic_prefix}…")
        if bounds.partitions is not None:
            parts.append(f"partition in {', '.join(map(str, sorted(bounds.partitions))) or 'nothing'}")
        return ", ".join(parts) or "no filter that a plan can use (offset, timestamp, partition, topic)"

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.lines())
        return "\n".join(["thermocline", *(f"  {label:<{width}}  {words}" for label, words in self.lines())])


def summed(one: Iterable[Amount]) -> Amount:
    amounts = list(one)
    return Amount(*(sum(getattr(amount, field.name) for amount in amounts) for field in fields(Amount)))


def held_by(states: Mapping[TopicPartition, PartitionState]) -> Amount:
    """Everything in the partitions, by the sums in their manifests."""
    return summed(
        Amount(
            state.extent.end - state.extent.start,
            0 if state.cold is None else state.cold.manifest.live.segments,
            0 if state.cold is None else state.cold.manifest.live.log_bytes,
        )
        for state in states.values()
    )


def read_by(tasks: Iterable[Task]) -> Amount:
    """Amounts that the tasks read; a segment shared by two tasks counts once."""
    parts = [part for task in tasks for part in task]
    splits = [part for part in parts if isinstance(part, Split)]
    return Amount(
        sum(part.rows.end_offset - part.rows.start_offset for part in parts),
        len({piece.segment.uuid for split in splits for piece in split.pieces}),
        sum(split.log_bytes for split in splits),
    )


def tail_offsets_of(tasks: Iterable[Task]) -> int:
    return sum(part.offsets for task in tasks for part in task if not isinstance(part, Split))


def _of(read: int, held: int) -> str:
    return f"{read:,} of {held:,} ({max(0, held - read):,} pruned)"
