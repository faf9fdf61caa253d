"""What must hold between brokers at every moment, seen by one who sees them all (design of the cluster, 4).

Always true: it only looks, ten times a second, at `cluster.json` behind everybody's back, at the image that each living
broker obeys, and at the replicas it has open. What does not hold is an `unexpected` of the stage, which fails the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from broker.metadata.cluster_content import ClusterContent
from broker.metadata.data_configs import MIN_IN_SYNC, effective_min
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, ConfigsSet, MetadataRecord, Row
from logformat.errors import Corrupt
from tests.sim.checks.invariants import look_at
from tests.sim.nemesis import manifests
from tests.sim.several.checks.copies import Copies
from tests.sim.several.checks.losses import Losses
from tests.sim.several.crowd import Crowd
from tests.sim.several.fleet import Fleet

LOOK_S = 0.1
_IMAGES_KEPT = 400  # positions of which an image is remembered; brokers that lag further are not compared


class God:
    """Of one run."""

    def __init__(self, fleet: Fleet, stage: Crowd, losses: Losses, *, sync: bool) -> None:
        self._fleet = fleet
        self._losses = losses
        self._stage = stage
        self._controllers: dict[int, str] = {}  # by epoch
        self._epoch = 0
        self._images: dict[int, ClusterImage] = {}  # by position
        self._positions: dict[str, int] = {}  # of each process
        self._leaders: dict[tuple[str, int, int], str] = {}  # who led a partition in an epoch
        self._copies = Copies(fleet, fleet.acks, sync=sync, tell=stage.history.add)  # type: ignore[arg-type]

    def anew(self) -> None:
        """`cluster.json` was made anew: positions begin again, epochs of controllers and leaders do not."""
        self._images.clear()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._fleet.look()
            except Corrupt as broken:
                self._said(str(broken))
            await self._losses.look()
            self.look()

    async def watch_starts(self, tiered: Collection[str]) -> None:
        """Until cancelled, once a second: no copy of a tiered topic begins above what the bucket holds, or let go of
        more."""
        while True:
            await asyncio.sleep(1.0)
            begun = [(name, place, start) for name, place, start in self._copies.begun() if place[0] in tiered]
            try:
                roots = await manifests(self._fleet)  # as they are by now: a remote end only grows
            except Corrupt as broken:
                self._said(str(broken))
                continue
            for name, place, local_start in begun:
                root = roots.get(place)
                self._stage.checked += 1
                if root is not None and local_start > max(root.log_start_offset, root.remote_end_offset):
                    self._said(
                        f"{name} has nothing of {place} below {local_start} on its disk, the bucket nothing from "
                        f"{root.remote_end_offset} on, and the log starts at {root.log_start_offset}"
                    )

    def look(self) -> None:
        """Now."""
        self._fleet.newest()
        for broken in (*self._of_controllers(), *self._of_images(), *self._of_leaders(), *self._copies.wrong()):
            self._said(broken)
        self._stage.checked += self._copies.taken()
        for seat in self._fleet.seats:
            seat.look(self._stage.now(), is_well=seat.serving and self._fleet.reaches_store(seat))
            if seat.node is not None and seat.node.serving:
                look_at(seat.node, self._stage)

    def _said(self, what: str) -> None:
        self._stage.unexpected.append(f"{what} (at {self._stage.now():.3f} s)")

    def _of_controllers(self) -> Iterator[str]:
        """Epochs grow with every controller, and each has one."""
        root = self._fleet.root
        if root is None or not isinstance(root.content, ClusterContent):
            return
        self._stage.checked += 2
        who = f"node {root.content.controller.node_id}, incarnation {root.content.controller.incarnation}"
        if root.epoch < self._epoch:
            yield f"controller epoch {root.epoch} after {self._epoch}"
        self._epoch = max(self._epoch, root.epoch)
        if (known := self._controllers.setdefault(root.epoch, who)) != who:
            yield f"controller epoch {root.epoch} is of {known}, and of {who}"

    def _of_images(self) -> Iterator[str]:
        """At equal positions all brokers obey equal images; nobody goes back; and images follow from one another."""
        for node, position, image in self._fleet.obeyed():
            before = self._positions.get(node.name, -1)
            self._positions[node.name] = position
            if position == before:
                continue
            self._stage.checked += 2
            if position < before:
                yield f"{node.name} obeys position {position} after {before}"
            known = self._images.get(position)
            if known is None:
                newest = max(self._images, default=-1)
                if position > newest:
                    where, between = f"position {newest} to {position}", self._fleet.records(newest, position)
                    yield from of_step(self._images.get(newest), image, where, between)
                self._images[position] = image
                if len(self._images) > _IMAGES_KEPT:
                    del self._images[min(self._images)]
            elif known != image:
                yield f"{node.name} obeys another image of position {position}: {image}, others {known}"

    def _of_leaders(self) -> Iterator[str]:
        """One process leads a partition in an epoch."""
        for node, partition in self._fleet.replicas():
            if partition.leading:
                self._stage.checked += 1
                key = (str(partition.topic_id), partition.index, partition.leader_epoch)
                if (known := self._leaders.setdefault(key, node.name)) != node.name:
                    yield (
                        f"{partition.topic}-{partition.index} is led by {known} and by {node.name} in leader epoch "
                        f"{partition.leader_epoch}"
                    )


def of_step(
    before: ClusterImage | None, after: ClusterImage, where: str, between: Collection[MetadataRecord] = ()
) -> Iterator[str]:
    """What an image says by itself, and after an older one; `between`: what made the one of the other."""
    for topic in after.topics.values():
        # One commit may hold several changes of it, and who left between them.
        minimums = [
            int(record.configs.get(MIN_IN_SYNC, 1))
            for record in between
            if isinstance(record, ConfigsSet) and record.topic_id == topic.topic_id
        ]
        for index, row in enumerate(topic.rows):
            node = after.nodes.get(row.leader)
            if row.leader != NO_LEADER and (node is None or not node.active):
                yield f"{where}: {topic.name}-{index} is led by node {row.leader}, which has no session: {row}"
            if gone := {*row.replicas, *row.target} - after.nodes.keys():
                yield f"{where}: {topic.name}-{index} is assigned to nodes {sorted(gone)}, which left: {row}"
            known = None if before is None else before.topics.get(topic.topic_id)
            if known is not None and index < len(known.rows):
                wrongs = (*_of_rows(known.rows[index], row), *_of_sets(before, after, known, topic, index, minimums))
                yield from (f"{where}: {topic.name}-{index}: {wrong}" for wrong in wrongs)
    for node_id, node in after.nodes.items():
        known_node = None if before is None else before.nodes.get(node_id)
        if known_node is not None and node.broker_epoch < known_node.broker_epoch:
            yield f"{where}: node {node_id} has broker epoch {node.broker_epoch} after {known_node.broker_epoch}"


def _of_sets(
    before: ClusterImage | None,
    after: ClusterImage,
    topic_before: Topic,
    topic: Topic,
    index: int,
    minimums: Collection[int],
) -> Iterator[str]:
    """Who left an in-sync set below the minimum though his log was not gone (R4): he has the same directory, and in the
    same session nobody began a leader epoch for a log that he lost."""
    assert before is not None
    old, new = topic_before.rows[index], topic.rows[index]
    least = min(effective_min(topic_before, old, before), effective_min(topic, new, after), *minimums)
    if len(new.in_sync) >= min(least, len(old.in_sync)) or new.leader_epoch != old.leader_epoch:
        return
    left = [
        node_id
        for node_id in set(old.in_sync) - set(new.in_sync)
        if (was := before.nodes.get(node_id))
        and (now := after.nodes.get(node_id))
        and (was.broker_epoch, was.directory_id) == (now.broker_epoch, now.directory_id)  # not given up
    ]
    # Between the two images some may have left down to the minimum, and then one whose log was gone.
    if left and len(old.in_sync) - len(left) < least:
        yield f"nodes {left} left a set that is below its minimum of {least}: {old}, then {new}"


def _of_rows(before: Row, after: Row) -> Iterator[str]:
    if before == after:
        return
    if after.partition_epoch <= before.partition_epoch:
        yield f"another row of no higher partition epoch: {before}, then {after}"
    if after.leader_epoch < before.leader_epoch:
        yield f"leader epoch {after.leader_epoch} after {before.leader_epoch}"
    left = {*before.replicas, *before.target} - {*after.replicas, *after.target}
    if left and after.leader_epoch == before.leader_epoch:
        yield f"nodes {sorted(left)} left the row in leader epoch {after.leader_epoch}: {before}, then {after}"
    if after.leader != before.leader and after.leader_epoch == before.leader_epoch:
        yield f"another leader in leader epoch {after.leader_epoch}: {before}, then {after}"
