"""Creates and connects the controller and the parts that follow the cluster image.

An image goes to the publisher, then to the watchers. The controller decides on the image that this broker applied.
Leaders send proposals to the current controller. Nothing is applied before the start publishes the first image.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from broker.config.live import LiveConfig
from broker.controller import unclean_recovery_manager
from broker.controller.cluster_control import ClusterControl
from broker.controller.commit_queue import CommitQueue
from broker.controller.controller_client import ControllerClient, RemoteTopicCreator
from broker.controller.controller_requests import ControllerRequests
from broker.controller.leader_rebalance import LeaderRebalance
from broker.controller.unclean_recovery_manager import UncleanRecoveryManager
from broker.following.image_feed import ImageFeed
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.following.turnover import Turnover
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.records import Node
from broker.partition.leading import unclean_candidates
from broker.partition.leading.isr_proposals import IsrProposals
from broker.partition.registry import Registry
from broker.partition.replica_manager import ReplicaManager
from broker.peers.forward import Forward
from broker.peers.links import Links
from broker.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from hotstore.host.log_host import LogHost
from seams.loop.tasks import FailureReport, Tasks
from seams.world import World
from tiering.service import TierService


class MetadataWiring(NamedTuple):
    """The parts. `services` are background services by name, for the caller to start."""

    registry: Registry
    metadata: MetadataCache
    replicas: ReplicaManager
    feed: ImageFeed
    forward: Forward
    controller: ControllerRequests
    brokers: ClusterControl
    turnover: Turnover
    services: Mapping[str, Callable[[], Awaitable[None]]]


def wire_metadata(
    live: LiveConfig,
    world: World,
    cluster: ClusterRoot,
    cluster_id: str,
    logs: LogHost,
    tiers: TierService,
    links: Links,
    tasks: Tasks,
    report: FailureReport,
    step_back: Callable[[], None],
    bump: Callable[[], None],
) -> MetadataWiring:
    """Create and connect the parts. `step_back` gives up the controller's lease, `bump` renews it at once."""
    config = live.now
    node_id = config.node_id
    metadata = MetadataCache(cluster_id, world.clock.monotonic_s)
    registry = Registry(metadata, node_id)
    replicas = ReplicaManager(
        live,
        world,
        logs,
        registry,
        tiers,
        tasks,
        report,
        metadata,
        links,
        forget=lambda topic: controller.record_purged(topic),
    )
    feed = ImageFeed(Publisher(replicas, metadata, live, node_id))
    feed.watch(lambda at: links.close_ended(at.image.nodes))
    turnover = Turnover(node_id, world.clock.monotonic_s)
    feed.watch(turnover.apply_image)
    forward = Forward(metadata, feed, links, node_id, config.brokers_listener)
    commit_queue = CommitQueue(cluster, feed)
    times, refuses = config.times, links.refuses
    cluster_control = ClusterControl(
        commit_queue, cluster, world, node_id, cluster_id, times, refuses=refuses, step_back=step_back, bump=bump
    )

    async def ask_candidate(node: Node, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        if node.node_id == node_id:
            return unclean_candidates.answer(registry, request)
        answer = await links.to(node, unclean_recovery_manager.PURPOSE).ask(
            request, unclean_recovery_manager.VERSION, unclean_recovery_manager.ANSWER_S
        )
        assert isinstance(answer, OffsetForLeaderEpochResponse)
        return answer

    unclean = UncleanRecoveryManager(commit_queue, metadata, world, node_id, ask_candidate, times.session_s)
    controller = ControllerRequests(
        commit_queue,
        metadata,
        live,
        world.rng,
        replicas.opened,
        RemoteTopicCreator(forward),
        unclean.ask,
        cluster_control.fitness,
    )
    balancing = LeaderRebalance(
        commit_queue, metadata, node_id, cluster_control.unfit, config.leader_imbalance_check_interval_s
    )
    channel = ControllerClient(cluster_control, metadata, links, node_id, times)
    proposing = IsrProposals(registry, channel.propose, config.replica_lag_ms_max, world.beats)
    kept = {
        "unclean elections": unclean.keep,
        "controller": commit_queue.keep,
        "cluster_control": cluster_control.keep,
        "proposals": proposing.keep,
    }
    if config.auto_leader_rebalance:
        kept["leader balance"] = balancing.keep
    return MetadataWiring(registry, metadata, replicas, feed, forward, controller, cluster_control, turnover, kept)
