"""The rows of `tier status`, merged from the protocol, the brokers' HTTP ports and the bucket. Pure.

The JSON names are a contract. Offsets come from ListOffsets, so Apache Kafka gives the same row. Fields that only HTTP
or the bucket knows are None without that source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from broker.config.units import show_duration
from thermocline.cli.clients.statuses import BrokerStatus, Partition, PartitionTierStatus
from thermocline.cli.terminal.output import json_line, plain, table
from thermocline.units import show_size

if TYPE_CHECKING:
    from thermocline.cli.bucket.reading import ColdPartition


@dataclass(frozen=True, slots=True)
class StatusRow:
    """One partition, fields in printed order. Values are offsets, bytes or milliseconds; None = unknown."""

    topic: str
    partition: int
    leader: int | None = None
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None
    remote_end_offset: int | None = None
    high_watermark: int | None = None
    log_end_offset: int | None = None
    local_bytes: int | None = None
    cold_bytes: int | None = None
    copy_lag_bytes: int | None = None
    copy_lag_segments: int | None = None
    copy_lag_ms: int | None = None
    seal_age_ms: int | None = None
    gaps: tuple[tuple[int, int], ...] | None = None  # [first, end exclusive]
    blocked_by: str | None = None
    stale_bytes: int | None = None
    rewrite_requests: int | None = None
    rewrite_bytes: int | None = None
    replaced_bytes: int | None = None

    def json(self) -> str:
        return json_line(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class Offsets:
    """ListOffsets results by sentinel; partitions without a result are missing."""

    earliest: Mapping[Partition, int]
    latest: Mapping[Partition, int]
    earliest_local: Mapping[Partition, int]
    latest_tiered: Mapping[Partition, int]


def rows(
    leaders: Mapping[Partition, int],
    offsets: Offsets,
    local_bytes: Mapping[Partition, int],
    statuses: Iterable[PartitionTierStatus],
    cold: Mapping[Partition, ColdPartition],
) -> list[StatusRow]:
    known = {(status.topic, status.partition): status for status in statuses}
    made = []
    for (topic, index), leader in sorted(leaders.items()):
        partition = (topic, index)
        tiered = offsets.latest_tiered.get(partition)
        row = StatusRow(
            topic,
            index,
            leader=leader if leader >= 0 else None,
            log_start_offset=offsets.earliest.get(partition),
            local_log_start_offset=offsets.earliest_local.get(partition),
            remote_end_offset=None if tiered is None else tiered + 1,  # sentinel -5 gives the last offset, -1 for none
            high_watermark=offsets.latest.get(partition),
            local_bytes=local_bytes.get(partition),
        )
        if partition in cold:
            row = replace(row, cold_bytes=cold[partition].cold_bytes, gaps=cold[partition].gaps)
        made.append(_with_status(row, known.get(partition)))
    return made


def _with_status(row: StatusRow, status: PartitionTierStatus | None) -> StatusRow:
    if status is None:
        return row
    known = {name: value for name, value in asdict(status).items() if value is not None and hasattr(row, name)}
    if row.remote_end_offset or not status.remote_end_offset:
        # ListOffsets has the end. If everything expired, it has no record, but the end remains in the status.
        known.pop("remote_end_offset", None)
    return replace(row, **known)


_NUMBERS = (
    "part",
    "log start",
    "local start",
    "remote end",
    "high wm",
    "local",
    "cold",
    "to copy",
    "copy lag",
    "unsealed",
)


def picture(found: Sequence[StatusRow]) -> str:
    header = ("topic", *_NUMBERS, "gaps", "blocked by")
    lines = [
        (
            row.topic,
            str(row.partition),
            plain(row.log_start_offset),
            plain(row.local_log_start_offset),
            plain(row.remote_end_offset),
            plain(row.high_watermark),
            _size(row.local_bytes),
            _size(row.cold_bytes),
            _size(row.copy_lag_bytes),
            _time(row.copy_lag_ms),
            _time(row.seal_age_ms),
            _gaps(row.gaps),
            plain(row.blocked_by),
        )
        for row in found
    ]
    return "\n".join([table(header, lines, right=_NUMBERS), *filter(None, map(_compaction, found))])


def _compaction(row: StatusRow) -> str:
    """Gain and cost of the next compaction of the bucket; empty if there is none."""
    if not row.stale_bytes and not row.replaced_bytes:
        return ""
    said = [f"{show_size(row.replaced_bytes or 0)} of replaced objects are kept until their grace ends"]
    if row.stale_bytes:
        said.insert(
            0,
            f"about {show_size(row.stale_bytes)} stale in the bucket, the next compaction costs about "
            f"{row.rewrite_requests} requests and {show_size(row.rewrite_bytes or 0)} read and written",
        )
    return f"{row.topic}-{row.partition}: " + "; ".join(said if row.replaced_bytes else said[:1])


def broker_lines(broker: BrokerStatus) -> list[str]:
    """A line of figures, then a line for each condition, worst first, then a line for each cause that blocks
    copying."""
    who = f"broker {broker.node_id}"
    figures = [
        f"chunk cache {show_size(broker.cache_bytes)} of {show_size(broker.cache_limit_bytes)}, "
        f"{broker.cache_evictions} chunks evicted"
    ]
    if broker.disk_bytes:  # measured since the start
        figures.insert(0, f"disk {show_size(broker.disk_free_bytes)} free of {show_size(broker.disk_bytes)}")
        if broker.read_only is None:
            figures.insert(1, f"local logs may use {show_size(broker.log_limit_bytes)}")
    if broker.not_ready:
        figures.insert(0, f"not ready: {broker.not_ready}")
    return [
        f"{who}: {'; '.join(figures)}",
        *(() if broker.read_only is None else (f"{who}: {broker.read_only}",)),
        *(f"{who}: {held.name}: {held.says}" for held in broker.conditions),
        *(f"{who}: {blocked}" for blocked in broker.blocked),
    ]


def _size(value: int | None) -> str:
    return plain(value) if value is None else show_size(value)


def _time(value_ms: int | None) -> str:
    """A time in whole seconds, because milliseconds flicker in a live table."""
    return plain(value_ms) if value_ms is None else show_duration(value_ms // 1000 * 1000)


def _gaps(gaps: tuple[tuple[int, int], ...] | None) -> str:
    if not gaps:
        return plain(None if gaps is None else "none")
    shown = ", ".join(f"{first}–{end - 1}" for first, end in gaps[:3])
    return shown + (f" and {len(gaps) - 3} more" if len(gaps) > 3 else "")
