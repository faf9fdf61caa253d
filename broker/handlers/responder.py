"""Frames and sends responses.

While the serving gate is closed no response leaves (C31): a response that can wait waits for the gate; any other
response closes its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker.membership.serving_gate import ServingGate
from broker.net.dispatch import Answer, CloseConnection, Later, Part
from broker.quotas.loop_time import LoopTime
from broker.wire import scatter
from broker.wire.apis import response_header_version
from broker.wire.codec import encode_response, encode_response_in_steps
from broker.wire.framing import FRAME_PREFIX_SIZE, RequestHeader, response_frame
from broker.wire.message import Encoded, Message
from seams.loop.tasks import Tasks
from seams.loop.turns import next_turn


async def encoded_in_turns(api_key: int, version: int, response: Message) -> list[scatter.Part]:
    """The encoded body. The event loop runs other work between the parts of a long body."""
    encoding = encode_response_in_steps(api_key, version, response)
    while True:
        try:
            next(encoding)
        except StopIteration as encoded:
            parts: list[scatter.Part] = encoded.value
            return parts
        await next_turn()


class Responder:
    def __init__(self, gate: ServingGate, tasks: Tasks) -> None:
        self._gate = gate
        self._tasks = tasks
        self.time: LoopTime | None = None
        """The time measurement of the request in dispatch, while a quota is set."""

    def now(self, header: RequestHeader, response: Message) -> list[Part]:
        """The frame, encoded at once. Raises CloseConnection."""
        return self._framed(header, encode_response(header.api_key, header.api_version, response))

    async def in_turns(self, header: RequestHeader, response: Message | Encoded) -> list[Part]:
        """The frame, encoded in turns with other work, once the gate is open."""
        body: list[scatter.Part]
        if isinstance(response, Encoded):
            body = [response.body]
        else:
            body = await encoded_in_turns(header.api_key, header.api_version, response)
        if not self._gate.is_open():
            await self._gate.opened()
        return self._framed(header, body)

    async def forwarded(self, response: bytes) -> list[Part]:
        """The frame of another broker's response (header and body), once the gate is open. Raises CloseConnection."""
        if not self._gate.is_open():
            await self._gate.opened()
            self._check_gate()
        return [len(response).to_bytes(FRAME_PREFIX_SIZE, "big") + response]

    def complete(self, header: RequestHeader, later: Later, response: Message) -> None:
        """Send the response to a request that waited without a task."""
        try:
            parts = self.now(header, response)
        except CloseConnection as closed:
            later.fail(closed)
        else:
            later.answer(parts)

    def later(self, work: Coroutine[Any, Any, Answer], *, blocks: bool = True) -> Later:
        """Run `work` as a task and send its result. With `blocks`, the connection's next request waits until the task
        is over."""
        if self.time is not None:
            work = self.time.timed(work)
        task: asyncio.Future[Answer] = self._tasks.spawn("request", work, awaited=True)
        return Later.of(task, blocks=blocks)

    def _check_gate(self) -> None:
        if not self._gate.is_open():
            raise CloseConnection("this process slept or was superseded while the request was under way")

    def _framed(self, header: RequestHeader, body: list[scatter.Part]) -> list[Part]:
        self._check_gate()
        version = response_header_version(header.api_key, header.api_version)
        return response_frame(version, header.correlation_id, body)
