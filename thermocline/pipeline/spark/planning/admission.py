"""Chooses the end of a stream's next batch: all pending offsets, or a bounded share of them. Pure.

No partition moves back or past its end. The batch has exactly min(limit, pending) offsets outside declared gaps, shared
in proportion to the pending offsets of each partition, so that no partition starves. Offsets of a gap do not count, so
one batch may cross a gap of a million offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from logformat.values import TopicPartition
from thermocline.pipeline.spark.planning.offsets import PartitionOffsets

Gaps = Mapping[TopicPartition, Sequence[tuple[int, int]]]


def pending(start: int, end: int, gaps: Sequence[tuple[int, int]]) -> int:
    """Offsets in `[start, end)` outside the gaps (sorted, without overlap)."""
    return max(0, end - start) - sum(max(0, min(end, last) - max(start, first)) for first, last in gaps)


def admit(
    starts: PartitionOffsets, ends: PartitionOffsets, rows_max: int | None, gaps: Gaps
) -> dict[TopicPartition, int]:
    """End of the batch in each partition of `ends`. A partition without a start is not in the batch.

    Shares are proportional to the pending offsets; the remainder goes to the largest fractions.
    """
    waiting = {tp: pending(starts[tp], ends[tp], gaps.get(tp, ())) for tp in starts if tp in ends}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return {tp: max(starts[tp], ends[tp]) for tp in waiting}
    shares = {tp: rows_max * size // total for tp, size in waiting.items()}
    left = rows_max - sum(shares.values())
    by_remainder = sorted(waiting, key=lambda tp: (-(rows_max * waiting[tp] % total), -waiting[tp], tp))
    for tp in by_remainder[:left]:
        shares[tp] += 1
    return {tp: _advance(starts[tp], ends[tp], share, gaps.get(tp, ())) for tp, share in shares.items()}


def _advance(start: int, end: int, rows: int, gaps: Sequence[tuple[int, int]]) -> int:
    """The offset after `rows` more offsets outside the gaps, at most `end`. A gap at that point is included."""
    at = start
    for first, last in gaps:
        if last <= at:
            continue
        if at + rows < first:
            break
        rows -= max(0, first - at)
        at = last
    return max(start, min(at + rows, end))
