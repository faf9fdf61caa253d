"""A fetch that waits: for new records, for data that is loading, or until its time runs out.

Most fetches wait without a task: a callback reads again. A fetch of very many partitions waits in a task that reads in
turns with other work. A fetch is answered once, at the latest when its time is over. Partitions that move in the same
turn of the event loop cause one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from broker.context import Context
from broker.handlers.fetch.attempt import FetchAttempt
from broker.handlers.fetch.fetch import Fetch
from broker.net.dispatch import Later
from broker.wire.messages import FetchResponse
from seams.loop.turns import ROWS_PER_TURN

Finish = Callable[[Later, FetchResponse], None]

_WAIT_MAX_S: Final = 60.0


def _wait_s(context: Context, fetch: Fetch, first: FetchAttempt) -> float:
    """Longest wait of the request in seconds; while data loads, this is Kafka's remote.fetch.max.wait.ms."""
    wait_ms = fetch.request.max_wait_ms
    if first.loading:
        wait_ms = max(wait_ms, context.config.cold_fetch_wait_ms_max)
    return min(wait_ms / 1000, _WAIT_MAX_S)


class LongPoll:
    """A waiting fetch without a task."""

    __slots__ = ("_fetch", "_finish", "_is_over", "_large_reads", "_report_timer", "_scheduled", "_timer", "answer")

    def __init__(self, context: Context, fetch: Fetch, first: FetchAttempt, finish: Finish) -> None:
        loop = asyncio.get_running_loop()
        self._fetch = fetch
        self._finish = finish
        self._large_reads = context.large_reads
        self._scheduled = self._is_over = False
        self._report_timer: asyncio.TimerHandle | None = None
        self.answer = Later(blocks=True)
        now_s = loop.time()
        until_s = now_s + _wait_s(context, fetch, first)
        if fetch.is_of_replica:  # replicas' fetches always wait: end them together, at a common beat
            until_s = context.world.beats.until(until_s, now_s)
        self._timer = loop.call_at(until_s, self._expire)
        self._await(first)
        self.answer.when_done(self._leave)

    def _await(self, result: FetchAttempt) -> None:
        self._fetch.park(self._wake, result)
        for loading in result.loading:
            loading.add_done_callback(self._wake)
        report_delay_s = self._fetch.report_delay_s()
        if report_delay_s is not None and self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(report_delay_s, self._report)

    def _report(self) -> None:
        self._report_timer = None
        self._wake()

    def _wake(self, _: object = None) -> None:
        # Several partitions may move in one turn of the loop: read once, after all of them.
        if not self._scheduled and not self.answer.is_done:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        self._scheduled = False
        if self.answer.is_done:
            return
        if self._fetch.due() > ROWS_PER_TURN and not self._large_reads.begin():
            self._wake()  # another large session is read in this turn
            return
        result = self._fetch.attempt()
        if self._is_over or self._fetch.satisfied(result):
            self._complete(result)
        else:
            self._await(result)

    def _expire(self) -> None:
        self._is_over = True
        self._wake()

    def _complete(self, result: FetchAttempt) -> None:
        self._finish(self.answer, self._fetch.response(result))

    def _leave(self, _: object) -> None:
        self._timer.cancel()
        if self._report_timer is not None:
            self._report_timer.cancel()
        self._fetch.leave(self._wake)


async def await_records(
    context: Context, fetch: Fetch, result: FetchAttempt | None, slot: Callable[[], AbstractAsyncContextManager[None]]
) -> FetchResponse:
    """The response to a fetch of very many partitions that waits after its first attempt `result`: as `LongPoll`, in
    turns with other work. The attempt's objects are released while it waits. It reads again in a `slot`, because one
    record may wake many such fetches."""
    loop = asyncio.get_running_loop()
    assert result is not None
    until_s = loop.time() + _wait_s(context, fetch, result)
    while loop.time() < until_s and not fetch.is_due(result):
        moved = asyncio.Event()

        def wake(_: object = None, moved: asyncio.Event = moved) -> None:  # a future passes itself, a partition nothing
            moved.set()

        fetch.park(wake, result)
        if fetch.has_moved(result):
            wake()
        for loading in result.loading:
            loading.add_done_callback(wake)
        result = None
        try:
            async with asyncio.timeout_at(until_s):
                await moved.wait()
        except TimeoutError:
            pass  # answer with the available records
        finally:
            fetch.leave(wake)
        async with slot():
            result = await fetch.attempt_in_turns()
    return fetch.response(result)
