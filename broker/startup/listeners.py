"""Listener addresses of one broker, and the ready line.

Addresses are bound first, and connections are accepted when the broker serves.

If an address is in use, the start is refused (`Refused`) before disk, bucket or lease are touched.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.config.network.addresses import show_address
from broker.config.network.listeners import ListenerConfig
from broker.membership.session import Refused
from broker.net.dispatch import Dispatcher
from broker.net.server import Bind, Server
from broker.observe.http import HttpServer, Protection, Views
from broker.security.reload import Reload
from broker.security.sasl.logins import Logins
from broker.security.tls.certificates import Certificates
from broker.startup.limits import net_limits
from broker.startup.ready_words import path_word, url_word
from seams.loop.tasks import FailureReport
from seams.world import World

log = logging.getLogger(__name__)

_REMIND_S: Final = 3600.0
_ADVICE: Final = {
    errno.EADDRINUSE: "stop what uses the address, or choose another with {flag}",
    errno.EADDRNOTAVAIL: "it is not an address of this machine: choose an address of this machine with "
    "{flag}, or 0.0.0.0 for all of them, and give the address that clients reach with --advertise",
    errno.EACCES: "a port below 1024 needs a privilege: choose a higher one with {flag}",
}


class Listeners:
    """The listeners of one broker. `config`: the initial configuration."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        dispatcher: Dispatcher,
        logins: Logins,
        views: Views,
        report: FailureReport,
        reload: Reload | None = None,
    ) -> None:
        self._config = config
        self._workers = world.workers
        self.logins = logins
        limits = net_limits(config)
        self.certificates = certificates = Certificates(config, world.disk, world.clock, reload)
        tls = certificates.http
        protection = Protection(
            certificates.http_secrets, None if tls is None else tls.context, config.http_metrics_open
        )
        self.http = None if config.http_host is None else HttpServer(views, protection, world.workers, report)
        self.server = Server(
            world.net,
            dispatcher,
            limits,
            report,
            afterwards=world.afterwards,
            beats=world.beats,
            workers=world.workers,
        )

    async def bind(self) -> None:
        """Bind the addresses. Raises Refused."""
        config = self._config
        if self.http is not None:
            assert config.http_host is not None
            await _bound(self.http.start(config.http_host, config.http_port), "--http")
        await _bound(self.server.bind(self._bind(listener) for listener in config.listeners), "--listen")
        if config.internal is not None:
            await _bound(self.server.bind([self._bind(config.internal)]), "--internal")

    def _bind(self, listener: ListenerConfig) -> Bind:
        is_apart = listener.name == self._config.brokers_listener
        logins = self.logins.of_listener(listener.name)
        return Bind(
            *listener.address,
            apart=is_apart,
            protocol=listener.protocol,
            tls=self.certificates.of(listener.name),
            login=None if logins is None else logins.new_peer,
        )

    @property
    def advertised(self) -> dict[str, tuple[str, int]]:
        """Advertised host and port of each listener, by name."""
        bound = self.server.addresses
        return {
            listener.name: (listener.advertised_host, listener.advertised_port or bound[listener.name][1])
            for listener in self._config.every_listener
        }

    def live_configs(self) -> dict[str, str]:
        """The configs, with the chosen ports in place of port 0."""
        internal = self._config.internal
        found = {
            "listeners": self._shown(),
            "thermocline.internal": "" if internal is None else show_address(*self.server.addresses[internal.name]),
        }
        if self._config.configured.get("advertised.listeners"):
            told = self.advertised
            found["advertised.listeners"] = ",".join(
                f"{one.name}://{show_address(*told[one.name])}" for one in self._config.listeners
            )
        if self.http is not None:
            found["thermocline.http"] = show_address(*self.http.address)
        return found

    def _shown(self) -> str:
        """The value of `listeners`, without the listener that only brokers use."""
        bound = self.server.addresses
        return ",".join(f"{one.name}://{show_address(*bound[one.name])}" for one in self._config.listeners)

    async def accept(self, live: LiveConfig) -> None:
        """Accept clients within the current limits of `live`. Raises Refused."""

        def limit(now: BrokerConfig) -> None:
            self.server.limit_connections(net_limits(now))

        limit(live.now)
        live.subscribe(limit)
        self.certificates.follow(live)
        await _bound(self.server.accept(), "--listen")

    @property
    def services(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Background services by name: reading key sets of tokens, reading certificate files, and reminders."""
        return {
            **self.logins.services,
            "certificates": lambda: self.certificates.keep(self._workers),
            "reminder": self._keep_reminding,
        }

    async def _keep_reminding(self) -> None:
        """Log a warning every hour if other machines, or other users of this one, can connect without
        authentication."""
        config = self._config
        while config.insecure or config.skips_login:
            if config.insecure:
                log.warning(
                    "insecure: %s can be reached by other machines without authentication, as --insecure allows",
                    ", ".join(config.insecure),
                )
            if config.internal is not None and config.skips_login:
                log.warning(
                    "insecure: every user of this machine reaches %s (thermocline.internal) without a login, although "
                    "clients have to log in elsewhere; set security.inter.broker.protocol to SSL or SASL_SSL",
                    show_address(*self.server.addresses[config.internal.name]),
                )
            await asyncio.sleep(_REMIND_S)

    def ready_line(self, cluster_id: str, bucket_url: str) -> str:
        """The line that scripts wait for (cli.md)."""
        first, *others = self._config.listeners
        http = "-" if self.http is None else show_address(*self.http.address)
        line = (
            f"ready kafka={show_address(*self.server.addresses[first.name])} http={http} node={self._config.node_id} "
            f"cluster={cluster_id} data={path_word(self._config.data_dir)} bucket={url_word(bucket_url)}"
        )
        return f"{line} listeners={self._shown()}" if others else line


async def _bound(start: Awaitable[None], flag: str) -> None:
    """Turn the failure for an address that is in use or belongs to another machine into a configuration error."""
    try:
        await start
    except OSError as failed:
        advice = _ADVICE.get(failed.errno or 0, "choose another address with {flag}").format(flag=flag)
        raise Refused(f"cannot listen: {failed}; {advice}") from failed
