"""What a broker's HTTP port says of itself and of its partitions, as these commands read it.

Owns which fields are read; one that a broker does not send is not known, one that is not read may change.
"""

from __future__ import annotations

import msgspec

from broker.observe.standing import InCluster, ReadOnly

Partition = tuple[str, int]  # topic, index


class PartitionStatus(msgspec.Struct, frozen=True):
    """What `GET /status` says of a partition (it answers an array of these); a field that is not sent is not known."""

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


class Condition(msgspec.Struct, frozen=True):
    """Something that is not as it should be, in the broker's words."""

    name: str
    says: str


class Blocked(msgspec.Struct, frozen=True):
    """Partitions that one thing keeps from sinking: how many, one of them, and what that one met last."""

    by: str
    partitions: int
    partition: str
    why: str

    def __str__(self) -> str:
        several = "partition" if self.partitions == 1 else "partitions, one is"
        name = f", {self.partition}" if self.partitions == 1 else f" {self.partition}"
        return f"blocked by {self.by}: {self.partitions} {several}{name}: {self.why or 'no cause known'}"


class BrokerStatus(msgspec.Struct, frozen=True):
    """What `GET /broker` says of the broker itself. Bytes; `not_ready` is empty when it serves."""

    node_id: int
    not_ready: str
    disk_bytes: int
    disk_free_bytes: int
    log_limit_bytes: int
    cache_bytes: int
    cache_limit_bytes: int
    cache_evictions: int
    conditions: tuple[Condition, ...]
    blocked: tuple[Blocked, ...] = ()
    cluster: InCluster | None = None
    read_only: ReadOnly | None = None
