"""A clean stop as the cluster sees it: others lead first, then the session ends, then nobody waits for the lease (R9).

Owns those words, the first and the last. Always true: each has its time and no more, `LEAVE_S`: a stop that finds
neither controller nor store goes on without them, which costs the others a wait and nobody a record (D48). Must not
know what is done between the two.
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
    """Wait until others lead what they can, now that this broker said that it stops. What fails costs them the wait
    for its end."""
    try:
        async with asyncio.timeout(LEAVE_S):
            if controller_term.is_controller and controller_term.listener is not None:
                await controller_term.listener.settled()
            else:
                await heartbeats.hand_over()
    except (ThermoclineError, OSError) as failure:  # TimeoutError and ConnectionError are OSErrors
        log.warning(
            "leaderships not handed over: %s; others lead when this broker left", str(failure) or "no answer in time"
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
    """End the session where others are, and let nobody wait for the lease. A failure only costs them that wait."""
    try:
        async with asyncio.timeout(LEAVE_S):
            if not is_controller:
                if heartbeats is not None:
                    await heartbeats.leave()
                return
            if len(image.nodes) > 1:
                own = image.nodes[node_id]
                await cluster.commit(end_records(image, [(own.node_id, own.broker_epoch)]))
            await controller_lease.release(cluster.epoch)
    except (ThermoclineError, OSError) as failure:  # TimeoutError and ConnectionError are OSErrors
        log.warning(
            "left without a word: %s; others wait until this broker's session or lease is over",
            str(failure) or "no answer in time",
        )
