"""Readers that do not read from leaders: some go where the leader sends their rack (KIP-392), some to any replica.

Owns how their clients find who serves. Always true: one that goes by its rack reads where it was sent until it is
refused, loses the connection, or its time there is over (Kafka's `metadata.max.age.ms`), then it asks the leader again,
also for an offset that is out of range there; one that goes to any replica asks whoever holds one, in sync or not,
behind or not. Whatever they read is judged as what anybody read. Must not know faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.error_codes import ErrorCode
from tests.sim.actors import Reader
from tests.sim.checks.history import Place
from tests.sim.client import Disconnected, Fetched
from tests.sim.several.crowd import Crowd, RoutedClient
from tests.sim.several.fleet import Fleet, rack_of
from tests.sim.world.transport import Address

_STAY_MAX = 60  # fetches from one replica


class RackClient(RoutedClient):
    """Of a client in `rack`."""

    rack = ""
    _left = 0  # fetches until it asks the leader again; 0: it is at the leader

    async def fetch(self, topic: str, partition: int, offset: int, *how: int, **more: int) -> Fetched:
        """Where it is, or where it is sent from there."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._target = None
        await self.connection()  # routes it, so that it knows who leads, and in which epoch
        epoch = self._newest.epoch if self._rng.randrange(2) else -1
        found = await super().fetch(topic, partition, offset, *how, rack=self.rack, leader_epoch=epoch, **more)
        if found.preferred >= 0:
            near = self._addresses.get(found.preferred)
            if near is None:
                raise Disconnected(f"sent to node {found.preferred}, which nobody told of")
            self._target, self._left = near, 1 + self._rng.randrange(_STAY_MAX)
            found = await super().fetch(topic, partition, offset, *how, rack=self.rack, leader_epoch=epoch, **more)
            assert found.preferred < 0, "a follower sends nobody away"
        return found

    async def list_offset(self, topic: str, partition: int, sentinel: int, *, isolation: int = 0) -> int:
        """Only the leader says."""
        self._leave()
        return await super().list_offset(topic, partition, sentinel, isolation=isolation)

    def refused(self, code: int) -> None:
        super().refused(code)
        if code:
            self._leave()

    def drop(self) -> None:
        super().drop()
        self._left = 0

    def _leave(self) -> None:
        if self._left:
            self._target, self._left = None, 0


class AnyClient(RoutedClient):
    """Of one that reads from any replica, and stays while it is served."""

    async def _leader(self) -> Address:
        leader = await super()._leader()
        held = [self._addresses[node_id] for node_id in self._replicas if node_id in self._addresses]
        return held[self._rng.randrange(len(held))] if held else leader

    async def list_offset(self, topic: str, partition: int, sentinel: int, *, isolation: int = 0) -> int:
        """Only the leader says."""
        self._target = await super()._leader()
        try:
            return await super().list_offset(topic, partition, sentinel, isolation=isolation)
        finally:
            self._target = None

    def refused(self, code: int) -> None:
        super().refused(code)
        if code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.REPLICA_NOT_AVAILABLE):
            self._target = None


class NearReader(Reader):
    """A reader whose client is another one."""

    def __init__(self, stage: Crowd, name: str, place: Place, client: RoutedClient, *, again: bool) -> None:
        super().__init__(stage, name, place, again=again)
        self._client = client


def near_readers(stage: Crowd, fleet: Fleet, places: Sequence[Place]) -> list[Reader]:
    """One in each broker's rack, and one of any replica, over the first places in turn."""
    brokers = fleet.addresses
    found: list[Reader] = []
    for seat in fleet.seats:
        place = places[(seat.node_id + 1) % len(places)]  # its own broker is the first assigned to the one before
        client = RackClient(fleet.net, brokers, stage.rng(f"near{seat.node_id}"), place)
        client.rack = rack_of(seat.node_id)
        found.append(NearReader(stage, f"near{seat.node_id}", place, client, again=seat.node_id % 2 == 0))
    for i, place in enumerate(places[:2]):
        any_client = AnyClient(fleet.net, brokers, stage.rng(f"any{i}"), place)
        found.append(NearReader(stage, f"any{i}", place, any_client, again=i == 0))
    return found


def near_clients(stage: Crowd, fleet: Fleet, place: Place) -> list[tuple[str, RoutedClient]]:
    """One in some broker's rack, which goes where the leader sends it, or one of any replica; by name."""
    rng = stage.rng(f"near {place}")
    racked = RackClient(fleet.net, fleet.addresses, stage.rng(f"tx near {place}"), place)
    racked.rack = rack_of(fleet.seats[rng.randrange(len(fleet.seats))].node_id)
    if rng.randrange(2):
        return [(f"tx near {place[0]}", racked)]
    held = AnyClient(fleet.net, fleet.addresses, stage.rng(f"tx any {place}"), place)
    return [(f"tx any {place[0]}", held)]
