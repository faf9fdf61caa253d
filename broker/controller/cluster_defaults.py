"""What a broker's own configuration says about data, made the cluster's: `min.insync.replicas` (as KIP-966 does).

Owns the one place where a file's value gets into `cluster.json`. Always true: only what stands there decides when a
write is acknowledged, so a file's value is either put there, once, by the first broker that decides with one, or told
to have no effect; what stands there is never replaced. Must not know how values are judged: they were at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from broker.following.metadata_cache import MetadataCache

log = logging.getLogger(__name__)

_DECIDES_ABOUT_DATA: Final = "min.insync.replicas"


class Door(Protocol):
    """The part of `broker.controller.door.ControllerDoor` that is needed."""

    async def set_broker_configs(
        self, node_id: int | None, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None: ...


async def settle_defaults(door: Door, metadata: MetadataCache, node_id: int, configured: Mapping[str, str]) -> None:
    """At the start of broker `node_id`, whose file, flags and environment say `configured`. Raises as the door does:
    then it is to be tried again."""
    wanted = configured.get(_DECIDES_ABOUT_DATA)
    if wanted is None:
        return
    if metadata.is_decided_by(node_id) and _DECIDES_ABOUT_DATA not in metadata.image.cluster_configs:
        await door.set_broker_configs(None, lambda existing: {_DECIDES_ABOUT_DATA: wanted, **existing})
    stands = metadata.image.cluster_configs.get(_DECIDES_ABOUT_DATA, "1")
    if stands != wanted:
        log.warning(
            "%s=%s of this broker's configuration has no effect: the cluster's is %s; change it with kafka-configs.sh "
            "--entity-type brokers --entity-default, or on the topic",
            _DECIDES_ABOUT_DATA,
            wanted,
            stands,
        )
