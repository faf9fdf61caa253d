"""Commits a broker's configured defaults to the cluster, once: `min.insync.replicas` (as KIP-966 does) and unclean
elections.

It also commits a SCRAM secret to a cluster that has users and no secret. Only the cluster's values decide when a write
is acknowledged and which replica is elected. The first controller with a configured value commits the value. A
different value that is configured later has no effect and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.controller.controller_requests import ControllerRequests
from broker.following.metadata_cache import MetadataCache
from broker.metadata.data_configs import DEFAULTS

log = logging.getLogger(__name__)


async def commit_defaults(
    controller: ControllerRequests, metadata: MetadataCache, node_id: int, configured: Mapping[str, str]
) -> None:
    """Commit the defaults at the start of broker `node_id`. `configured`: values of its file, flags and environment.
    Raises as `set_broker_configs`; the caller then retries."""
    wanted = {name: configured[name] for name in DEFAULTS if name in configured}
    if metadata.is_decided_by(node_id) and wanted.keys() - metadata.image.cluster_configs.keys():
        await controller.set_broker_configs(None, lambda existing: {**wanted, **existing})
    if metadata.is_decided_by(node_id) and metadata.image.scram and not metadata.image.scram_secret:
        await controller.ensure_scram_secret()
    for name, value in wanted.items():
        stands = metadata.image.cluster_configs.get(name, DEFAULTS[name])
        if stands != value:
            log.warning(
                "%s=%s of this broker's configuration has no effect: the cluster's is %s; change it with "
                "kafka-configs.sh --entity-type brokers --entity-default, or on the topic",
                name,
                value,
                stands,
            )
