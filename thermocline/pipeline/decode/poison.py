"""The batch that cannot become rows, and where reading may go on behind it.

Owns `PoisonBatch`, `next_batch` and the bookkeeping of offsets met (`Coverage`), shared by both ways of decoding.
Must not know records.
"""

from __future__ import annotations

from logformat.errors import Corrupt
from logformat.record_batch import HEADER_SIZE, LENGTH_MIN, MAGIC, BatchHeader, Buffer, read_header


class PoisonBatch(Corrupt):
    """A batch whose bytes cannot become rows: damaged, or never well-formed.

    `position` is its first byte in the bytes given to `decode`; `next_position` is where the next batch begins (maybe
    their end), or None when the length cannot be trusted. `base_offset` is what stands in its header, −1 when not even
    that is there.
    """

    def __init__(self, base_offset: int, position: int, next_position: int | None, reason: str) -> None:
        super().__init__(f"batch at offset {base_offset}, position {position}: {reason}")
        self.base_offset = base_offset
        self.position = position
        self.next_position = next_position
        self.reason = reason

    def __reduce__(self) -> tuple[type[PoisonBatch], tuple[int, int, int | None, str]]:
        return type(self), (self.base_offset, self.position, self.next_position, self.reason)


def poison_at(log: Buffer, position: int, reason: str, *, checked: bool = False) -> PoisonBatch:
    """The error for the batch at `position`; `checked`: its CRC is right, so its length is."""
    if len(log) - position < HEADER_SIZE:
        return PoisonBatch(-1, position, None, reason)
    header = read_header(log, position)
    after = position + header.size
    trusted = checked or _is_plausible(log, position, header)
    return PoisonBatch(header.base_offset, position, after if trusted else None, reason)


def _is_plausible(log: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the length of a batch whose CRC is wrong (and does not cover it) leads to a batch, or to the end."""
    after = position + header.size
    if header.magic != MAGIC or header.length < LENGTH_MIN or after > len(log):
        return False
    if after == len(log):
        return True
    if len(log) - after < HEADER_SIZE:
        return False
    follower = read_header(log, after)
    return (
        follower.magic == MAGIC
        and follower.length >= LENGTH_MIN
        and follower.size <= len(log) - after
        and follower.base_offset > header.base_offset
    )


class Coverage:
    """Offsets [first, end) of the batches met, in order; adjacent ones merged."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> None:
        """`first` may be the beginning of the last range, which then has grown."""
        ranges = self.ranges
        if ranges and (ranges[-1][0] == first or ranges[-1][1] == first):
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((first, end))

    def cut(self, offset: int) -> None:
        """Forget what was met from `offset` on: the walk was ahead of a batch that turned out to be poison."""
        while self.ranges and self.ranges[-1][1] > offset:
            first, _ = self.ranges.pop()
            if first < offset:
                self.ranges.append((first, offset))
