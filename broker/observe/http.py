"""The HTTP port: /metrics, /healthz, /readyz, /status, /broker, /cluster, `POST /tier/seal`, `POST /reload`.

With secrets (`thermocline.http.token.file`), every request needs a secret. Exceptions are probes, and /metrics if it is
configured as open. A probe without a secret gets no reasons, because they name topics, files and servers.

Without secrets, a request that changes state is accepted only from loopback. Such a request always needs a JSON content
type, and must have no Origin, so that no web page can send it (cli.md). The content type stops pages of other sites. A
browser believes that a page is of this site if the name of the page's server was changed to the address of this port
(DNS rebinding), but it still sends the Origin.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from broker.net.tls.handshakes import Handshakes, HandshakeTurns
from broker.observe.http_connections import CONNECTIONS_MAX, HttpConnections
from logformat.errors import ThermoclineError
from seams.loop.tasks import FailureReport, log_failure
from seams.loop.workers import Workers
from seams.typed_json import decoder_of

if TYPE_CHECKING:
    from aiohttp import web  # imported when the port opens, because the import takes 0.2 s and 15 MB
    from aiohttp.typedefs import Handler, Middleware

_SEAL_TIMEOUT_S: Final = 3600.0
_RELOAD_TIMEOUT_S: Final = 60.0
_BODY_BYTES_MAX: Final = 64 * 1024


class SealRequest(msgspec.Struct):
    """Body of `POST /tier/seal`: one topic or all, and whether to answer only after all records are copied and
    verified."""

    topic: str | None = None
    wait: bool = False


class Views(msgspec.Struct, frozen=True):
    metrics: Callable[[], Awaitable[bytes]]
    status: Callable[[], bytes]  # JSON, an array of partitions
    broker: Callable[[], Awaitable[bytes]]  # JSON
    cluster: Callable[[], Awaitable[bytes]]  # JSON; Retryable while it is not known
    not_ready: Callable[[], str]  # "" when the broker is ready
    failures: Callable[[], list[str]]
    seal: Callable[[str | None], Awaitable[None]]
    reload: Callable[[], Awaitable[bytes]]  # JSON, an array of the files that were read again


class Secrets(Protocol):
    def allows(self, authorization: str) -> bool:
        """Whether the header Authorization names a secret."""
        ...


class Protection(msgspec.Struct, frozen=True):
    """The protection of the port. `secrets` None: every client that reaches the port may read. `context`: the present
    TLS context; None: plaintext."""

    secrets: Secrets | None = None
    context: Callable[[], ssl.SSLContext] | None = None
    metrics_open: bool = False


class HttpServer:
    """`workers` run the steps of TLS handshakes; without workers they run on the loop."""

    def __init__(
        self,
        views: Views,
        protection: Protection,
        workers: Workers,
        report: FailureReport = log_failure,
    ) -> None:
        self._views = views
        self._protection = protection
        self._handshakes = Handshakes(workers, report, HandshakeTurns(CONNECTIONS_MAX, CONNECTIONS_MAX))
        self._listening: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self.address = ("", 0)

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 picks a free port. Raises OSError when the address cannot be bound."""
        from aiohttp import web

        application = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[self._authenticated()])
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/status", self._status)
        application.router.add_get("/broker", self._broker)
        application.router.add_get("/cluster", self._cluster)
        application.router.add_post("/tier/seal", self._seal)
        application.router.add_post("/reload", self._reload)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None
        connections = HttpConnections(self._runner.server, self._protection.context, self._handshakes)
        self._listening = await asyncio.get_running_loop().create_server(connections, host or None, port)
        bound = self._listening.sockets[0].getsockname()
        self.address = (bound[0], bound[1])

    def _authenticated(self) -> Middleware:
        """Asks for a secret before a request is handled."""
        from aiohttp import web

        free = {"/healthz", "/readyz"} | ({"/metrics"} if self._protection.metrics_open else set())

        @web.middleware
        async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path in free or self._is_allowed(request):
                return await handler(request)
            return _text("give a secret of thermocline.http.token.file: Authorization: Bearer TOKEN\n", 401)

        return cast("Middleware", authenticated)

    def _is_allowed(self, request: web.Request) -> bool:
        """Whether the request has a secret, or needs none."""
        secrets = self._protection.secrets
        return secrets is None or secrets.allows(request.headers.get("Authorization", ""))

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._handshakes.close()

    async def _metrics(self, request: web.Request) -> web.Response:
        return _response(await self._views.metrics(), content_type="text/plain; version=0.0.4; charset=utf-8")

    async def _healthz(self, request: web.Request) -> web.Response:
        """200 while the process works; the body names recent failures."""
        failures = self._views.failures() if self._is_allowed(request) else []
        return _text("\n".join(["ok", *failures]) + "\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        waiting_for = self._views.not_ready()
        if not waiting_for:
            return _text("ready\n")
        return _text(f"not ready: {waiting_for}\n" if self._is_allowed(request) else "not ready\n", 503)

    async def _status(self, request: web.Request) -> web.Response:
        return _response(self._views.status())

    async def _broker(self, request: web.Request) -> web.Response:
        return _response(await self._views.broker())

    async def _cluster(self, request: web.Request) -> web.Response:
        try:
            return _response(await self._views.cluster())
        except ThermoclineError as failure:
            return _text(f"{failure}\n", 503)

    async def _seal(self, request: web.Request) -> web.Response:
        if (refusal := self._may_not_change(request)) is not None:
            return refusal
        try:
            wanted = decoder_of(SealRequest).decode(await request.read() or b"{}")
        except msgspec.MsgspecError as malformed:
            return _text(f"{malformed}\n", 400)
        try:
            async with asyncio.timeout(_SEAL_TIMEOUT_S if wanted.wait else 5.0):
                await self._views.seal(wanted.topic)
        except TimeoutError:
            if wanted.wait:
                return _text("not everything is in the bucket yet; see tier status\n", 504)
            return _response(b'{"sealed": true, "done": false}', 202)
        except ThermoclineError as failure:
            return _text(f"{failure}\n", 503)
        return _response(b'{"sealed": true, "done": true}')

    async def _reload(self, request: web.Request) -> web.Response:
        if (refusal := self._may_not_change(request)) is not None:
            return refusal
        try:
            async with asyncio.timeout(_RELOAD_TIMEOUT_S):
                return _response(await self._views.reload())
        except TimeoutError:
            return _text("files, or the key service, did not answer in time; see the broker's log\n", 504)

    def _may_not_change(self, request: web.Request) -> web.Response | None:
        """The refusal of a request that changes state; None: the request is allowed. The caller has checked its
        secret."""
        if self._protection.secrets is None and not _is_loopback(request.remote):
            return _text(
                f"{request.path} is answered from loopback only; set thermocline.http.token.file to answer other "
                f"addresses\n",
                403,
            )
        if "Origin" in request.headers:
            return _text(f"{request.path} is not answered to web pages\n", 403)
        if request.content_type != "application/json":
            return _text("send Content-Type: application/json\n", 415)
        return None


def _is_loopback(remote: str | None) -> bool:
    return remote is not None and ipaddress.ip_address(remote).is_loopback


def _response(body: bytes, status: int = 200, content_type: str = "application/json") -> web.Response:
    from aiohttp import web

    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _text(text: str, status: int = 200) -> web.Response:
    return _response(text.encode(), status, "text/plain; charset=utf-8")
