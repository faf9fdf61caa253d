"""Estimated cost of the bucket in dollars a day, from requests and bytes.

Pure; only for display. The estimate counts the requests of this process since its start and the bytes in the manifests.
It leaves out traffic to other regions, deleted objects that bucket versioning keeps, and other readers. A directory
bucket counts as S3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coldstore.stores.metered import Meter
from coldstore.stores.operations import Operation

GIB: Final = 1 << 30
DAY_S: Final = 86_400.0
DAYS_A_MONTH: Final = 365 / 12
# The first seconds of a process have many opening requests and do not predict a day.
WINDOW_S_MIN: Final = 600.0

# Amazon S3 Standard, us-east-1, first 50 TB; traffic from S3 to the same region is free.
# Source: https://aws.amazon.com/s3/pricing/ (2025). Amazon's "GB" of storage is 2^30 bytes.
_GIB_MONTH: Final = 0.023
_PER_1000: Final[Mapping[Operation, float]] = {
    Operation.GET: 0.0004,
    Operation.GET_IF_CHANGED: 0.0004,  # a 304 and a 412 are billed like the request that they answer
    Operation.HEAD: 0.0004,
    Operation.PUT_SEGMENT: 0.005,
    Operation.PUT_ROOT: 0.005,
    Operation.LIST: 0.005,
    Operation.DELETE: 0.0,
}


def daily_cost(requests: Mapping[Operation, float], cold_bytes: int, uptime_s: float) -> float:
    """Dollars for the `requests` of `uptime_s` seconds, extrapolated to a day, and for `cold_bytes` stored for a
    day."""
    days = max(uptime_s, WINDOW_S_MIN) / DAY_S
    billed = sum(count * _PER_1000[operation] for operation, count in requests.items())
    return billed / 1000 / days + cold_bytes / GIB * _GIB_MONTH / DAYS_A_MONTH


def estimated_dollars_per_day(meters: Mapping[Operation, Meter], cold_bytes: int, uptime_s: float) -> float:
    """Estimated bill on S3 Standard, from a metered store's counters and the live bytes of all manifests."""
    return daily_cost({operation: meter.requests for operation, meter in meters.items()}, cold_bytes, uptime_s)
