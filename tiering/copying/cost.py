"""Estimated cost of the bucket in dollars a day, from requests and bytes.
Pure; for people only. It counts what this process sent since its start and what the manifests hold. It leaves out
traffic out of the region, deleted objects kept by bucket versioning, and other readers. A directory bucket counts as
S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coldstore.stores.metered import Meter
from coldstore.stores.operations import Operation

GIB: Final = 1 << 30
DAY_S: Final = 86_400.0
DAYS_A_MONTH: Final = 365 / 12
# The first seconds of a process, with all its opening requests, do not predict a day.
WINDOW_S_MIN: Final = 600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for a thousand requests of each class, and for a GiB a month."""

    write_per_1000: float  # PUT, POST, COPY, LIST
    read_per_1000: float  # GET, HEAD and all others; a 304 and a 412 are billed as what they answer
    delete_per_1000: float
    gib_month: float


# Amazon S3 Standard, us-east-1, first 50 TB; traffic from S3 to the same region is free.
# Source: https://aws.amazon.com/s3/pricing/ (2025). Amazon's "GB" of storage is 2^30 bytes.
S3_STANDARD: Final = Prices(write_per_1000=0.005, read_per_1000=0.0004, delete_per_1000=0.0, gib_month=0.023)

_CLASS: Final[Mapping[Operation, str]] = {
    Operation.GET: "read",
    Operation.GET_IF_CHANGED: "read",
    Operation.HEAD: "read",
    Operation.PUT_SEGMENT: "write",
    Operation.PUT_ROOT: "write",
    Operation.LIST: "write",
    Operation.DELETE: "delete",
}


@dataclass(frozen=True, slots=True)
class DailyCost:
    """Dollars a day by class."""

    writes: float
    reads: float
    deletes: float
    storage: float

    @property
    def total(self) -> float:
        return self.writes + self.reads + self.deletes + self.storage


def daily_cost(
    requests: Mapping[Operation, float], cold_bytes: int, uptime_s: float, prices: Prices = S3_STANDARD
) -> DailyCost:
    """Extrapolate `requests` of each operation in `uptime_s` seconds to a day; `cold_bytes` are stored for a day."""
    days = max(uptime_s, WINDOW_S_MIN) / DAY_S
    billed = {"read": 0.0, "write": 0.0, "delete": 0.0}
    for operation, count in requests.items():
        billed[_CLASS[operation]] += count
    return DailyCost(
        writes=billed["write"] / 1000 * prices.write_per_1000 / days,
        reads=billed["read"] / 1000 * prices.read_per_1000 / days,
        deletes=billed["delete"] / 1000 * prices.delete_per_1000 / days,
        storage=cold_bytes / GIB * prices.gib_month / DAYS_A_MONTH,
    )


def estimated_dollars_per_day(meters: Mapping[Operation, Meter], cold_bytes: int, uptime_s: float) -> float:
    """Estimated bill on S3 Standard, from a metered store's counters and the live bytes of all manifests."""
    requests = {operation: float(meter.requests) for operation, meter in meters.items()}
    return daily_cost(requests, cold_bytes, uptime_s).total
