"""Values of tiering: configuration, leadership, limits and status.

Immutable, with units in the names; −1 means "no limit" as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

import msgspec

from tiering.cleaning.cold_plan import ColdForecast

NO_SESSION: Final = -1


class TierConfig(msgspec.Struct, frozen=True):
    """A topic's tiering configs. `local_*` are resolved: never −2. `topic` and `configs` go into the root. `compacts`,
    `min_compaction_lag_ms` and `delete_retention_ms`: as in `LogConfig`; a pass over the bucket ends when they change,
    which a broker's config may do too."""

    enabled: bool
    internal: bool
    copy_disable: bool
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    seal_ms: int
    compacts: bool
    min_compaction_lag_ms: int
    delete_retention_ms: int
    topic: str
    configs: Mapping[str, str]

    @property
    def copies(self) -> bool:
        """Whether sealed segments are copied (KIP-950's remote.log.copy.disable stops only this)."""
        return self.enabled and not self.internal and not self.copy_disable


class Lead(msgspec.Struct, frozen=True):
    """This broker leads a partition in `leader_epoch`.

    - `new`: the partition was just created, so no broker holds data.
    - `on_fenced`: called once, on the loop, if the root names a higher epoch, with the reason.
    - `is_deleted`: whether the topic of an id is known to be deleted, so that its files may be removed.
    - `is_alone`: no other replica is assigned; `holds_alone`: no other broker ever held the partition, but a move may
      be adding one.
    - `unclean_after`: if this log may lack acknowledged records, the leader epoch that served before this one. None:
      the log is complete.
    - `broker_epoch`: this broker's session in the image that makes it leader.
    - `on_behind`: called on the loop if the log ends below the bucket's end (R18).
    """

    leader_epoch: int
    tier: TierConfig
    on_fenced: Callable[[str], None]
    new: bool = False
    is_deleted: Callable[[UUID], bool] = lambda _: True
    is_alone: bool = True
    holds_alone: bool = True
    unclean_after: int | None = None
    broker_epoch: int = NO_SESSION
    on_behind: Callable[[str], None] = lambda _: None


class TierLimits(msgspec.Struct, frozen=True):
    """A broker's limits. `verify_by_head`: in the probe the store refused a wrong checksum (C12); `one_pass`: the store
    also refused a wrong trailing checksum, so a segment may be checked while it is sent.
    """

    copy_partitions_max: int = 10
    copy_backoff_ms: int = 500
    copy_backoff_ms_max: int = 30_000
    copy_backoff_jitter: float = 0.2
    interval_ms_max: int = 30_000
    retention_check_interval_ms: int = 300_000
    gc_grace_ms: int = 600_000
    cold_compaction_grace_ms: int = 86_400_000
    cold_compaction_bytes_per_hour: int = 10 << 30  # 0: the bucket is not compacted
    reservation_offsets: int = 1 << 20
    local_bytes_max: int | None = None
    local_space_ratio_max: float = 0.8
    brokers_on_disk: int = 1  # brokers that share the file system, with this broker
    cold_reads_max: int = 10
    cold_reads_waiting_max: int = 100
    prefetch_bytes: int = 32 << 20
    cache_bytes_max: int = 1 << 30
    answer_bytes_max: int = 55 << 20
    store_timeout_s: float = 30.0
    upload_timeout_s: float = 600.0
    verify_by_head: bool = False
    one_pass: bool = False


class TierStatus(msgspec.Struct, frozen=True):
    """Status of one partition, for operators. `copy_lag_*`: data that is sealed and not in the manifest; `seal_age_ms`:
    age of the oldest unsealed record. `gaps`: declared gaps, [first, end). `blocked_by`: the reason why copies make no
    progress, None if they do; `blocked_why`: its last error. `compaction`: the next pass in the bucket;
    `replaced_bytes`: objects in the grace; `uncompacted_why`: the reason why the last pass failed.
    """

    copy_lag_bytes: int
    copy_lag_segments: int
    copy_lag_ms: int
    seal_age_ms: int
    gaps: tuple[tuple[int, int], ...]
    blocked_by: str | None
    blocked_why: str
    cold_bytes: int
    remote_end_offset: int
    compaction: ColdForecast = msgspec.field(default_factory=ColdForecast)
    replaced_bytes: int = 0
    uncompacted_why: str = ""
