"""Transactions of one log that hold back its last stable offset (KIP-98). Pure.

- A transaction is open from its producer's first transactional batch until a marker of that producer.
- It holds back the last stable offset until its marker is committed, because a leader change may remove the marker
  (TX21). So its first offset is kept until the high watermark passes the marker.
- Only these transactions and the high watermark limit the last stable offset.

Open transactions are in the order of their first offsets. Source: Kafka's ProducerStateManager.firstUnstableOffset.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from logformat.record_batch import INT64_MAX

OPEN_MAX: Final = 1 << 15
"""Open transactions of one log, about 7 MB. At the limit a new transaction is refused until another one ends; no open
transaction is ever dropped (TX28)."""


class EndedTransaction(NamedTuple):
    """A transaction whose marker may still be truncated."""

    first_offset: int
    marker_offset: int


class Transactions:
    """The transactions of one log. `first_offsets`: first offsets of the open transactions by producer id, ascending.
    `opened`: (producer id, first offset, time of the last batch in ms) of open transactions. That time is used as the
    start of the transaction."""

    __slots__ = ("_begun_ms", "_ended", "first_offsets")

    def __init__(self, opened: Iterable[tuple[int, int, int]], ended: Iterable[EndedTransaction]) -> None:
        known = sorted(opened, key=lambda of: of[1])
        self.first_offsets: OrderedDict[int, int] = OrderedDict((of[0], of[1]) for of in known)
        self._begun_ms = {of[0]: of[2] for of in known}
        self._ended: list[EndedTransaction] = []  # a heap by first offset
        self.remember_ended(ended)

    def __bool__(self) -> bool:
        """Whether any transaction may hold the last stable offset below the high watermark."""
        return bool(self.first_offsets or self._ended)

    def begin(self, producer_id: int, first_offset: int, now_ms: int) -> None:
        """Begin a transaction of a producer that has none open. Its first offset is above all others."""
        self.first_offsets[producer_id] = first_offset
        self._begun_ms[producer_id] = now_ms

    def begun_by(self, now_ms: int) -> None:
        """If the begin time of a transaction is above `now_ms`, the clock was set back. The begin time is then set to
        `now_ms`."""
        for producer_id, begun_ms in self._begun_ms.items():
            if begun_ms > now_ms:
                self._begun_ms[producer_id] = now_ms

    def begun_before(self, time_ms: int) -> list[int]:
        """Producer ids of open transactions that began before `time_ms`, by this broker's clock."""
        return [producer_id for producer_id, begun_ms in self._begun_ms.items() if begun_ms < time_ms]

    def end(self, producer_id: int, marker_offset: int) -> int | None:
        """Note the producer's marker, which was written. Returns the first offset of its transaction; None if none is
        open."""
        first_offset = self.first_offsets.pop(producer_id, None)
        self._begun_ms.pop(producer_id, None)
        if first_offset is not None:
            heappush(self._ended, EndedTransaction(first_offset, marker_offset))
        return first_offset

    def remember_ended(self, ended: Iterable[EndedTransaction]) -> None:
        for one in ended:
            heappush(self._ended, one)

    def ended_below(self, end_offset: int) -> Iterator[EndedTransaction]:
        """Ended transactions whose marker is below `end_offset` and may not be committed."""
        return (one for one in self._ended if one.marker_offset < end_offset)

    @property
    def first_open(self) -> int:
        """First offset of the oldest open transaction; INT64_MAX if none is open."""
        return next(iter(self.first_offsets.values()), INT64_MAX)

    def first_unstable(self, high_watermark: int) -> int:
        """The least first offset of the transactions that are open or have their marker at or above the high watermark.
        INT64_MAX if there are none. The high watermark must not fall between two calls."""
        ended = self._ended
        while ended and ended[0].marker_offset < high_watermark:
            heappop(ended)
        first_open = self.first_open
        return min(ended[0].first_offset, first_open) if ended else first_open
