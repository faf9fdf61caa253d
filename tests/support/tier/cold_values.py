"""Made-up manifest entries for tests: plausible, distinct, reproducible."""

from __future__ import annotations

from uuid import UUID

from coldstore.manifest.manifest import RemoteSegment

TOPIC_ID = UUID("0190a8c0-0000-7000-8000-000000000001")


def remote_segment(base: int, end: int, *, epoch: int = 1, n: int | None = None, **changes: object) -> RemoteSegment:
    """The segment `[base, end)`; `n` tells attempts at the same range apart."""
    number = base if n is None else n
    values: dict[str, object] = {
        "uuid": UUID(int=(number << 64) + end, version=4),
        "base_offset": base,
        "end_offset": end,
        "leader_epoch": epoch,
        "log_bytes": 100 * (end - base),
        "object_bytes": 100 * (end - base) + 500,
        "records": end - base,
        "min_timestamp_ms": 1_700_000_000_000 + base % 2**40,
        "max_timestamp_ms": 1_700_000_000_000 + base % 2**40 + end - base - 1,
        "crc32c": (base * 2654435761 + end) % 2**32,
        "epochs": ((epoch, base),),
        **changes,
    }
    return RemoteSegment(**values)  # type: ignore[arg-type]
