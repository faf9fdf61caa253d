"""Clients of several brokers: each asks any of them who leads, goes there, and asks again when it was wrong.

Owns routes. Always true: a client talks to whom a broker named, never to whom the world knows to lead; who is refused
as not leading, or loses a connection, asks for metadata anew before the next request, of a broker drawn at random; and
what is told of an older leader epoch than one it knows changes nothing (KIP-320). Must not know faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic
from seams.rng import SeededRng
from tests.sim.actors import EXPECTED, NO_ANSWER, Admin, Stage
from tests.sim.checks.history import Outcome, Place, Send
from tests.sim.client import OF_GROUP, Client, Connection, Disconnected, ServerError
from tests.sim.several.fleet import Fleet
from tests.sim.world.net import SimNet
from tests.sim.world.transport import Address

GO_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
EXPECTED_OF_SEVERAL = (
    *EXPECTED,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.INVALID_PARTITIONS,  # there are as many by now
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,  # a broker that never registered, or too few would stay in sync
    ErrorCode.INVALID_REPLICATION_FACTOR,  # fewer brokers have a session than replicas are wanted
)


class Led(NamedTuple):
    """Who leads a client's partition, as last told; -1: nobody."""

    topic_id: UUID
    epoch: int
    leader: int

    def taking(self, told: Led) -> Led:
        """What is known once this is told: it, unless it is of an earlier leader epoch of the same topic."""
        return self if told.topic_id == self.topic_id and told.epoch < self.epoch else told


class RoutedClient(Client):
    """To the leader of `place`, the coordinator of the group asked for last, or, of neither, to any broker."""

    def __init__(
        self, net: SimNet, brokers: Callable[[], Sequence[Address]], rng: SeededRng, place: Place | None
    ) -> None:
        self._target: Address | None = None
        super().__init__(net, self._wanted)
        self._brokers = brokers
        self._rng = rng
        self._place = place
        self.routed = 0  # how often it asked
        self._newest = Led(UUID(int=0), -1, -1)
        self._addresses: dict[int, Address] = {}  # of brokers, as told last
        self._replicas: list[int] = []  # of the place, as told last

    def _wanted(self) -> Address:
        assert self._target is not None
        return self._target

    async def connection(self) -> Connection:
        if self._connection is not None and self._connection.lost:
            self.drop()
        if self._target is None:
            self._target = await self._leader() if self._place is not None else self._any()
        try:
            return await super().connection()
        except (Disconnected, TimeoutError):
            self._target = None
            raise

    def drop(self) -> None:
        super().drop()
        self._target = None

    def refused(self, code: int) -> None:
        if code in GO_ELSEWHERE:
            self._target = None

    def _any(self) -> Address:
        brokers = self._brokers()
        return brokers[self._rng.randrange(len(brokers))]

    async def _leader(self) -> Address:
        """As any broker says, unless it is behind what another one said: it may hear a leader that was cut off long
        ago, and is one itself. Raises as `call`; Disconnected where it knows of none."""
        assert self._place is not None
        topic, partition = self._place
        self.routed += 1
        asking = Client(self._net, self._any_once())
        try:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
            answer = await asking.call(ApiKey.METADATA, request)
        finally:
            asking.drop()
        self._addresses = addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for found in answer.topics:
            for row in found.partitions:
                if row.partition_index == partition:
                    self._replicas = row.replica_nodes
                    self._newest = self._newest.taking(Led(found.topic_id, row.leader_epoch, row.leader_id))
        if self._newest.leader in addresses:
            return addresses[self._newest.leader]
        raise Disconnected(f"{topic}-{partition} has no leader that anybody can be sent to")

    def _any_once(self) -> Callable[[], Address]:
        chosen = self._any()
        return lambda: chosen

    async def find_coordinator(self, key: str, kind: int = OF_GROUP) -> None:
        """Ask any broker, and go where it says."""
        asking = Client(self._net, self._any_once())
        try:
            answer = await asking.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key=key, key_type=kind))
        finally:
            asking.drop()
        self._check(answer.error_code, "FindCoordinator")
        self._target = (answer.host, answer.port)


@dataclass
class Crowd(Stage):
    """What actors of several brokers share. `leader` says nothing here."""

    clients: int = 0
    beside_of: dict[tuple[int, Place], Client] = field(default_factory=dict)
    expected: tuple[ErrorCode, ...] = EXPECTED_OF_SEVERAL

    def client(self, place: Place | None = None) -> Client:
        assert isinstance(self.cluster, Fleet)
        self.clients += 1
        return RoutedClient(self.cluster.net, self.cluster.addresses, self.rng(f"client{self.clients}"), place)

    def in_sync(self, place: Place) -> tuple[int, ...]:
        assert isinstance(self.cluster, Fleet)
        row = self.cluster.row_of(place)
        return () if row is None else row.in_sync

    def told(self, send: Send) -> None:
        assert isinstance(self.cluster, Fleet)
        super().told(send)
        if send.outcome is not Outcome.OK:
            return
        if wrong := self.cluster.acks.acknowledged(send):
            self.unexpected.append(wrong)
        for seat in self.cluster.seats:
            short_s = seat.short_since_s.get(send.place)
            if (
                short_s is not None
                and seat.node is not None
                and seat.node.name == send.node
                and short_s < send.invoked_s
            ):
                self.unexpected.append(
                    f"too few in sync: {send.node} acknowledged {send.place} {send.offset}, first sent at "
                    f"{send.invoked_s:.3f} s; in its image the set is too small since {short_s:.3f} s"
                )

    def beside(self, client: Client, place: Place) -> Client:
        """What requests that only a leader answers go by, for who else talks to any broker."""
        found = self.beside_of.get((id(client), place))
        if found is None:
            found = self.beside_of[id(client), place] = self.client(place)
        return found


class Operator(Admin):
    """Asks beside that for preferred leaders, and for more partitions of topics that come and go."""

    def __init__(self, stage: Crowd, places: list[Place]) -> None:
        super().__init__(stage, places)
        self._choices = stage.rng("operator")
        self._operating = stage.client()

    async def run(self) -> None:
        deleting = asyncio.create_task(super().run())
        try:
            while not self._stage.stopping.is_set():
                await asyncio.sleep(self._choices.uniform(1.0, 8.0))
                await self._operate()
        finally:
            deleting.cancel()

    async def _operate(self) -> None:
        try:
            if self._choices.randrange(3):
                await self._operating.elect_preferred(*self._places[self._choices.randrange(len(self._places))])
            else:
                name = f"passing{self._choices.randrange(2)}"
                await self._operating.create_partitions(name, 2 + self._choices.randrange(2))
        except ServerError as failure:
            self._stage.answered(failure.code, "operator")
        except NO_ANSWER:
            pass
