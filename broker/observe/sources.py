"""Sources of metrics and status: `StartupSources` from the first second on, `Sources` once clients are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.context import Context
from broker.controller.cluster_control import ClusterControl
from broker.following.throttles import throttling
from broker.following.turnover import Turnover
from broker.internal_topics.snapshots import Snapshots
from broker.membership.session import Session
from broker.metadata.cluster_root import ClusterRoot
from broker.metrics.counters import BrokerMetrics
from broker.metrics.outage_log import OutageLog
from broker.net.server import Server
from broker.observe.metrics.process import LoopLag
from broker.observe.standing import InCluster, LateReplica
from broker.observe.status import Health
from broker.security.tls.certificates import Certificates
from coldstore.stores.metered import MeteredStore
from hotstore.cleaning.log_cleaner import LogCleaner
from logformat.values import TopicPartition
from tiering.service import TierService


class StartupSources(msgspec.Struct, frozen=True):
    """The objects that exist before the broker serves. `outage`: the log of failed store calls; first calls of the
    start, later calls of the lease.
    """

    config: BrokerConfig
    health: Health
    metrics: BrokerMetrics
    outage: Callable[[], OutageLog]
    lag: LoopLag
    store: Callable[[], MeteredStore | None]


class Sources(msgspec.Struct, frozen=True):
    context: Context
    tiers: TierService
    store: MeteredStore
    server: Server
    session: Session
    health: Health
    snapshots: Snapshots
    damaged: Mapping[TopicPartition, str]  # partitions that refused to open, and why
    position: Callable[[], int]  # number of records of the applied image
    strays: Callable[[], Awaitable[list[str]]]  # log directories that the cluster does not assign to this broker
    cluster: ClusterRoot
    cluster_control: ClusterControl
    turnover: Turnover
    cleaner: LogCleaner
    transaction_snapshots: Snapshots | None = None
    certificates: Certificates | None = None


def in_cluster(sources: Sources, late: list[LateReplica], strays: list[str]) -> InCluster:
    """This broker's current standing in its cluster."""
    context = sources.context
    metadata = context.metadata
    controller = metadata.controller
    idle_s = sources.turnover.throttles.idle_s
    return InCluster(
        sources.position(),
        None if controller is None else controller.node_id,
        None if controller is None else controller.epoch,
        int((context.world.clock.monotonic_s() - metadata.controller_since_s) * 1000),
        int(heartbeat_age_s(sources) * 1000),
        late,
        strays,
        "" if idle_s is None else throttling(metadata.image),
        int((idle_s or 0.0) * 1000),
    )


def decides(sources: Sources) -> bool:
    """Whether this broker is the controller in its applied image."""
    return sources.context.metadata.is_decided_by(sources.context.config.node_id)


def heartbeat_age_s(sources: Sources) -> float:
    """Seconds since the last answered heartbeat was sent; 0 on the controller. After a change of controller, the age is
    at most the time for which this broker has known the new controller."""
    if decides(sources):
        return 0.0
    clock, metadata = sources.context.world.clock, sources.context.metadata
    known_s = clock.monotonic_s() - metadata.controller_since_s
    return max(min(clock.boottime_s() - sources.session.fresh.heartbeat_s, known_s), 0.0)


def lease_age_s(sources: Sources) -> float:
    """Seconds since this controller renewed the lease; 0 on other brokers."""
    if not decides(sources):
        return 0.0
    return max(sources.context.world.clock.monotonic_s() - sources.cluster_control.lease_bumped_s, 0.0)
