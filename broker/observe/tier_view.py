"""What `tier status` asks for: a line a partition (`/status`), and the broker itself (`/broker`).

Owns their fields (a contract: cli.md). Always true: it reads, it never changes anything; partitions are gone through
when somebody asks, never on a tick. Must not know how anything is counted, nor the words of a condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.context import Context
from broker.controller.membership import Membership
from broker.net.server import Server
from broker.observe.conditions import Facts, Named, conditions
from broker.observe.status import Health
from coldstore.stores.metered import MeteredStore
from hotstore.partition_log import LogState
from logformat.values import TopicPartition
from tiering.partition_state import Block
from tiering.service import TierService

# What keeps a log from taking appends comes before what keeps it from sinking.
_DISK_BLOCKS: Final = {LogState.FULL: "disk full", LogState.FAILED: "log offline"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures lie."""

    context: Context
    tiers: TierService
    store: MeteredStore
    server: Server
    membership: Membership
    health: Health
    damaged: Mapping[TopicPartition, str]  # partitions that refused to open, and why


class PartitionStatus(msgspec.Struct):
    """One line of `tier status --json`; what only HTTP knows of it. `gaps`: [first, end) of declared gaps."""

    topic: str
    partition: int
    leader: int
    log_start_offset: int
    local_log_start_offset: int
    remote_end_offset: int
    high_watermark: int
    log_end_offset: int
    local_bytes: int
    cold_bytes: int
    copy_lag_bytes: int
    copy_lag_segments: int
    copy_lag_ms: int
    seal_age_ms: int
    gaps: list[tuple[int, int]]
    blocked_by: str | None


def status_json(sources: Sources) -> bytes:
    """Every led partition's status, a JSON array."""
    return msgspec.json.encode([_status(sources, key) for key in sorted(sources.context.registry.partitions)])


def _status(sources: Sources, key: tuple[str, int]) -> PartitionStatus:
    partition = sources.context.registry.partitions[key]
    tier = partition.tier.status()
    return PartitionStatus(
        topic=partition.topic,
        partition=partition.index,
        leader=sources.context.config.node_id,
        log_start_offset=partition.log_start_offset,
        local_log_start_offset=partition.log.local_log_start_offset,
        remote_end_offset=tier.remote_end_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.log_end_offset,
        local_bytes=partition.log.local_bytes,
        cold_bytes=tier.cold_bytes,
        copy_lag_bytes=tier.copy_lag_bytes,
        copy_lag_segments=tier.copy_lag_segments,
        copy_lag_ms=tier.copy_lag_ms,
        seal_age_ms=tier.seal_age_ms,
        gaps=list(tier.gaps),
        blocked_by=_DISK_BLOCKS.get(partition.log.state, tier.blocked_by),
    )


class BrokerStatus(msgspec.Struct):
    """What `tier status` says of the broker below the table. Bytes; `not_ready` is empty when it serves."""

    node_id: int
    not_ready: str
    disk_bytes: int
    disk_free_bytes: int
    log_limit_bytes: int
    cache_bytes: int
    cache_limit_bytes: int
    cache_bytes_max: int
    cache_evictions: int
    conditions: list[Named]


def broker_json(sources: Sources) -> bytes:
    """The broker's status, a JSON object."""
    return msgspec.json.encode(broker_status(sources))


def broker_status(sources: Sources) -> BrokerStatus:
    """See `BrokerStatus`."""
    disk, figures, config = sources.tiers.disk, sources.tiers.figures(), sources.context.config
    return BrokerStatus(
        node_id=config.node_id,
        not_ready=sources.health.waiting_for,
        disk_bytes=disk.total,
        disk_free_bytes=disk.free,
        log_limit_bytes=disk.log_limit,
        cache_bytes=int(figures["cold_cache_bytes"]),
        cache_limit_bytes=int(figures["cold_cache_limit_bytes"]),
        cache_bytes_max=config.cache_bytes_max,
        cache_evictions=int(figures["cold_cache_evictions"]),
        conditions=conditions(facts(sources)),
    )


def facts(sources: Sources) -> Facts:
    """One walk over the partitions."""
    offline, full, out_of_offsets, blocked = [str(place) for place in sources.damaged], [], [], []
    lag_bytes = lag_ms = 0
    for partition in sources.context.registry:
        name, tier = f"{partition.topic}-{partition.index}", partition.tier.status()
        if partition.log.state is LogState.FAILED:
            offline.append(name)
        elif partition.log.state is LogState.FULL:
            full.append(name)
        if tier.blocked_by == Block.RESERVATION.value:
            out_of_offsets.append(name)
        if tier.blocked_by is not None:
            blocked.append(f"{name} by {tier.blocked_by}")
        lag_bytes += tier.copy_lag_bytes
        lag_ms = max(lag_ms, tier.copy_lag_ms)
    disk, outage = sources.tiers.disk, sources.membership.outage
    cache_max = 0 if sources.store.url.startswith("file:") else sources.context.config.cache_bytes_max
    return Facts(
        data_dir=sources.context.config.data_dir,
        offline=tuple(offline),
        full=tuple(full),
        out_of_offsets=tuple(out_of_offsets),
        disk_free_bytes=disk.free,
        log_limit_bytes=disk.log_limit,
        local_excess_ratio=sources.tiers.local_excess_ratio,
        store_failure=str(outage) if outage.tries else "",
        copy_lag_bytes=lag_bytes,
        copy_lag_ms=lag_ms,
        blocked=tuple(blocked),
        cache_limit_bytes=sources.tiers.cache_limit_bytes,
        cache_bytes_max=cache_max,  # a directory bucket is read in place
    )
