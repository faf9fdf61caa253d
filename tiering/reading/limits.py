"""Bounds of a broker's cold reads, from its configuration. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from tiering.tier_config import TierLimits

MIB: Final = 1 << 20
RANGE_BYTES_MAX: Final = 4 * MIB  # per GET; a chunk is one GET


class ReadLimits(msgspec.Struct, frozen=True):
    """`hold_bytes`: bytes of chunks that are assumed to stay in the page cache (kernel memory); `unread_bytes_max`:
    bytes of prefetched chunks, a share of `hold_bytes` and of the chunk cache; `pin_s`: time for which a chunk is kept
    for a notified reader."""

    queue_max: int = 100
    concurrency: int = 10
    prefetch_chunks: int = 8
    bytes_in_flight_max: int = 64 * MIB
    deadline_s: float = 30.0
    hold_bytes: int = 256 * MIB
    unread_bytes_max: int = 128 * MIB
    pin_s: float = 30.0


DEFAULT_LIMITS: Final = ReadLimits()


def read_limits(limits: TierLimits) -> ReadLimits:
    """A broker's limits for its cold reads.

    A loaded chunk keeps its file's disk space even after the cache evicted it. So at most a quarter of the cache is
    loaded, and half of that prefetched. The minimum is one answer and another reader's next chunk.
    """
    answer = -(-limits.answer_bytes_max // RANGE_BYTES_MAX) * RANGE_BYTES_MAX
    hold = min(DEFAULT_LIMITS.hold_bytes, max(limits.cache_bytes_max // 4, answer + RANGE_BYTES_MAX))
    return ReadLimits(
        queue_max=limits.cold_reads_waiting_max,
        concurrency=limits.cold_reads_max,
        prefetch_chunks=limits.prefetch_bytes // RANGE_BYTES_MAX,
        deadline_s=limits.store_timeout_s,
        hold_bytes=hold,
        unread_bytes_max=hold // 2,
    )
