"""Configuration of a broker's log cleaner, Kafka's `log.cleaner.*`. Topic values are in `hotstore.log.log_config`."""

from __future__ import annotations

from typing import Final

import msgspec

from logformat.record_batch import INT32_MAX

UNTHROTTLED: Final = 1.7976931348623157e308
"""Kafka's default of log.cleaner.io.max.bytes.per.second (Double.MAX_VALUE): no limit."""


class CleanerConfig(msgspec.Struct, frozen=True):
    """Kafka's configs with units in their names, and its defaults. `broker.config` checks the values.

    - `threads`: number of passes at the same time. All passes share `dedupe_buffer_bytes` and `io_buffer_bytes`.
    - `io_buffer_load_factor`: how full a pass fills its part of the dedupe buffer with keys, above 0, at most 1.
    - `io_bytes_per_s`: limit on the bytes that all passes together read; `UNTHROTTLED` is no limit.
    - `backoff_ms`: wait when no log is to be cleaned.
    - `enabled`: if False, no log is cleaned, and compacted topics grow.
    """

    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    io_buffer_bytes: int = 512 << 10
    io_buffer_load_factor: float = 0.9
    backoff_ms: int = 15_000
    io_bytes_per_s: float = UNTHROTTLED
    enabled: bool = True

    @property
    def map_bytes(self) -> int:
        """Bytes of the map of keys of one pass; at most 2 GiB, as in Kafka."""
        return min(self.dedupe_buffer_bytes // self.threads, INT32_MAX)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the read buffer of one pass, and of its write buffer. 0 is allowed, because a step processes at
        least one batch."""
        return self.io_buffer_bytes // self.threads // 2

    @property
    def is_throttled(self) -> bool:
        """Whether `io_bytes_per_s` is a limit."""
        return self.io_bytes_per_s < UNTHROTTLED
