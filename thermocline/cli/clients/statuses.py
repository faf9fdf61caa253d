"""The fields of a broker's HTTP responses that commands read. A field that a broker does not send is unknown (None)."""

from __future__ import annotations

import msgspec

from broker.observe.standing import Blocked, InCluster, ReadOnly, ShownCondition

Partition = tuple[str, int]  # topic, index


class PartitionTierStatus(msgspec.Struct, frozen=True):
    """A partition in the array of `GET /status`."""

    topic: str
    partition: int
    log_end_offset: int | None = None
    remote_end_offset: int | None = None
    local_bytes: int | None = None
    cold_bytes: int | None = None
    copy_lag_bytes: int | None = None
    copy_lag_segments: int | None = None
    copy_lag_ms: int | None = None
    seal_age_ms: int | None = None
    gaps: tuple[tuple[int, int], ...] | None = None
    blocked_by: str | None = None
    hot_bytes: int | None = None
    stale_bytes: int | None = None
    rewrite_requests: int | None = None
    rewrite_bytes: int | None = None
    replaced_bytes: int | None = None


class BrokerStatus(msgspec.Struct, frozen=True):
    """`GET /broker`. Sizes in bytes; `not_ready` is empty when the broker serves."""

    node_id: int
    not_ready: str
    disk_bytes: int
    disk_free_bytes: int
    log_limit_bytes: int
    cache_bytes: int
    cache_limit_bytes: int
    cache_evictions: int
    conditions: tuple[ShownCondition, ...]
    blocked: tuple[Blocked, ...] = ()
    cluster: InCluster | None = None
    read_only: ReadOnly | None = None


class Reloaded(msgspec.Struct, frozen=True):
    """One file in the array of `POST /reload`: `outcome` is loaded, unchanged or refused."""

    what: str
    outcome: str
    says: str = ""
