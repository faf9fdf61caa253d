"""What a run does when it is not broken: topics are made, everything is read, the bucket's books are looked at.

Owns the first and the last acts of every world, of one broker or several. Always true: every wait is bounded; what did
not come true in time is told to `found` as an anomaly. Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from broker.error_codes import ErrorCode
from coldstore.inspection.bucket_inspection import BucketInspector
from seams.rng import SeededRng
from tests.sim.actors import NO_ANSWER, GroupMember, Reader, Stage
from tests.sim.checks.history import Final, Place
from tests.sim.client import ServerError
from tests.sim.world.cluster import Cluster
from tests.sim.world.workers import SimWorkers

READERS_REACH_END_S = 60.0

Found = Callable[[str, str], None]
"""Kind and detail of an anomaly."""


async def create_topics(
    stage: Stage,
    found: Found,
    partitions: Mapping[str, int],
    segment_bytes: int,
    more: Mapping[str, str] = MappingProxyType({}),
    tables: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """`log`: kept for ever, tiered at once. `kept`: retention by size. `more`: configs of both, before these. `tables`:
    others, of one partition, with configs of their own."""
    segment = {"internal.segment.bytes": str(segment_bytes), "remote.storage.enable": "true"}
    client = stage.client()
    minimum = {name: value for name, value in more.items() if name == "min.insync.replicas"}
    made = [
        ("log", partitions["log"], {**segment, "local.retention.bytes": "1", "retention.ms": "-1", **more}),
        ("kept", partitions["kept"], {**segment, "local.retention.bytes": "4000", "retention.bytes": "30000", **more}),
        *((name, 1, {**configs, **minimum}) for name, configs in (tables or {}).items()),
    ]
    for name, count, configs in made:
        for _ in range(20):
            try:
                await client.create_topic(name, count, configs)
                break
            except (*NO_ANSWER, ServerError) as failure:
                if isinstance(failure, ServerError) and failure.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    break
                await asyncio.sleep(0.5)
        else:
            found("not-ready", f"topic {name} could not be created")


async def read_all(stage: Stage, found: Found, places: Sequence[Place]) -> None:
    """Everything, from the log start to the end, by one last reader (G13)."""
    for place in places:
        reader = Reader(stage, "final", place, again=False)
        ends = None
        for _ in range(20):
            ends = await reader.ends()
            if ends is not None:
                break
            await asyncio.sleep(0.5)
        if ends is None:
            found("unreadable", f"{place}: ListOffsets unanswered after the last fault")
            continue
        start, end = ends
        reader.position = start
        if await reader.read_to(end, READERS_REACH_END_S):
            # A DeleteRecords that nobody waits for any more may still land meanwhile (seed 1859).
            stage.history.add(Final(place, max(start, reader.log_start), end, stage.now()))
        else:
            found("unseen", f"{place}: stuck at {reader.position} of [{start}, {end})")


async def read_group(member: GroupMember, found: Found) -> None:
    """What its groups committed, once more."""
    for name in member.names:
        for _ in range(20):
            if await member.step(name, read_only=True):
                break
            await asyncio.sleep(0.5)
        else:
            found("unreadable", f"OffsetFetch of {name} unanswered after the last fault")


async def read_again(stage: Stage, found: Found, places: Sequence[Place]) -> None:
    """The same records, from whoever serves now."""
    for place in places:
        reader = Reader(stage, "after", place, again=False)
        ends = await reader.ends()
        if ends is not None:
            reader.position = ends[0]
            if not await reader.read_to(ends[1], READERS_REACH_END_S):
                found("unseen", f"{place}: stuck at {reader.position} of {ends} after a clean restart")


def inspector_of(cluster: Cluster) -> BucketInspector:
    """Of the bucket, without its faults."""
    workers = SimWorkers(cluster.loop, SeededRng("audit"))
    return BucketInspector(cluster.plain_store(), workers)  # type: ignore[arg-type]


async def audit_bucket(cluster: Cluster, found: Found) -> None:
    """The books of every manifest balance, and every object is what it should be."""
    inspector = inspector_of(cluster)
    for topic_id, partition in await inspector.partitions():
        for told in await inspector.verify(topic_id, partition, deep=True):
            if told.kind.is_damage:
                found("bucket-damage", f"{topic_id}/{partition}: {told}")
