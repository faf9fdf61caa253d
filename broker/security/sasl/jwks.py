"""Key set of an identity provider. It is read at the start, then every `…refresh.ms`, and soon after a failure.

The last good set stays in use. A login never waits for a key set: before the first set arrives, tokens are refused. A
set is at most 1 MiB and has to arrive within ten seconds. A redirect is an error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from urllib.parse import unquote, urlsplit

import aiohttp

from broker.config.network.sasl import TokenRules
from broker.security.sasl import jwt_verifier
from broker.security.sasl.mechanism import NotValid, TokenVerdict
from seams.files.disk import read_file
from seams.loop.workers import Lane
from seams.world import World

log = logging.getLogger(__name__)

SET_BYTES_MAX: Final = 1 << 20
VERIFYING_MAX: Final = 512
"""Tokens that wait for the worker; a login beyond them is refused."""
_ANSWER_S: Final = 10.0
_REFRESH_S_MIN: Final = 1.0


class KeySetUnread(Exception):
    """The key set was not read; the message says why."""


class TokenVerifier:
    """Verifies tokens by one listener's rules, in a worker."""

    def __init__(self, rules: TokenRules, world: World) -> None:
        self._rules = rules
        self._world = world
        self._keys: jwt_verifier.Keys = {}
        self._waiting = 0

    async def verify(self, token: str) -> TokenVerdict:
        rules, world = self._rules, self._world
        if rules.jwks_url is None:
            return jwt_verifier.verify_unsecured(token, rules, world.clock.wall_ms() / 1000)
        if not self._keys:
            return NotValid(f"no key set was read from {rules.jwks_url} yet")
        if self._waiting >= VERIFYING_MAX:
            return NotValid("too many tokens wait to be verified")
        self._waiting += 1
        try:
            return await world.workers.run(jwt_verifier.verify, token, self._keys, rules, lane=Lane.LOGIN)
        finally:
            self._waiting -= 1

    async def keep(self) -> None:
        """Read the key set periodically, until cancelled."""
        rules = self._rules
        if rules.jwks_url is None:
            return
        wait_ms = rules.retry_ms
        while True:
            try:
                text = await self._read(rules.jwks_url)
                keys = await self._world.workers.run(_key_set, text, lane=Lane.LOGIN)
            except (KeySetUnread, OSError) as failed:
                log.warning(
                    "the keys of OAUTHBEARER were not read from %s: %s; %s",
                    rules.jwks_url,
                    failed,
                    "the last ones stay in use" if self._keys else "no token is accepted until they are",
                )
                await asyncio.sleep(wait_ms / 1000)
                wait_ms = min(wait_ms * 2, rules.retry_ms_max)
                continue
            if keys.keys() != self._keys.keys():
                log.info("read %d keys of OAUTHBEARER from %s", len(keys), rules.jwks_url)
            self._keys = keys
            wait_ms = rules.retry_ms
            await asyncio.sleep(max(rules.refresh_ms / 1000, _REFRESH_S_MIN))

    async def _read(self, url: str) -> bytes:
        parts = urlsplit(url)
        if parts.scheme == "file":
            file = unquote(parts.path)
            return await self._world.workers.run(self._read_bounded, file)
        return await fetched(url)

    def _read_bounded(self, path: str) -> bytes:
        text = read_file(self._world.disk, path)
        if len(text) > SET_BYTES_MAX:
            raise KeySetUnread(f"the key set is longer than {SET_BYTES_MAX} bytes")
        return text


async def fetched(url: str) -> bytes:
    """The body of a response with status 200. Raises KeySetUnread."""
    limit = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "application/json"}) as answer,
        ):
            if answer.status != 200:
                raise KeySetUnread(f"the server answered {answer.status}")
            body = await answer.content.read(SET_BYTES_MAX + 1)
            while len(body) <= SET_BYTES_MAX and (more := await answer.content.read(SET_BYTES_MAX + 1 - len(body))):
                body += more
    except (aiohttp.ClientError, TimeoutError) as failed:
        raise KeySetUnread(f"{type(failed).__name__}: {failed}") from failed
    if len(body) > SET_BYTES_MAX:
        raise KeySetUnread(f"the key set is longer than {SET_BYTES_MAX} bytes")
    return body


def _key_set(text: bytes) -> jwt_verifier.Keys:
    try:
        return jwt_verifier.read_key_set(text)
    except ValueError as malformed:
        raise KeySetUnread(str(malformed)) from None
