"""The parts of one broker, which every handler gets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.controller.broker_rpc import BrokerRpc
from broker.controller.controller_requests import ControllerRequests
from broker.fetch_sessions.cache import FetchSessions
from broker.fetch_sessions.waiting_rows import WaitingRows
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.following.response_cache import ResponseCache
from broker.groups.coordinator import GroupCoordinator
from broker.membership.serving_gate import ServingGate
from broker.metadata.producer_ids import ProducerIds
from broker.metrics.counters import BrokerMetrics, ProduceIdle
from broker.net.dispatch import Peer
from broker.partition.leading.produce_backpressure import ProduceBackpressure
from broker.partition.registry import Registry
from broker.peers.forward import Forward
from broker.quotas.client_quotas import QuotaManagers
from broker.quotas.loop_time import LoopTime
from broker.security.authorizer.access import UNRESTRICTED, Unrestricted
from broker.security.client_access import ClientAccess
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import TransactionVerifier
from broker.wire.messages import ProduceResponseTopic
from hotstore.host.residency import Residency
from seams.loop.tasks import Tasks
from seams.loop.turns import OneATurn
from seams.world import World


class Context(msgspec.Struct, frozen=True):
    """The parts of one broker. `live_configs`: broker configs that only the running process knows, such as bound ports.
    `brokers`: handles requests of other brokers to the controller; None on a read-only broker. `clients`: permissions
    of each client."""

    live: LiveConfig
    world: World
    registry: Registry
    throttle: ProduceBackpressure
    residency: Residency
    metadata: MetadataCache
    controller: ControllerRequests
    producer_ids: ProducerIds
    groups: GroupCoordinator
    fetch_sessions: FetchSessions
    response_cache: ResponseCache
    gate: ServingGate
    metrics: BrokerMetrics
    tasks: Tasks
    live_configs: Mapping[str, str]
    images: ImageFeed
    forward: Forward
    quotas: QuotaManagers
    clients: ClientAccess
    large_reads: OneATurn = msgspec.field(default_factory=OneATurn)
    waiting_rows: WaitingRows = msgspec.field(default_factory=WaitingRows)
    quiet: ProduceIdle = msgspec.field(default_factory=ProduceIdle)
    brokers: BrokerRpc | None = None
    transactions: TransactionCoordinator | None = None
    """None on a read-only broker, which coordinates nothing; also the next field."""
    verifier: TransactionVerifier | None = None

    @property
    def config(self) -> BrokerConfig:
        """The current configuration; read it again for every request."""
        return self.live.now


class Call(msgspec.Struct, frozen=True):
    """The peer, API version and client id of one request. A `Call` is never changed. `access`: permissions of the peer.
    `refused`: rows of a produce response for refused topics. `time`: measured time of the request, while a quota is
    set."""

    version: int
    peer: Peer
    client_id: str
    access: Unrestricted = UNRESTRICTED
    refused: tuple[ProduceResponseTopic, ...] = ()
    time: LoopTime | None = None
