"""The HTTP port with secrets and TLS, on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.net.tls.machine import TlsMachine
from broker.observe import http_connections
from broker.observe.http import HttpServer, Protection
from broker.security.http_secrets import HttpSecrets
from seams.files import descriptors
from seams.loop.workers import Lane, ThreadWorkers, Workers
from tests.support.net.tls_peer import client_context, listener_tls
from tests.support.workers import InlineWorkers
from tests.unit.broker.observe.test_broker_observe import views

TOKEN = "0123456789abcdef0123"


def with_http(
    directory: Path,
    scenario: Callable[[aiohttp.ClientSession, HttpServer], Awaitable[None]],
    *,
    metrics_open: bool = False,
    is_secured: bool = True,
    workers: Workers | None = None,
) -> None:
    path = directory / "secrets"
    path.write_text(f"{TOKEN}\nadmin:correct horse battery\n")
    secrets = HttpSecrets(str(path), lambda name: Path(name).read_bytes())

    async def run() -> None:
        protection = Protection(secrets, listener_tls().context if is_secured else None, metrics_open)
        server = HttpServer(views(), protection, workers or InlineWorkers())
        await server.start("127.0.0.1", 0)
        try:
            connector = aiohttp.TCPConnector(ssl=client_context())
            async with aiohttp.ClientSession(connector=connector) as session:
                await scenario(session, server)
        finally:
            await server.close()

    asyncio.run(run())


@pytest.mark.parametrize("metrics_open", [False, True])
def test_every_request_but_probes_needs_a_secret(tmp_path: Path, metrics_open: bool) -> None:
    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        url = f"https://127.0.0.1:{server.address[1]}"
        found = {}
        for path in ("/healthz", "/readyz", "/metrics", "/status", "/broker", "/cluster", "/nowhere"):
            async with session.get(url + path) as answer:
                found[path] = answer.status
        closed = ["/status", "/broker", "/cluster", "/nowhere", *([] if metrics_open else ["/metrics"])]
        assert [path for path, status in found.items() if status == 401] == sorted(closed, key=list(found).index)
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong-wrong-wrong-wrong"}, 401),
            ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ):
            for path in ("/tier/seal", "/reload"):
                async with session.post(url + path, json={}, headers=headers) as answer:
                    assert answer.status == status
        async with session.get(f"{url}/status", auth=aiohttp.BasicAuth("admin", "correct horse battery")) as answer:
            assert answer.status == 200 and await answer.json() == []

    with_http(tmp_path, scenario, metrics_open=metrics_open)


def test_a_probe_without_a_secret_gets_no_reasons(tmp_path: Path) -> None:
    """They name topics, files and servers, and the port may be reached by everybody."""

    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        server._views = views(
            failures=lambda: ["orders-0: OSError: /data"], not_ready=lambda: "waiting for s3.internal"
        )
        url = f"https://127.0.0.1:{server.address[1]}"
        for headers, health, ready in (
            ({}, "ok\n", "not ready\n"),
            (
                {"Authorization": f"Bearer {TOKEN}"},
                "ok\norders-0: OSError: /data\n",
                "not ready: waiting for s3.internal\n",
            ),
        ):
            async with session.get(f"{url}/healthz", headers=headers) as answer:
                assert (answer.status, await answer.text()) == (200, health)
            async with session.get(f"{url}/readyz", headers=headers) as answer:
                assert (answer.status, await answer.text()) == (503, ready)

    with_http(tmp_path, scenario)


def test_an_authorization_that_is_not_text_is_refused_like_any_other(tmp_path: Path) -> None:
    """Each such request without a secret would write an exception to the log."""
    asked = b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: %s\r\n\r\n"

    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        for header in (b"Bearer \xff\xfe", b"Basic \xff\xfe", b"\xff\xfe", b"Bearer \xe2\x82\xac"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address[1])
            writer.write(asked % header)
            assert (await reader.readline()).split()[1] == b"401", header
            writer.close()

    with_http(tmp_path, scenario, is_secured=False)


def test_a_large_answer_and_many_requests_on_one_connection(tmp_path: Path) -> None:
    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        url = f"https://127.0.0.1:{server.address[1]}/status"
        for _ in range(50):
            async with session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == 200

    with_http(tmp_path, scenario, metrics_open=False)


def test_plaintext_on_the_port_is_closed(tmp_path: Path) -> None:
    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{server.address[1]}/healthz")

    with_http(tmp_path, scenario, metrics_open=False)


@pytest.mark.parametrize("is_secured", [True, False])
def test_silent_connections_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_secured: bool) -> None:
    """Found by a penetration test: 256 connections that asked for nothing, without any secret, kept probes out for as
    long as they liked. Now the one not heard of for longest goes."""
    monkeypatch.setattr(http_connections, "CONNECTIONS_MAX", 2)

    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.address[1]) for _ in range(2)]
        url = f"{'https' if is_secured else 'http'}://127.0.0.1:{server.address[1]}/healthz"
        for _ in range(3):
            async with session.get(url) as answer:
                assert answer.status == 200
        reader, _ = silent[0]
        with pytest.raises((ConnectionError, AssertionError)):
            assert await reader.read(1)
        assert not silent[1][0].at_eof()
        for _, writer in silent:
            writer.close()

    with_http(tmp_path, scenario, is_secured=is_secured)


def test_connections_leave_descriptors_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: with a limit of 1 024, connections of the HTTP port took the 128 that clients of Kafka's port leave
    free for brokers and files."""

    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (4, 4))
        silent = [await asyncio.open_connection("127.0.0.1", server.address[1]) for _ in range(3)]
        async with session.get(f"http://127.0.0.1:{server.address[1]}/healthz") as answer:
            assert answer.status == 200
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read(1) == b"", "replaced"
            writer.close()

    with_http(tmp_path, scenario, is_secured=False)


def test_handshakes_do_not_hold_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 240 clients without a secret that sent their first bytes at once held the loop for 1.4 s (RSA 4096),
    because each step of a handshake ran on it."""
    lanes: list[Lane] = []

    class Noted(ThreadWorkers):
        async def run(self, function: Any, *args: Any, lane: Lane = Lane.FILES) -> Any:
            lanes.append(lane)
            return await super().run(function, *args, lane=lane)

    workers = Noted()
    threads = set()
    handshake = TlsMachine.handshake

    def stepped(self: TlsMachine) -> bool:
        threads.add(threading.current_thread())
        return handshake(self)

    monkeypatch.setattr(TlsMachine, "handshake", stepped)

    async def scenario(session: aiohttp.ClientSession, server: HttpServer) -> None:
        url = f"https://127.0.0.1:{server.address[1]}/healthz"
        async with session.get(url) as answer:
            assert answer.status == 200
        turns = server._handshakes.turns
        assert turns.under_way == turns.waiting == 0

    with_http(tmp_path, scenario, workers=workers)
    workers.close()
    assert lanes and set(lanes) == {Lane.HANDSHAKE}
    assert threads and threading.main_thread() not in threads
