"""Certificates of one broker's listeners, and the secrets of its HTTP port. They are read at the start and reloaded
when they change.

Files are read again every ten seconds, and at once after a reload request or a changed config. Contents are compared,
not times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.config.network.listeners import ListenerConfig
from broker.config.sources import Explicit
from broker.security.http_secrets import HttpSecrets
from broker.security.reload import Reload, Watched
from broker.security_protocol import SecurityProtocol
from seams.clock import Clock
from seams.files.disk import Disk, read_file
from seams.loop.workers import Workers

if TYPE_CHECKING:
    from broker.security.tls.listener_tls import ListenerTls  # imported only for TLS: costs 40 ms and 10 MB

WATCH_S: Final = 10.0
_HTTP: Final = "thermocline.http"
EXPIRES_SOON: Final = timedelta(days=14)


def listener_values(values: Explicit, listener: str, protocol: SecurityProtocol) -> Explicit:
    """The configs of one listener. As in Kafka, SASL_SSL clients are asked for a certificate only if the listener's own
    config requires it."""
    if protocol is SecurityProtocol.SASL_SSL:
        values = Explicit({name: text for name, text in values.configured.items() if name != "ssl.client.auth"})
    return values.of_listener(listener)


class Certificates:
    """The certificates of one broker. The constructor blocks, and raises InvalidConfig if a certificate cannot be
    used."""

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock, reload: Reload | None = None) -> None:
        self._values = Explicit(config.configured)
        self._clock = clock
        self._changed = asyncio.Event()
        self._reload = reload or Reload()
        read = partial(read_file, disk)
        self._found: dict[str, ListenerTls] = {}
        for name, where, values in self._users(config):
            from broker.security.tls.listener_tls import ListenerTls

            self._found[name] = ListenerTls(where, values, read, clock.wall_ms)
        path = self._values.text("thermocline.http.token.file")
        self.http_secrets = HttpSecrets(path, read) if path and config.http_host is not None else None
        self._reload.add(*self._watched())

    def _users(self, config: BrokerConfig) -> Iterable[tuple[str, str, Callable[[], Explicit]]]:
        for one in config.every_listener:
            if one.protocol.uses_tls:
                yield one.name, f"listener {one.name}", partial(self._of_listener, one)
        if config.http_host is not None and self._values.text(f"{_HTTP}.ssl.keystore.location"):
            yield _HTTP, "the HTTP port", self._of_http

    def _of_http(self) -> Explicit:
        beginning = f"{_HTTP}."
        return Explicit(
            {
                name.removeprefix(beginning): text
                for name, text in self._values.configured.items()
                if name.startswith(f"{beginning}ssl.")
            }
        )

    @property
    def http(self) -> ListenerTls | None:
        """TLS of the HTTP port; None if the HTTP port does not speak TLS."""
        return self._found.get(_HTTP)

    def _of_listener(self, listener: ListenerConfig) -> Explicit:
        return listener_values(self._values, listener.name, listener.protocol)

    def of(self, listener: str) -> ListenerTls | None:
        """TLS of a listener; None if the listener does not speak TLS."""
        return self._found.get(listener)

    def follow(self, live: LiveConfig) -> None:
        """Use the current configuration from now on."""

        def changed(now: BrokerConfig) -> None:
            self._values = Explicit(now.configured)
            self._changed.set()

        changed(live.now)
        live.subscribe(changed)

    async def keep(self, workers: Workers) -> None:
        """Reload changed files, until cancelled."""
        while watched := self._watched():
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._changed.wait()
            self._changed.clear()
            await self._reload.run(workers, watched)

    def refused(self) -> tuple[str, ...]:
        """The files whose new content could not be used, each with the reason."""
        return self._reload.refused()

    def _watched(self) -> list[Watched]:
        found: list[Watched] = [*self._found.values()]
        return found if self.http_secrets is None else [*found, self.http_secrets]

    def expiring(self) -> tuple[str, ...]:
        """Certificates that expire soon or have expired."""
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        return tuple(
            f"{tls.where}: {tls.expires:%Y-%m-%d %H:%M} UTC"
            for tls in self._found.values()
            if tls.expires - now < EXPIRES_SOON
        )

    def expire_s(self) -> Mapping[str, float]:
        """Expiry of each listener's certificate, in seconds since the epoch."""
        return {name: tls.expires.timestamp() for name, tls in self._found.items()}
