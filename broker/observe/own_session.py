"""How this broker stands in its cluster: since when it hears the controller, or keeps the lease.

Owns two ages. Always true: a broker that decides hears itself; a controller that is new has its time to be heard. Must
not know what an age means for whoever reads it.
"""

from __future__ import annotations

from broker.following.throttles import throttling
from broker.observe.sources import Sources
from broker.observe.standing import InCluster, LateReplica


def in_cluster(sources: Sources, late: list[LateReplica], strays: list[str]) -> InCluster:
    """As it is now."""
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
    """Whether this broker is the controller, as of the image it obeys."""
    return sources.context.metadata.is_decided_by(sources.context.config.node_id)


def heartbeat_age_s(sources: Sources) -> float:
    """Since the last heartbeat was sent that was answered; 0 for the controller itself."""
    if decides(sources):
        return 0.0
    clock, metadata = sources.context.world.clock, sources.context.metadata
    known_s = clock.monotonic_s() - metadata.controller_since_s
    return max(min(clock.boottime_s() - sources.session.fresh.heartbeat_s, known_s), 0.0)


def lease_age_s(sources: Sources) -> float:
    """Since this controller bumped the lease; 0 for whoever is none."""
    if not decides(sources):
        return 0.0
    return max(sources.context.world.clock.monotonic_s() - sources.cluster_control.lease_bumped_s, 0.0)
