"""What a broker's own configuration says about data, made the cluster's: `min.insync.replicas` (as KIP-966 does), and
whether a replica that may lack records may lead.

Owns the one place where a file's value gets into `cluster.json`. Always true: only what stands there decides when a
write is acknowledged and who is elected, so a file's value is either put there, once, by the first broker that decides
with one, or told to have no effect; what stands there is never replaced. Must not know how values are judged: they were
at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from broker.following.metadata_cache import MetadataCache
from broker.metadata import minimum, unclean

log = logging.getLogger(__name__)

_DECIDE_ABOUT_DATA: Final = {minimum.CONFIG: minimum.DEFAULT, unclean.CONFIG: unclean.DEFAULT}
"""With what counts where nobody says anything."""


class ConfigSetter(Protocol):
    """The part of `broker.controller.controller_requests.ControllerRequests` that is needed."""

    async def set_broker_configs(
        self, node_id: int | None, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None: ...


async def commit_defaults(
    door: ConfigSetter, metadata: MetadataCache, node_id: int, configured: Mapping[str, str]
) -> None:
    """At the start of broker `node_id`, whose file, flags and environment say `configured`. Raises as the door does:
    then it is to be tried again."""
    wanted = {name: configured[name] for name in _DECIDE_ABOUT_DATA if name in configured}
    if metadata.is_decided_by(node_id) and wanted.keys() - metadata.image.cluster_configs.keys():
        await door.set_broker_configs(None, lambda existing: {**wanted, **existing})
    for name, value in wanted.items():
        stands = metadata.image.cluster_configs.get(name, _DECIDE_ABOUT_DATA[name])
        if stands != value:
            log.warning(
                "%s=%s of this broker's configuration has no effect: the cluster's is %s; change it with "
                "kafka-configs.sh --entity-type brokers --entity-default, or on the topic",
                name,
                value,
                stands,
            )
