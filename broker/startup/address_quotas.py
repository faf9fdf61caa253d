"""Applies the connection quotas of an image (`ip` entities) to this broker's listeners.

As in Kafka, host names are resolved once, when the quotas change. An address that has a quota of its own keeps it.
"""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import Final

from broker.metadata.image import ClusterImage
from broker.metadata.records import CONNECTION_CREATION_RATE, ClientQuotas
from broker.quotas.connection_rates import ConnectionRates
from seams.loop.tasks import Tasks
from seams.net import Net

log = logging.getLogger(__name__)

_RESOLVE_S: Final = 5.0


class AddressQuotas:
    def __init__(self, rates: ConnectionRates, net: Net, tasks: Tasks) -> None:
        self._rates = rates
        self._net = net
        self._tasks = tasks
        self._quotas: tuple[ClientQuotas, ...] = ()

    def apply_image(self, image: ClusterImage) -> None:
        if image.quotas is self._quotas:
            return
        self._quotas = quotas = image.quotas
        default: float | None = None
        by_address: dict[str, float] = {}
        by_name: dict[str, float] = {}
        for each in quotas:
            bound = each.quotas.get(CONNECTION_CREATION_RATE)
            if bound is None:
                continue
            ((_, host),) = each.entity
            if host is None:
                default = bound
            elif (address := _address(host)) is not None:
                by_address[address] = bound
            else:
                by_name[host] = bound
        self._rates.set(default, by_address)
        if by_name:
            self._tasks.spawn("resolving addresses with quotas", self._resolve(quotas, default, by_address, by_name))

    async def _resolve(
        self,
        quotas: tuple[ClientQuotas, ...],
        default: float | None,
        by_address: dict[str, float],
        by_name: dict[str, float],
    ) -> None:
        found: dict[str, float] = {}
        for host, bound in by_name.items():
            try:
                found |= dict.fromkeys(await self._net.resolve(host, _RESOLVE_S), bound)
            except OSError as unknown:
                log.error("the connection quota of %s has no effect: it has no address (%s)", host, unknown)
            if self._quotas is not quotas:
                return  # newer quotas replaced `quotas`
        self._rates.set(default, found | by_address)


def _address(host: str) -> str | None:
    try:
        return str(ip_address(host))
    except ValueError:
        return None
