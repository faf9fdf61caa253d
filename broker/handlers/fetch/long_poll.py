"""The long poll: a fetch that waits for new records, for what is being loaded, or for its time to run out.

Owns how a fetch waits; two ways, of which each costs what its fetches can pay. Most are looked at as one: no task, a
callback that looks again. One of very many partitions is looked at in turns, by a task of its own. Always true: a fetch
is answered once, at the latest when its time ran out; several partitions that move in one turn of the loop cost one
look. Must not know what an answer holds, nor when it is enough: `Fetch` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.context import Context
from broker.handlers.fetch.attempt import FetchAttempt
from broker.handlers.fetch.fetch import Fetch
from broker.net.dispatch import Later
from broker.wire.messages import FetchResponse

Finish = Callable[[Later, FetchResponse], None]

_WAIT_MAX_S: Final = 60.0  # a client may not park a request longer, whatever it asks


def _wait_s(context: Context, fetch: Fetch, first: FetchAttempt) -> float:
    """How long the request may wait: for what is being loaded as long as Kafka parks it (remote.fetch.max.wait.ms)."""
    wait_ms = fetch.request.max_wait_ms
    if first.loading:
        wait_ms = max(wait_ms, context.config.cold_fetch_wait_ms_max)
    return min(wait_ms / 1000, _WAIT_MAX_S)


class LongPoll:
    """A fetch that waits for new records, for cold chunks, or for its time to run out; then it reads once more."""

    __slots__ = ("_fetch", "_finish", "_hearing", "_scheduled", "_timer", "answer")

    def __init__(self, context: Context, fetch: Fetch, first: FetchAttempt, finish: Finish) -> None:
        loop = asyncio.get_running_loop()
        self._fetch = fetch
        self._finish = finish
        self._scheduled = False
        self._hearing: asyncio.TimerHandle | None = None
        self.answer = Later(blocks=True)
        now_s = loop.time()
        until_s = now_s + _wait_s(context, fetch, first)
        if fetch.is_of_replica:  # many of them are parked all the time, nobody minds when their time is over
            until_s = context.world.beats.until(until_s, now_s)
        self._timer = loop.call_at(until_s, self._expire)
        self._await(first)
        self.answer.when_done(self._leave)

    def _await(self, result: FetchAttempt) -> None:
        self._fetch.park(self._wake, result)
        for loading in result.loading:
            loading.add_done_callback(self._wake)
        unheard_s = self._fetch.unheard_s()
        if unheard_s is not None and self._hearing is None:
            self._hearing = asyncio.get_running_loop().call_later(unheard_s, self._hear)

    def _hear(self) -> None:
        self._hearing = None
        self._wake()

    def _wake(self, _: object = None) -> None:
        # Several partitions may move in one turn of the loop: look once, after all of them.
        if not self._scheduled and not self.answer.is_done:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        if self.answer.is_done:
            return
        result = self._fetch.attempt()
        if self._fetch.satisfied(result):
            self._complete(result)
        else:
            self._await(result)

    def _expire(self) -> None:
        if not self.answer.is_done:
            self._complete(self._fetch.attempt())

    def _complete(self, result: FetchAttempt) -> None:
        self._finish(self.answer, self._fetch.response(result))

    def _leave(self, _: object) -> None:
        self._timer.cancel()
        if self._hearing is not None:
            self._hearing.cancel()
        self._fetch.leave(self._wake)


async def answer_wide(context: Context, fetch: Fetch) -> FetchResponse:
    """The answer to a fetch of very many partitions: as `LongPoll`, in turns."""
    loop = asyncio.get_running_loop()
    result = await fetch.attempt_in_turns()
    until_s = loop.time() + _wait_s(context, fetch, result)
    while not fetch.satisfied(result) and loop.time() < until_s:
        moved = asyncio.Event()
        wake = _Wake(moved)
        fetch.park(wake, result)
        if fetch.has_moved(result):
            wake()
        for loading in result.loading:
            loading.add_done_callback(wake)
        try:
            async with asyncio.timeout_at(until_s):
                await moved.wait()
        except TimeoutError:
            pass  # it is answered with what there is
        finally:
            fetch.leave(wake)
        result = await fetch.attempt_in_turns()
    return fetch.response(result)


class _Wake:
    """Sets an event; called by partitions, which pass nothing, and by futures, which pass themselves."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def __call__(self, _: object = None) -> None:
        self._event.set()
