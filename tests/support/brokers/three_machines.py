"""Three whole brokers in virtual time, each on a machine of its own, over one bucket.

Owns starting them and one partition that has a replica on each. Must not know what is tested.
"""

from __future__ import annotations

from broker.metadata.records import Row
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.shared_bucket import until

NODES = (1, 2, 3)
VALUES = [(offset, b"%d" % offset) for offset in range(5)]


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

    async def fill(self, **configs: str) -> int:
        """All started, `VALUES` acknowledged by all in a topic with these configs, too; who leads."""
        for node_id in NODES:
            await self.start(node_id)
        controller = self.lives[NODES[0]].context.controller
        await controller.create_topic("log", 1, {"min.insync.replicas": "2", **configs}, replication_factor=3)
        leader = self.row(NODES[0]).leader
        await until(lambda: ("log", 0) in self.lives[leader].context.registry.partitions, "it is led")
        for _, value in VALUES:
            assert (await self.lives[leader].produce("log", value)).error_code == 0
        return leader

    def row(self, seen_by: int) -> Row:
        return self.lives[seen_by].context.metadata.topic("log").rows[0]

    async def all_is_there(self, lost: int, values: list[tuple[int, bytes]] = VALUES) -> None:
        """Another one leads, with all that was acknowledged; what was lost is copied, and in sync again."""
        rows = [self.row(node_id) for node_id in NODES]

        def is_led() -> bool:
            rows[:] = [self.row(node_id) for node_id in NODES]
            return rows[0].leader not in (lost, -1) and rows.count(rows[0]) == len(rows)

        await until(is_led, "another one leads, and all know it")
        leader = rows[0].leader
        await until(lambda: ("log", 0) in self.lives[leader].context.registry.partitions, "it serves")
        assert await self.lives[leader].read_all("log") == values
        await until(lambda: len(self.row(leader).in_sync) == len(NODES), "all are in sync")
        assert self.lives[lost].context.registry.followed["log", 0].log.log_end_offset == len(values)
        for life in self.lives.values():
            await life.crash()


async def served(three: Three, *seen_by: int) -> int:
    """Who leads, once it serves."""
    first = seen_by[0]

    def is_served() -> bool:
        row = three.row(first)
        return row.leader in seen_by and row.clean and ("log", 0) in three.lives[row.leader].context.registry.partitions

    await until(is_served, "one of them leads, and serves")
    return three.row(first).leader
