"""Which cold segments total retention lets go. Pure.

Always true: segments are judged oldest first and the first one kept ends the judgement; bytes count once, over both
tiers, and only what a committed manifest or the local log above it holds (KAFKA-17062, KAFKA-15479). Must not know
objects, roots, how a start is moved. Source: Kafka's RemoteLogManager.RLMExpirationTask.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from coldstore.manifest.manifest import RemoteSegment
from hotstore.log.segment import SegmentInfo


class ExpiryVerdict(Enum):
    EXPIRED = "expired"
    UNDATED = "no timestamp: goes with the next one that expires"  # a segment of declared gaps only
    KEPT = "kept"


class TotalRetention:
    """Judges a partition's cold segments, offered oldest first. `total_bytes`: of the log, both tiers, counted once;
    limits of −1: none."""

    __slots__ = ("_bytes_left", "_now_ms", "_retention_bytes", "_retention_ms")

    def __init__(self, *, retention_ms: int, retention_bytes: int, total_bytes: int, now_ms: int) -> None:
        self._retention_ms = retention_ms
        self._retention_bytes = retention_bytes
        self._bytes_left = total_bytes
        self._now_ms = now_ms

    def deleted(self, segment: RemoteSegment) -> None:
        """It lies below the log start already: it does not count."""
        self._bytes_left -= segment.log_bytes

    def judge(self, segment: RemoteSegment) -> ExpiryVerdict:
        left = self._bytes_left - segment.log_bytes
        if self._retention_bytes >= 0 and left >= self._retention_bytes:
            self._bytes_left = left
            return ExpiryVerdict.EXPIRED
        if self._retention_ms >= 0:
            if segment.max_timestamp_ms < 0:
                self._bytes_left = left
                return ExpiryVerdict.UNDATED
            if self._now_ms - segment.max_timestamp_ms > self._retention_ms:
                self._bytes_left = left
                return ExpiryVerdict.EXPIRED
        return ExpiryVerdict.KEPT


def bytes_only_local(sealed: Sequence[SegmentInfo], active: SegmentInfo, remote_end_offset: int) -> int:
    """Bytes of local segments that the bucket holds nothing of. One that straddles the remote end counts as cold: the
    difference delays a deletion, it never causes one."""
    return sum(segment.bytes for segment in (*sealed, active) if segment.base_offset >= remote_end_offset)
