"""Controlled shutdown: hands over leaderships first, and ends the session and releases the lease last (R9).

Each step takes at most `LEAVE_S`. If the controller or the store does not answer, the stop continues. Other brokers
then wait until the session or lease expires, and no record is lost (D48).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from broker.controller.decisions.registrations import end_records
from broker.membership.controller_lease import ControllerLease
from broker.membership.controller_term import ControllerTerm
from broker.membership.heartbeat import Heartbeats
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage
from logformat.errors import ThermoclineError

log = logging.getLogger(__name__)

LEAVE_S: Final = 5.0


async def hand_over(controller_term: ControllerTerm, heartbeats: Heartbeats) -> None:
    """Report that this broker stops, and wait until other brokers took over. After a failure the other brokers take
    over when this broker's session expires.
    """
    try:
        async with asyncio.timeout(LEAVE_S):
            if controller_term.is_controller and controller_term.listener is not None:
                await controller_term.listener.leaderships_moved()
            else:
                await heartbeats.hand_over()
    except (ThermoclineError, OSError) as failure:  # TimeoutError and ConnectionError are OSErrors
        log.warning(
            "leaderships were not handed over: %s; other brokers take over when this broker has stopped",
            str(failure) or "no answer in time",
        )


async def leave(
    cluster: ClusterRoot,
    controller_lease: ControllerLease,
    heartbeats: Heartbeats | None,
    image: ClusterImage,
    node_id: int,
    *,
    is_controller: bool,
) -> None:
    """End the session if there are other brokers, and release the lease. After a failure the other brokers wait until
    session and lease expire."""
    try:
        async with asyncio.timeout(LEAVE_S):
            if not is_controller:
                if heartbeats is not None:
                    await heartbeats.leave()
                return
            if len(image.nodes) > 1:
                own = image.nodes[node_id]
                # The stop may have cut off a change that is stored already, or may still be stored.
                newest = (await cluster.poll()).image if cluster.is_settled else (await cluster.settle()).image
                await cluster.commit(end_records(newest, [(own.node_id, own.broker_epoch)]))
            await controller_lease.release(cluster.epoch)
    except (ThermoclineError, OSError) as failure:  # TimeoutError and ConnectionError are OSErrors
        log.warning(
            "stopped without ending the session: %s; other brokers take over when this broker's session or lease ends",
            str(failure) or "no answer in time",
        )
