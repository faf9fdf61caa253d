"""A directory that does not hold what its seat in an in-sync set promises leaves the set before it can lead (R18)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec

from broker.controller.brokers import LogPlace
from broker.membership.identity import DirectoryIdentity
from broker.membership.lost_logs import lost_logs
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node, Row, TopicCreated
from logformat.values import TopicPartition
from tests.support.broker_kit import Life, Place, play
from tests.support.cluster_kit import id_of

NODES = (1, 2, 3)
VALUES = [(offset, b"%d" % offset) for offset in range(5)]


def image_of(*rows: Row) -> ClusterImage:
    nodes = [Node(node_id, node_id, f"dir-{node_id}", "i", "boot-1", ()) for node_id in NODES]
    return ClusterImage().with_records([*nodes, TopicCreated(id_of(1), "log", rows, {})])


def row(*in_sync: int) -> Row:
    return Row(NODES, in_sync[0], 1, 1, in_sync, 1)


def directory(*indexes: int, is_unsynced: bool = False) -> DirectoryIdentity:
    logs = frozenset(TopicPartition("log", index) for index in indexes)
    return DirectoryIdentity("c", 1, "dir-1", bool(logs), logs, is_unsynced)


def test_what_is_not_there_is_lost_where_others_have_it() -> None:
    """Not where it is the last one: nobody has more than it. Where it is no member, a proposal of its last session may
    be on its way, as long as that stands."""
    image = image_of(row(1, 2), row(1, 2), row(2, 3), row(1))
    assert lost_logs(image, 1, "boot-1", directory(0)) == ((id_of(1), 1), (id_of(1), 2))
    assert lost_logs(image, 4, "boot-1", directory()) == ()
    ended = image.with_records([msgspec.structs.replace(image.nodes[1], active=False)])
    assert lost_logs(ended, 1, "boot-1", directory(0)) == ((id_of(1), 1),)


def test_after_another_boot_all_is_lost_that_was_not_flushed() -> None:
    """A process that was killed left it in the page cache; a power cut did not."""
    image = image_of(row(1, 2), row(1))
    assert lost_logs(image, 1, "boot-2", directory(0, 1, is_unsynced=True)) == ((id_of(1), 0),)
    assert lost_logs(image, 1, "boot-1", directory(0, 1, is_unsynced=True)) == ()
    assert lost_logs(image, 1, "boot-2", directory(0, 1)) == ()


def test_all_of_an_older_copy_is_lost() -> None:
    """Another process of this node wrote since; where none was ever noted, nobody can tell."""
    image = image_of(row(1, 2), row(1))

    def lost_of(incarnations: tuple[str, ...] | None) -> tuple[LogPlace, ...]:
        return lost_logs(image, 1, "boot-1", replace(directory(0, 1), incarnations=incarnations))

    assert lost_of(("i",)) == lost_of(("h", "i", "j")) == lost_of(None) == ()
    assert lost_of(("h",)) == ((id_of(1), 0),)


async def until(happened: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60.0):
        while not happened():
            await asyncio.sleep(0.05)
    assert happened(), what


class Three:
    """Brokers on machines of their own, over one bucket; partition 0 of `log` has a replica on each."""

    def __init__(self, *settings: str) -> None:
        self.places = {node_id: Place(*settings, f"node.id={node_id}", seed=node_id) for node_id in NODES}
        for place in self.places.values():
            first = self.places[NODES[0]]
            place.memory, place.store, place.net = first.memory, first.store, first.net
        self.lives: dict[int, Life] = {}

    async def start(self, node_id: int) -> None:
        place = self.places[node_id]
        port = 9000 + 100 * node_id + place.lives
        self.lives[node_id] = await place.start(f"listeners=PLAINTEXT://127.0.0.1:{port}")

    async def fill(self) -> int:
        """All started, `VALUES` acknowledged by all; who leads."""
        for node_id in NODES:
            await self.start(node_id)
        controller = self.lives[NODES[0]].context.controller
        await controller.create_topic("log", 1, {"min.insync.replicas": "2"}, replication_factor=3)
        leader = self.row(NODES[0]).leader
        await until(lambda: ("log", 0) in self.lives[leader].context.registry.partitions, "it is led")
        for _, value in VALUES:
            assert (await self.lives[leader].produce("log", value)).error_code == 0
        return leader

    def row(self, seen_by: int) -> Row:
        return self.lives[seen_by].context.metadata.topic("log").rows[0]

    async def all_is_there(self, lost: int, values: list[tuple[int, bytes]] = VALUES) -> None:
        """Another one leads, with all that was acknowledged; what was lost is copied, and in sync again."""
        other = next(node_id for node_id in NODES if node_id != lost)
        await until(lambda: self.row(other).leader not in (lost, -1), "another one leads")
        leader = self.row(other).leader
        await until(lambda: ("log", 0) in self.lives[leader].context.registry.partitions, "it serves")
        assert await self.lives[leader].read_all("log") == values
        await until(lambda: len(self.row(leader).in_sync) == len(NODES), "all are in sync")
        assert self.lives[lost].context.registry.followed["log", 0].log.log_end_offset == len(values)
        for life in self.lives.values():
            await life.crash()


def test_cluster_d70_a_leader_whose_log_was_moved_away_does_not_lead_again() -> None:
    """Under the same directory id: it led an empty log, and the others cut theirs, or went offline."""

    async def scenario() -> None:
        three = Three()
        leader = await three.fill()
        await three.lives[leader].crash()
        place = three.places[leader]
        place.kill()
        place.disk.rename("/data/a/log-0", "/data/moved-away")
        await three.start(leader)
        await three.all_is_there(leader)

    play(scenario())


def test_cluster_d6_a_leader_that_lost_power_does_not_lead_again_with_os_flush() -> None:
    """It came back before its session was over, without what only its page cache held."""

    async def scenario() -> None:
        three = Three("thermocline.flush=os")
        leader = await three.fill()
        await three.lives[leader].crash()
        three.places[leader].power_cut()
        await three.start(leader)
        await three.all_is_there(leader)

    play(scenario())


def test_cluster_d75_a_copy_of_yesterday_s_directory_does_not_lead() -> None:
    """The volume was put back as it was before its last process served, under the same directory id."""

    async def scenario() -> None:
        three = Three()
        leader = await three.fill()
        place = three.places[leader]
        await three.lives[leader].crash()
        place.kill()
        yesterday = place.disk.kill()
        await three.start(leader)
        await until(lambda: len(three.row(leader).in_sync) == len(NODES), "all are in sync")
        now_leads = three.row(leader).leader
        await until(lambda: ("log", 0) in three.lives[now_leads].context.registry.partitions, "it is led")
        assert (await three.lives[now_leads].produce("log", b"5")).error_code == 0
        await three.lives[leader].crash()
        place.disk = yesterday
        await three.start(leader)
        await three.all_is_there(leader, [*VALUES, (len(VALUES), b"5")])

    play(scenario())
