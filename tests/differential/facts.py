"""What has to be equal once a history is over: everything that clients, operators or the next start could see.

Owns the list. Always true: two equal lists mean equal answers, logs, indexes, producers, epochs and counts. Not in it:
how long things took, how many writes and turns of the loop they needed.
"""

from __future__ import annotations

from typing import Any

from broker.net.connection import Connection
from broker.partition.leading.leader_replica import LeaderReplica
from hotstore.log.segment import Segment
from tests.differential.brokers import Way, Wire
from tests.support.disk.crash_disk import Inode

NOT_YET = frozenset({"frames", "answers together"})
"""Differences that were found and are not mended yet: nothing else may differ. Frames: of a run of acks=0 that closes
its connection, those before the refused one are neither counted nor timed. Answers together: a request of a run that
need not wait for an acknowledgement is answered with those that do."""

_ITS_OWN = frozenset({"partition.metadata", "thermocline-reservation", "recovery-point-offset-checkpoint"})


class Seen:
    """How far each log file of a way was compared already."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[Inode, int]] = {}  # of inodes, for a deleted topic's names are used again

    def news(self, way: Way, segment: Segment) -> bytes:
        """Bytes of the segment that nobody compared yet."""
        inode = way.disk._names[segment.file.path]
        _, start = self._ends.get(id(inode), (inode, 0))
        self._ends[id(inode)] = inode, len(inode.data)
        return bytes(inode.data[start:])


def of_wire(wire: Wire | None) -> dict[str, Any]:
    if wire is None:
        return {}
    connection: Connection = wire.protocol
    found: dict[str, Any] = {"answers": bytes(wire.answered), "closed": wire.closed}
    if not wire.closed:
        found["not taken"] = wire.unread + connection._reader.left
    return found


def of_partition(way: Way, partition: LeaderReplica, seen: Seen) -> dict[str, Any]:
    """A log, its role, and what it counts."""
    log = partition.log
    segments = log._locator.segments
    indexer = segments[-1].indexer
    assert indexer is not None
    found = {
        "log end": log.log_end_offset,
        "log start": partition.log_start_offset,
        "high watermark": partition.high_watermark,
        "leader epoch": partition.leader_epoch,
        "leading": partition.leading,
        "epochs": log.epochs.to_bytes(),
        "state": log.state,
        "producers": log.producers.at(log.log_end_offset).state(),
        "local bytes": log.local_bytes,
        "produced": (partition.produced_batches, partition.produced_records, partition.produced_bytes),
        "waiters": len(partition.waiters._acks),
        "bytes": b"".join([seen.news(way, s) for s in segments]),
        "segments": [(s.base_offset, s.end_offset, s.size, s.first_append_ms) for s in segments[-20:]],
        "max timestamps": [s.max_timestamp for s in segments[-20:]],
        "offset index": indexer.offset_index.to_bytes(),
        "time index": indexer.time_index.to_bytes(),
    }
    if log.config.waits_for_flush:  # else what is synced is nobody's business, and depends on turns of the loop
        found |= {"flushed end": log.flushed_end_offset, "dirty bytes": log.dirty_bytes}
    return found


def of_broker(way: Way) -> dict[str, Any]:
    """What it counts."""
    metrics, counters = way.context.metrics, way.server.counters
    return {
        "requests": metrics.requests[:],
        "answered": [sum(buckets) for buckets in metrics.latency.buckets] if "frames" not in NOT_YET else 0,
        "malformed": metrics.malformed,
        "appended": (metrics.produce_bytes_in, metrics.records_in),
        "failed produces": metrics.failed_produce_requests,
        "unexpected": metrics.unexpected_errors,
        "refused for room": dict(way.context.throttle.refused),
        "throttled": way.context.throttle.throttled_count,
        "net": (
            counters.bytes_out * ("answers together" not in NOT_YET),
            counters.frames * ("frames" not in NOT_YET),
            counters.connections_open,
        ),
        "closes": dict(counters.closes),
        "reasons": way.reasons[-5:],
        "partitions": sorted(way.context.registry.partitions),
    }


def of_files(way: Way) -> dict[str, bytes]:
    """Every file of the data directory but those with a topic's id or a reservation in them, and the one that says how
    far syncs had come when it was written."""
    return {
        path: bytes(inode.data)
        for path, inode in way.disk._names.items()
        if path.startswith("/data/") and not inode.is_dir and path.rpartition("/")[2] not in _ITS_OWN
    }


def differences(short: dict[str, Any], long: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    found = []
    for name in sorted(short.keys() | long.keys()):
        one, other = short.get(name), long.get(name)
        if one != other:
            found.append(f"{name}:\n      short way {_words(one, other)}\n      long way  {_words(other, one)}")
    return found


def _words(value: Any, other: Any) -> str:
    if isinstance(value, bytes) and isinstance(other, bytes):
        at = next(
            (at for at, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), min(len(value), len(other))
        )
        return f"{len(value)} bytes, from {max(0, at - 16)}: {value[max(0, at - 16) : at + 40].hex(' ')}"
    text = repr(value)
    return text if len(text) < 300 else text[:300] + " …"
