"""The key set: read at the start, again and again, kept when it cannot be read; and its bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from broker.security.sasl import jwks
from broker.security.sasl.jwks import SET_BYTES_MAX, KeySetUnread, TokenVerifier, fetched
from broker.security.sasl.mechanism import NotValid, Verified
from tests.support.disk.crash_disk import CrashDisk
from tests.unit.broker.security.test_sasl_jwt import KEY_SET, RULES, claims, signed, unsecured

FILE = replace(RULES, jwks_url="file:///keys/set%20a.json", refresh_ms=60_000, retry_ms=100, retry_ms_max=1000)
PATH = "/keys/set a.json"


class AtOnce:
    async def run(self, function: Any, *arguments: Any, lane: Any = None) -> Any:
        await asyncio.sleep(0.001)
        return function(*arguments)


class Place:
    """A verifier and the file with its keys."""

    def __init__(self, rules: Any = FILE) -> None:
        self.disk = CrashDisk()
        self.disk.make_dirs("/keys")
        clock = SimpleNamespace(wall_ms=lambda: int(time.time() * 1000))
        world: Any = SimpleNamespace(disk=self.disk, workers=AtOnce(), clock=clock)
        self.verifier = TokenVerifier(rules, world)

    def write(self, text: bytes) -> None:
        file = self.disk.open(PATH, write=True, create=True)
        file.truncate(0)
        file.write_at(0, [text])

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self.verifier.keep())
            try:
                yield
            finally:
                keeping.cancel()


async def test_a_set_is_read_soon_and_kept_when_the_next_one_is_bad() -> None:
    """No token is valid before; a bad set changes nothing; a good one counts after the refresh."""
    place = Place()
    async with place.kept():
        await asyncio.sleep(0.05)
        refused = await place.verifier.verify(signed())
        assert isinstance(refused, NotValid) and "no key set" in refused.why
        place.write(KEY_SET)
        await asyncio.sleep(2)
        assert isinstance(await place.verifier.verify(signed()), Verified)
        for bad in (b"{}", b"x" * (SET_BYTES_MAX + 1)):
            place.write(bad)
            await asyncio.sleep(70)
            assert isinstance(await place.verifier.verify(signed()), Verified)
        place.disk.unlink(PATH)
        await asyncio.sleep(70)
        assert isinstance(await place.verifier.verify(signed()), Verified)


async def test_tokens_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm of tokens is refused above the bound, and no verification is lost."""
    monkeypatch.setattr(jwks, "VERIFYING_MAX", 3)
    place = Place()
    place.write(KEY_SET)
    async with place.kept():
        await asyncio.sleep(1)
        verdicts = await asyncio.gather(*(place.verifier.verify(signed()) for _ in range(5)))
        assert [isinstance(one, Verified) for one in verdicts] == [True] * 3 + [False] * 2
        assert isinstance(await place.verifier.verify(signed()), Verified)


async def test_unsecured_tokens_need_no_keys() -> None:
    """Where the configuration asks for them."""
    place = Place(replace(RULES, jwks_url=None))
    await place.verifier.keep()  # nothing to keep
    assert isinstance(await place.verifier.verify(unsecured({"alg": "none"}, claims())), Verified)


def test_what_a_url_answers() -> None:
    """A 200 within the bound; nothing else: no redirect, no error page, no endless body, no closed port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if kind == "moved":
            raise web.HTTPFound("/keys")
        if kind == "endless":
            stream = web.StreamResponse()
            await stream.prepare(request)
            for _ in range(64):
                await stream.write(bytes(64 << 10))
            return stream
        return web.Response(body=KEY_SET, status=200 if kind == "keys" else 500)

    async def scenario() -> None:
        app = web.Application()
        app.router.add_get("/{kind}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            assert await fetched(f"http://{host}:{port}/keys") == KEY_SET
            for kind, says in (("moved", "answered 302"), ("error", "answered 500"), ("endless", "longer than")):
                with pytest.raises(KeySetUnread, match=says):
                    await fetched(f"http://{host}:{port}/{kind}")
        finally:
            await runner.cleanup()
        with pytest.raises(KeySetUnread):
            await fetched(f"http://{host}:{port}/keys")

    asyncio.run(scenario())
