"""The brokers of one cluster: a seat for each node id, with a machine, an address and a directory of its own.

Owns who sits where, and who has which role. Always true: a seat has one living process at most; a process is started on
a machine that has power. Must not know faults or clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock
from uuid import UUID

from broker.following.image_feed import ImageFeed
from broker.metadata.cluster_content import CLUSTER_FORMAT, ClusterContent, Content
from broker.metadata.cluster_root import ImageAt
from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord, Row
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.in_sync import AppliedRow
from coldstore.keys import cluster_key
from coldstore.object_store import ObjectMissing
from coldstore.roots.root import Root
from coldstore.roots.root_format import RootCodec
from hotstore.host.log_directories import LogDirectories
from logformat.values import TopicPartition
from seams.rng import SeededRng
from tests.sim.checks.checker import COMMIT_LOSS_S
from tests.sim.checks.history import Place
from tests.sim.checks.read_roots import ReadRoots
from tests.sim.several.checks.acks import Acks, Began
from tests.sim.world.bucket import RemoteBucket
from tests.sim.world.cluster import HOST, Cluster, Node
from tests.sim.world.late import Late
from tests.sim.world.links import STORE
from tests.sim.world.loop import PROCESS, SimLoop
from tests.sim.world.machines import Machine
from tests.sim.world.transport import Address

FIRST_PORT = 9092
RACK_SELECTOR = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"


def rack_of(node_id: int) -> str:
    """Each stands in one of its own."""
    return f"r{node_id}"


class Rot(NamedTuple):
    """A damaged batch, as it lies in its file, and the bit that flipped."""

    path: str
    at: int
    data: bytes
    position: int
    bit: int


@dataclass
class Seat:
    """Where one node id lives.

    `back_at_s`: before that nobody starts it again; `blank`: its directory was lost and no process has registered with
    a new one since; `rotten`: its logs with a flipped bit, some of which may be gone; `well_since_s`: it serves and
    reaches the store (None: it does not), `well_until_s`: where the last such time of `COMMIT_LOSS_S` at least ended;
    `short_since_s`: of partitions whose in-sync sets are smaller than their minimums in the image that its broker
    obeys, since when they are."""

    node_id: int
    machine: Machine
    node: Node | None = None
    directories: int = 1
    back_at_s: float = 0.0
    blank: bool = False
    well_since_s: float | None = None
    well_until_s: float = 0.0
    short_since_s: dict[Place, float] = field(default_factory=dict)
    rotten: dict[Place, Rot] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return self.machine.name

    @property
    def address(self) -> tuple[str, int]:
        return HOST, FIRST_PORT + self.node_id

    @property
    def directory(self) -> str:
        return f"n{self.node_id}d{self.directories}"

    @property
    def serving(self) -> bool:
        return self.node is not None and self.node.serving

    def rotten_in(self, place: Place) -> bool:
        """Whether its log of this partition is damaged now."""
        rot = self.rotten.get(place)
        inode = None if rot is None else self.machine.disk._names.get(rot.path)
        return rot is not None and inode is not None and inode.data[rot.at : rot.at + len(rot.data)] == rot.data

    def look(self, now_s: float, *, is_well: bool) -> None:
        """Note whether it is well now."""
        if not is_well:
            self.well_since_s = None
        elif self.well_since_s is None:
            self.well_since_s = now_s
        elif now_s - self.well_since_s >= COMMIT_LOSS_S:
            self.well_until_s = now_s


class Obeyed(NamedTuple):
    """What one broker obeys."""

    node: Node
    position: int
    image: ClusterImage


class Fleet(Cluster):
    """`count` brokers, node ids from 0. `spares` more, of the next ids, are nobody's before somebody takes a seat of
    them into `seats`; `everywhere`: of all."""

    def __init__(
        self,
        loop: SimLoop,
        seed: str,
        count: int,
        settings: Sequence[str] = (),
        *,
        spares: int = 0,
        late: Late | None = None,
        encrypts: bool = False,
    ) -> None:
        machines = [f"m{node_id}" for node_id in range(count + spares)]
        of_bucket: Any = {"directory_bucket": False, "encrypts": encrypts}
        super().__init__(loop, seed, settings=settings, machines=machines, late=late, **of_bucket)
        self.everywhere = [Seat(node_id, machine) for node_id, machine in enumerate(self.machines)]
        self.seats = self.everywhere[:count]
        self.acks = Acks()
        self.root: Root[Content] | None = None
        self._newest: Obeyed | None = None
        self._codec: ReadRoots[Content] = ReadRoots(RootCodec(CLUSTER_FORMAT))

    # --- processes ---
    def sit(self, seat: Seat) -> Node:
        """Start the broker of a seat."""
        assert seat.node is None or seat.node.dead, f"{seat.node} runs"
        extra = (f"node.id={seat.node_id}", f"broker.rack={rack_of(seat.node_id)}", RACK_SELECTOR)
        seat.node = self.start(seat.directory, seat.address[1], *extra, machine=seat.machine)
        seat.node.led = self.acks.began
        seat.node.obeys = partial(self._obeys, seat)
        seat.short_since_s = {}
        return seat.node

    def _obeys(self, seat: Seat, image: ClusterImage) -> None:
        """The broker of a seat obeys another image now: note which in-sync sets are too small in it; and that there is
        this image, also if nobody else obeys it before that broker dies."""
        self.newest()
        now_s = self.loop.time()
        short = [
            (topic.name, index)
            for topic in image.topics.values()
            for index, row in enumerate(topic.rows)
            if sum(image.nodes[member].active for member in row.in_sync) < effective_min(topic, row, image)
        ]
        seat.short_since_s = {place: seat.short_since_s.get(place, now_s) for place in short}

    def reaches_store(self, seat: Seat) -> bool:
        """Whether its requests to the store are served and answered."""
        links = self.net.links
        if self.rights[seat.place].denies:
            return False
        if not links.up(seat.place, STORE) or not links.up(STORE, seat.place) or self.store.down:
            return False
        store = getattr(seat.node, "store", None)
        return not self.store.plan.rates and isinstance(store, RemoteBucket) and not store.down

    def lose_disk(self, seat: Seat) -> None:
        """The machine fails with its disk; another one comes in its place, with an empty directory."""
        assert seat.node is not None
        self.net.dark.add(seat.place)  # no word of it
        self.kill(seat.node)
        seat.machine.lose(seat.directory)
        seat.directories += 1

    def replace(self, seat: Seat) -> None:
        """Its process, which has stopped, is followed by one on an empty directory."""
        assert seat.node is None or seat.node.dead
        seat.machine.lose(seat.directory)
        seat.directories += 1

    def cut_power(self, seat: Seat, keep: float, rng: SeededRng) -> None:
        self.power_cut(keep, rng, seat.machine)

    def addresses(self) -> list[tuple[str, int]]:
        """Of those who have a seat now."""
        return [seat.address for seat in self.seats]

    # --- roles ---
    async def look(self) -> None:
        """Read `cluster.json` behind everybody's back."""
        try:
            self.root = self._codec.decode(cluster_key(), await self.plain_store().get(cluster_key()))
        except ObjectMissing:
            self.root = None

    def controller(self) -> Seat | None:
        """Of whom `cluster.json` says so, when it was looked at last."""
        content = None if self.root is None else self.root.content
        return self._seat(content.controller.node_id) if isinstance(content, ClusterContent) else None

    def leader_of(self, place: Place) -> Seat | None:
        """As the newest image has it."""
        row = self.row_of(place)
        return None if row is None else self._seat(row.leader)

    def row_of(self, place: Place) -> Row | None:
        """As the newest image has it."""
        newest = self.newest()
        topic = None if newest is None else newest.image.topic_named(place[0])
        return None if topic is None or place[1] >= topic.partitions else topic.rows[place[1]]

    def is_deleted(self, topic_id: UUID) -> bool:
        """Whether the newest image knows no such topic any more."""
        newest = self.newest()
        return newest is not None and str(topic_id) not in newest.image.topics

    def partitions(self) -> list[Place]:
        """Of all topics, groups' too, as the newest image has them."""
        newest = self.newest()
        topics = sorted((topic.name, topic.partitions) for topic in (newest.image.topics.values() if newest else ()))
        return [(name, index) for name, partitions in topics for index in range(partitions)]

    def _seat(self, node_id: int) -> Seat | None:
        return next((seat for seat in self.seats if seat.node_id == node_id), None)

    # --- what brokers believe ---
    def anew(self) -> None:
        """Nobody lives, and what they believed is nothing to those who come: positions begin again."""
        self._newest = None

    def obeyed(self) -> Iterator[Obeyed]:
        """By every broker that lives and obeys an image."""
        for seat in self.seats:
            node = seat.node
            if node is not None and not node.dead and node.feed is not None and node.feed.position >= 0:
                yield Obeyed(node, node.feed.position, node.feed.image)

    def topic_id_at(self, address: Address, name: str) -> UUID | None:
        """Of the topic that the broker at this address knows by that name."""
        at = next((seat for seat in self.seats if seat.address == address), None)
        image = next((obeyed.image for obeyed in self.obeyed() if at is not None and obeyed.node is at.node), None)
        topic = None if image is None else image.topic_named(name)
        return None if topic is None else UUID(topic.topic_id)

    def newest(self) -> Obeyed | None:
        """The newest image that anybody obeyed, when it was asked for."""
        known = () if self._newest is None else (self._newest,)
        self._newest = max((*known, *self.obeyed()), key=lambda found: found.position, default=None)
        return self._newest

    def records(self, after: int, until: int) -> tuple[MetadataRecord, ...]:
        """Of the root as it was read last, those of these positions that it still has as records."""
        content = None if self.root is None else self.root.content
        if not isinstance(content, ClusterContent):
            return ()
        return content.records[max(after - content.folded, 0) : max(until - content.folded, 0)]

    def replicas(self) -> Iterator[tuple[Node, LeaderReplica]]:
        """Every partition that a living broker has open."""
        for seat in self.seats:
            node = seat.node
            broker = None if node is None or node.dead else node.broker
            if node is not None and broker is not None and broker.components.replicas is not None:
                for partition in broker.components.replicas._registry:
                    yield node, partition


_set_aside = LogDirectories.set_aside
_move_stray = LogDirectories.move_stray
_make = ImageFeed.__init__
_take = ImageFeed.take
_lead = LeaderReplica.lead


def _remembered(feed: ImageFeed, *args: Any, **more: Any) -> None:
    _make(feed, *args, **more)
    process = PROCESS.get()
    if isinstance(process, Node):
        process.feed = feed


def _took(feed: ImageFeed, at: ImageAt) -> bool:
    is_newer = _take(feed, at)
    process = PROCESS.get()
    if is_newer and isinstance(process, Node) and process.obeys is not None:
        process.obeys(feed.image)
    return is_newer


def _led(partition: LeaderReplica, lease: Any, tier: Any, row: AppliedRow) -> None:
    process = PROCESS.get()
    if isinstance(process, Node) and process.led is not None:
        at_s = asyncio.get_running_loop().time()
        process.led((partition.topic, partition.index), Began(at_s, row.leader_epoch, process.name))
    _lead(partition, lease, tier, row)


def _gone(place: TopicPartition) -> None:
    process = PROCESS.get()
    if isinstance(process, Node):
        process.logs_gone[place.topic, place.partition] += 1


def _was_set_aside(directories: LogDirectories, place: TopicPartition, topic_id: UUID) -> None:
    _gone(place)
    _set_aside(directories, place, topic_id)


def _was_moved(directories: LogDirectories, place: TopicPartition, topic_id: UUID) -> str | None:
    _gone(place)
    return _move_stray(directories, place, topic_id)


def brokers_are_seen() -> AbstractContextManager[object]:
    """While it is entered each process's feed of images is remembered, `Node.feed`, and processes tell of each
    leadership as it begins (`Node.led`), of each image as it is obeyed (`Node.obeys`), and of each log that goes
    (`Node.logs_gone`)."""
    seen = ExitStack()
    seen.enter_context(mock.patch.object(ImageFeed, "__init__", _remembered))
    seen.enter_context(mock.patch.object(ImageFeed, "take", _took))
    seen.enter_context(mock.patch.object(LeaderReplica, "lead", _led))
    seen.enter_context(mock.patch.object(LogDirectories, "set_aside", _was_set_aside))
    seen.enter_context(mock.patch.object(LogDirectories, "move_stray", _was_moved))
    return seen
