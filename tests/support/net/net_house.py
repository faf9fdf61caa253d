"""A server of `broker.net` on a scripted network, and the checks that every scenario ends with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.net.dispatch import Answer, AnswerFuture, CloseReason, Later, Part
from broker.net.limits import NetLimits
from broker.net.server import Bind, Server
from tests.support.net.scripted_net import ScriptedDispatcher, ScriptedNet, frame
from tests.support.workers import InlineWorkers

MIB = 1 << 20


class House:
    """A started server on a scripted network."""

    def __init__(self, limits: NetLimits | None = None, native: bool = True, **options: Any) -> None:
        self.net = ScriptedNet(native)
        self.dispatcher = ScriptedDispatcher()
        self.reports: list[BaseException] = []
        self.server = Server(
            self.net,
            self.dispatcher,
            limits or NetLimits(),
            lambda name, failure: self.reports.append(failure),
            **{"workers": InlineWorkers(), **options},
        )
        self.futures: dict[bytes, AnswerFuture] = {}

    def answer_later(self, start: bytes, blocks: bool) -> None:
        """Requests that begin with `start` are answered by `complete`, under their whole body."""

        def rule() -> Answer:
            future: AnswerFuture = asyncio.get_running_loop().create_future()
            self.futures[self.dispatcher.seen[-1]] = future
            return Later.of(future, blocks=blocks)

        self.dispatcher.rules[start] = rule

    def answer_with(self, start: bytes, *parts: Part) -> None:
        self.dispatcher.rules[start] = lambda: list(parts)

    def refuse(self, start: bytes, failure: BaseException) -> None:
        def rule() -> Answer:
            raise failure

        self.dispatcher.rules[start] = rule

    async def complete(self, body: bytes) -> None:
        """The answer to `body` is there: an echo."""
        self.futures[body].set_result([frame(body)])
        await settled()

    @property
    def closes(self) -> dict[CloseReason, int]:
        return dict(self.server.counters.closes)


async def settled() -> None:
    """Let callbacks run until nothing changes by itself."""
    for _ in range(16):
        await asyncio.sleep(0)


def in_house(scenario: Callable[[House], Awaitable[None]], limits: NetLimits | None = None, **options: Any) -> None:
    """Run a scenario; at its end nothing may be left charged once all peers are gone."""

    async def whole() -> None:
        house = House(limits, **options)
        await house.server.bind([Bind("PLAINTEXT", "", 0)])
        await house.server.accept()
        await scenario(house)
        for future in house.futures.values():
            if not future.done():
                future.set_result(None)
        await settled()
        await house.server.stop()
        assert house.server.budget.used == 0
        assert house.server.counters.connections_open == 0

    asyncio.run(whole())


def tick(house: House, count: int) -> None:
    """`count` seconds pass for the deadlines."""
    for _ in range(count):
        house.server._shared.wheel.advance()
