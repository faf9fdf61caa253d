"""What must hold at every moment, looked at while a run goes on (design 9; C13).

Always true: it only looks. A broken invariant is an `unexpected` of the stage, which fails the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from coldstore.manifest.manifest import Manifest
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Corrupt
from tests.sim.actors import Stage
from tests.sim.checks.history import Place
from tests.sim.nemesis import manifests
from tests.sim.world.cluster import Cluster, Node

_NEVER_FALL = ("log_start_offset", "deletion_cursor", "remote_end_offset", "leader_epoch")


async def watch_partitions(cluster: Cluster, stage: Stage) -> None:
    """Until cancelled: the offsets of every led partition, ten times a second."""
    while True:
        await asyncio.sleep(0.1)
        node = stage.leader()
        if node.serving:
            look_at(node, stage)


def look_at(node: Node, stage: Stage) -> None:
    """The offsets of every partition that `node`, which serves, leads."""
    if node.broker is None or node.broker.components.replicas is None:
        return
    for partition in node.broker.components.replicas._registry:
        log, tier = partition.log, partition.tier
        if not partition.leading:
            continue  # the root that fenced it may say more than its log, as after a later leader's rewrite
        if tier.enabled and tier.partition_state.manifests.manifest is None:
            continue  # serves hot reads; where the cold part ends it does not know yet
        start, local = partition.log_start_offset, log.local_log_start_offset
        held = {
            "log_start <= log_end": start <= log.log_end_offset,
            "local_start <= log_end": local <= log.log_end_offset,
            "local_start <= max(log_start, remote_end)": local <= max(start, tier.remote_end_offset),
            "last_stable <= high_watermark": partition.last_stable_offset <= partition.high_watermark,
            "high_watermark <= log_end": partition.high_watermark <= log.log_end_offset,
            # Read by a claim that is under way, the root says more than what was known when the epoch began. What a
            # lost tail left undecided in local files may be decided in the bucket. A new leader's high watermark may
            # be below a marker that the leader before had committed.
            "remote_end <= last_stable": not tier.enabled
            or not tier.partition_state.claimed
            or tier.remote_end_offset <= max(partition.last_stable_offset, _first_open(log, start))
            or bool(partition.undecided),
            "log_end <= reserved_end": log.log_end_offset <= log.reserved_end or log.reserved_end == 0,
        }
        stage.checked += len(held)
        for name, holds in held.items():
            if not holds:
                stage.unexpected.append(
                    f"{node.name} {partition.topic}-{partition.index} at {stage.now():.3f} s: not {name} "
                    f"(start {start}, local {local}, end {log.log_end_offset}, hw {partition.high_watermark}, "
                    f"remote {tier.remote_end_offset}, reserved {log.reserved_end})"
                )


def _first_open(log: PartitionLog, start: int) -> int:
    """Where the first transaction without a marker in the log begins; else the log's end. A transaction counts that has
    a record at or above the log start `start`: a log that began at `start` does not know the others, and decides the
    records above them. `log.last_stable_offset` of the log's end would forget the markers above the high watermark: the
    log would take for decided what a leader change may undo (TX21)."""
    producers = log.producers.at(log.log_end_offset)
    held = (
        first_offset
        for producer_id, first_offset in producers.open.items()
        if not (batches := producers.entries[producer_id].batches) or batches[-1].last_offset >= start
    )
    return min(held, default=log.log_end_offset)


async def watch_roots(cluster: Cluster, stage: Stage, is_purged: Callable[[UUID], bool] = lambda _: False) -> None:
    """Until cancelled: every manifest's books balance, and what never falls did not (manifest-regression).

    `is_purged`: whether a topic was deleted: a root that its leader made before may land after the purge, an orphan."""
    before: dict[Place, Manifest] = {}
    while True:
        await asyncio.sleep(1.0)
        boots = cluster.machines[0].boots
        try:
            found = await manifests(cluster)
        except Corrupt as broken:
            stage.unexpected.append(f"at {stage.now():.3f} s: {broken}")
            continue
        if boots != cluster.machines[0].boots:
            continue  # the power went while we read: half of it is of the old machine
        for place, manifest in found.items():
            try:
                manifest.check()
            except Corrupt as broken:
                stage.unexpected.append(f"{place} at {stage.now():.3f} s: {broken}")
            old = before.get(place)
            stage.checked += 1 + len(_NEVER_FALL)
            if old is not None and old.topic_id == manifest.topic_id and not is_purged(manifest.topic_id):
                withdrawn = manifest.removed.segments >= old.removed.segments + old.live.segments > old.removed.segments
                for name in _NEVER_FALL:
                    if getattr(manifest, name) < getattr(old, name) and not (withdrawn and name == "remote_end_offset"):
                        stage.unexpected.append(
                            f"manifest-regression {place} at {stage.now():.3f} s: {name} {getattr(old, name)} -> "
                            f"{getattr(manifest, name)}"
                        )
        before = found
