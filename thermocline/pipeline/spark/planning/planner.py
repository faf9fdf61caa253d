"""Turns offset ranges into tasks: splits of the bucket below the seam, parts of the hot tail above it.

The parts of a partition cover its range once, over both tiers. Declared gaps are logged. Undeclared gaps raise
DataLoss, or are logged with failOnDataLoss=false.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

from logformat.values import TopicPartition
from thermocline.pipeline.spark.options import Options
from thermocline.pipeline.spark.planning.filters import Bounds
from thermocline.pipeline.spark.tiers import States, Tiers
from thermocline.pipeline.split import DataLoss, Loss, RowFilter, Split

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tail import TailPart
    from thermocline.pipeline.spark.tasks import Part, Task

log = logging.getLogger(__name__)

# A Python task costs 16–45 ms of Spark's time, about the time to decode this much log. Smaller parts share a task, so
# that a stream over a hundred quiet partitions starts one task per batch, not a hundred.
PACK_BYTES: Final = 8 << 20
TAIL_OFFSET_BYTES: Final = 2048  # assumed cost of a tail record, whose size is unknown

Ranges = Mapping[TopicPartition, tuple[int, int]]


def plan_tasks(tiers: Tiers, states: States, ranges: Ranges, bounds: Bounds, options: Options) -> list[Task]:
    """Tasks that read `ranges` within `bounds`, in order. Raises DataLoss for missing offsets."""
    cold: dict[tuple[str, int], tuple[int, int]] = {}
    hot: dict[TopicPartition, RowFilter] = {}
    for tp, (start, end) in sorted(ranges.items()):
        rows = bounds.rows(start, end)
        if not bounds.wants(*tp) or rows.start_offset >= rows.end_offset:
            continue
        seam = states[tp].seam if states[tp].cold is not None else rows.start_offset
        if rows.start_offset < seam:
            cold[tp] = (rows.start_offset, min(rows.end_offset, seam))
        if rows.end_offset > seam:
            first = max(rows.start_offset, seam)
            hot[tp] = RowFilter(first, rows.end_offset, rows.min_timestamp_ms, rows.max_timestamp_ms)
    hot_offsets = sum(rows.end_offset - rows.start_offset for rows in hot.values())
    cold_offsets = sum(end - start for start, end in cold.values())
    wished = options.min_partitions or 0
    loss = Loss()
    splits = tiers.history.plan(
        cold,
        min_timestamp_ms=bounds.min_timestamp_ms,
        max_timestamp_ms=bounds.max_timestamp_ms,
        late_ms=options.late_ms,
        target_bytes=options.target_partition_bytes,
        min_partitions=-(-wished * cold_offsets // (cold_offsets + hot_offsets)) or None if cold_offsets else None,
        max_records=options.max_records_per_partition,
        fail_on_data_loss=options.fail_on_data_loss,
        loss=loss,
        parts={tp: part for tp, state in states.items() if tp in cold and (part := state.cold) is not None},
    )
    ids = {tp: states[tp].topic_id for tp in hot}
    tail = _tail_parts(hot, ids, wished - len(splits), options.max_records_per_partition)
    _report(tiers.history.store.url, splits, tail, hot_offsets, loss.damage)
    exact = options.min_partitions is not None or options.max_records_per_partition is not None
    parts: list[Part] = [*splits, *tail]
    return [(part,) for part in parts] if exact else packed(parts)


def packed(parts: Iterable[Part]) -> list[Task]:
    """The parts in the same order, small parts together up to `PACK_BYTES`. A part is never cut."""
    tasks: list[Task] = []
    room = 0
    for part in parts:
        size = part.log_bytes if isinstance(part, Split) else part.offsets * TAIL_OFFSET_BYTES
        if tasks and size <= room:
            tasks[-1] = (*tasks[-1], part)
            room -= size
        else:
            tasks.append((part,))
            room = PACK_BYTES - size
    return tasks


def fail_or_log(lost: Sequence[str], fail_on_data_loss: bool) -> None:
    """Missing offsets raise DataLoss, or are logged, one line each."""
    if lost and fail_on_data_loss:
        raise DataLoss("; ".join(lost) + "; set failOnDataLoss=false to read the remaining records")
    for line in lost:
        log.warning("data loss: %s", line)


def split_range(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """`[start, end)` in `parts` even ranges, or fewer if there are fewer offsets."""
    parts = max(1, min(parts, end - start))
    cuts = [start + (end - start) * number // parts for number in range(parts + 1)]
    return list(pairwise(cuts))


def _tail_parts(
    hot: Mapping[TopicPartition, RowFilter],
    ids: Mapping[TopicPartition, UUID | None],
    parts_min: int,
    records_max: int | None,
) -> list[TailPart]:
    """One part per partition, or more if records_max or parts_min require it."""
    if not hot:
        return []  # returns before the import of the client library
    from thermocline.pipeline.spark.tail import TailPart

    total = sum(rows.end_offset - rows.start_offset for rows in hot.values())
    found = []
    for tp, rows in hot.items():
        size = rows.end_offset - rows.start_offset
        parts = max(-(-size * parts_min // total), -(-size // records_max) if records_max else 1)
        for start, end in split_range(rows.start_offset, rows.end_offset, parts):
            wanted = RowFilter(start, end, rows.min_timestamp_ms, rows.max_timestamp_ms)
            found.append(TailPart(tp.topic, tp.partition, wanted, ids[tp]))
    return found


def _report(url: str, splits: Sequence[Split], tail: Sequence[object], hot_offsets: int, damage: Iterable[str]) -> None:
    """Log one line about the plan; a warning, with every gap, when records are missing."""
    gaps = sorted({(split.topic, split.partition, *gap) for split in splits for gap in split.gaps})
    for topic, partition, first, end in gaps:
        log.warning("declared gap: %s-%d has no records at offsets [%d, %d)", topic, partition, first, end)
    for line in damage:
        log.warning("data loss: %s", line)
    size = sum(split.log_bytes for split in splits)
    line = (
        f"read of {url}: {len(splits)} splits with {size} bytes of log, {len(tail)} parts of the hot tail with "
        f"{hot_offsets} offsets, {len(gaps)} declared gaps with {sum(end - first for *_, first, end in gaps)} offsets"
    )
    log.log(logging.WARNING if gaps else logging.INFO, line)
