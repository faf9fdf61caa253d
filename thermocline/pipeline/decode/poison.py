"""`PoisonBatch`, a batch that cannot become rows, and `Coverage`, the offsets of the batches decoded so far."""

from __future__ import annotations

from logformat.errors import Corrupt
from logformat.record_batch import HEADER_SIZE, LENGTH_MIN, MAGIC, BatchHeader, Buffer, read_header


class PoisonBatch(Corrupt):
    """A batch whose bytes cannot become rows: damaged, or malformed from the start.

    `position` is its first byte in the bytes given to `decode`. `next_position` is the start of the next batch (or the
    end), None when the length cannot be trusted. `base_offset` is the base offset in its header, −1 when the header is
    cut.
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
    """The error for the batch at `position`. `checked`: its CRC, and so its length, is valid."""
    if len(log) - position < HEADER_SIZE:
        return PoisonBatch(-1, position, None, reason)
    header = read_header(log, position)
    after = position + header.size
    trusted = checked or _is_plausible(log, position, header)
    return PoisonBatch(header.base_offset, position, after if trusted else None, reason)


def _is_plausible(log: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the length of a batch with a wrong CRC leads to a batch or to the end. (The CRC does not cover the
    length.)
    """
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
    """Offsets [first, end) of the batches so far, in order; adjacent ranges merged."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> None:
        """`first` may be the start of the last range, which then grows."""
        ranges = self.ranges
        if ranges and (ranges[-1][0] == first or ranges[-1][1] == first):
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((first, end))

    def cut(self, offset: int) -> None:
        """Remove the offsets from `offset` on: the walk ran ahead of a batch that turned out to be poison."""
        while self.ranges and self.ranges[-1][1] > offset:
            first, _ = self.ranges.pop()
            if first < offset:
                self.ranges.append((first, offset))
