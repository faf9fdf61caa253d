"""Configuration of one local log, resolved from topic and broker configs.

Invalid values raise ValueError; −1 means "no limit" as in Kafka.
"""

from __future__ import annotations

from typing import Final

import msgspec

from logformat.record_batch import INT32_MAX

UNLIMITED: Final = -1
AS_TOTAL: Final = -2  # value of local.retention.* that stands for retention.*
NEVER: Final = 2**63 - 1  # Kafka's default of flush.ms and flush.messages (Long.MAX_VALUE)


class LogConfig(msgspec.Struct, frozen=True):
    """The configuration of one log: Kafka's configs, with units in their names. Defaults are Kafka's, except
    `flush_sync` (design 7)."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    flush_sync: bool = True
    """`thermocline.flush=sync`: only data covered by an fdatasync is visible and acknowledged (acks=all)."""
    flush_messages: int = NEVER
    flush_ms: int = NEVER
    producer_id_expiration_ms: int = 86_400_000
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    tiered: bool = False
    log_append_time: bool = False
    uses_ballast: bool = False
    """On a full disk, appends may use the ballast's space. Only internal topics do, because a transaction that cannot
    end prevents the upload of segments, and uploads free space (TX23).
    """
    compacts: bool = False
    """The log is cleaned by key. Internal topics are not: snapshots rewrite them."""
    min_cleanable_dirty_ratio: float = 0.5
    """The log is cleaned once its dirty bytes exceed this share of all clean and dirty bytes."""
    min_compaction_lag_ms: int = 0
    """Records younger than this are not removed."""
    max_compaction_lag_ms: int = NEVER
    """A record older than this is cleaned at any dirty ratio (KIP-354); never below `min_compaction_lag_ms`."""
    delete_retention_ms: int = 86_400_000
    """A tombstone is kept for this time after the cleaning pass that found no older record of its key (KIP-534)."""

    def __post_init__(self) -> None:
        # Each index has room for one entry in addition to the one that a roll writes.
        if not (61 <= self.segment_bytes <= INT32_MAX and self.segment_index_bytes >= 24):
            raise ValueError(
                f"segment.bytes {self.segment_bytes} or segment.index.bytes {self.segment_index_bytes} out of range"
            )
        if self.segment_ms < 1 or self.index_interval_bytes < 0 or self.producer_id_expiration_ms < 1:
            raise ValueError(
                f"segment.ms {self.segment_ms}, index.interval.bytes {self.index_interval_bytes} or "
                f"producer.id.expiration.ms {self.producer_id_expiration_ms} out of range"
            )
        if self.flush_messages < 1 or self.flush_ms < 0:
            raise ValueError(f"flush.messages {self.flush_messages} or flush.ms {self.flush_ms} out of range")
        if not (0 <= self.min_compaction_lag_ms <= self.max_compaction_lag_ms and self.delete_retention_ms >= 0):
            raise ValueError(
                f"min.compaction.lag.ms {self.min_compaction_lag_ms}, max.compaction.lag.ms "
                f"{self.max_compaction_lag_ms} or delete.retention.ms {self.delete_retention_ms} out of range"
            )
        if not 0 <= self.min_cleanable_dirty_ratio <= 1:
            raise ValueError(f"min.cleanable.dirty.ratio {self.min_cleanable_dirty_ratio} out of range")

    @property
    def waits_for_flush(self) -> bool:
        """Whether the stable end is the flushed end. flush.messages=1 has the same effect."""
        return self.flush_sync or self.flush_messages == 1

    @property
    def local_time_limit_ms(self) -> int:
        """Retention of a segment on this disk in ms; −1 without a limit by time."""
        if self.tiered and self.local_retention_ms != AS_TOTAL:
            return self.local_retention_ms
        return self.retention_ms

    @property
    def local_size_limit_bytes(self) -> int:
        """Limit on the bytes of sealed and active segments on this disk; −1 without a limit by size."""
        if self.tiered and self.local_retention_bytes != AS_TOTAL:
            return self.local_retention_bytes
        return self.retention_bytes
