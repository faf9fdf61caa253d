"""Where the figures lie that an operator sees: what there is from the first second on, and what comes with the rooms.

Owns no figure. Always true: `Beginning` can be read while a broker waits for its bucket, so that whoever watches it has
something to go by; `Sources` exist from the moment it serves. Must not know how figures are shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from broker.config.broker_config import BrokerConfig
from broker.context import Context
from broker.controller.cluster_control import ClusterControl
from broker.following.turnover import Turnover
from broker.internal_topics.snapshots import Snapshots
from broker.membership.session import Session
from broker.metadata.cluster_root import ClusterRoot
from broker.metrics.counters import BrokerMetrics
from broker.metrics.outage_log import OutageLog
from broker.net.server import Server
from broker.observe.loop_lag import LoopLag
from broker.observe.status import Health
from coldstore.stores.metered import MeteredStore
from logformat.values import TopicPartition
from tiering.service import TierService


@dataclass(frozen=True, slots=True)
class Beginning:
    """What there is before anything is served. `outage`: of the calls that the start, and later the lease, wait for."""

    config: BrokerConfig
    health: Health
    metrics: BrokerMetrics
    outage: Callable[[], OutageLog]
    lag: LoopLag
    store: Callable[[], MeteredStore | None]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a broker that serves has."""

    context: Context
    tiers: TierService
    store: MeteredStore
    server: Server
    session: Session
    health: Health
    snapshots: Snapshots
    damaged: Mapping[TopicPartition, str]  # partitions that refused to open, and why
    position: Callable[[], int]  # of the image that is obeyed: how many records make it
    strays: Callable[[], Awaitable[list[str]]]  # directories of logs that the cluster does not assign to this broker
    cluster: ClusterRoot
    cluster_control: ClusterControl
    turnover: Turnover
