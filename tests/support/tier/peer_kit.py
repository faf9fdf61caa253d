"""What the tests of peers' bugs share: the cold half of a partition as a reader gets it, stores that hang or watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coldstore.object_store import ObjectStore
from logformat.record_batch import walk
from tests.support.tier.cold_log import content
from tests.support.tier.tier_kit import Opened, records_in
from tiering.reading.batch_slices import ColdSlice
from tiering.reading.fetch_router import Route, route


def route_of(opened: Opened, offset: int) -> Route:
    """Where the broker sends a fetch at `offset`, by the partition's own numbers."""
    return route(
        offset,
        log_start_offset=max(opened.log.log_start_offset, opened.tier.log_start_offset),
        local_log_start_offset=opened.log.local_log_start_offset,
        remote_end_offset=opened.tier.remote_end_offset,
        end_offset=opened.log.log_end_offset,
    )


async def fetch_once(opened: Opened, offset: int, bytes_max: int) -> bytes:
    """Whole batches from the one that holds `offset`, from the tier the router names."""
    match route_of(opened, offset):
        case Route.HOT:
            found = opened.log.read(offset, bytes_max, opened.log.log_end_offset, min_one=True)
            assert found is not None, f"routed to hot at {offset}, where nothing is"
            return found.file.read_at(found.position, found.length)
        case Route.COLD:
            for _ in range(1000):
                answer = opened.tier.read(offset, bytes_max, min_one=True)
                if isinstance(answer, ColdSlice):
                    return content(answer)
                async with asyncio.timeout(60):
                    await answer
            raise AssertionError(f"no cold answer at {offset}")
        case elsewhere:
            raise AssertionError(f"{offset} is readable, and goes {elsewhere}")


async def read_through(opened: Opened, start: int | None = None, *, bytes_max: int = 700) -> dict[int, bytes]:
    """Offset → value of every record from `start` (the log start) to the end, as a consumer polls, over the seam."""
    log_start = max(opened.log.log_start_offset, opened.tier.log_start_offset)
    offset = log_start if start is None else start
    found: dict[int, bytes] = {}
    while offset < opened.log.log_end_offset:
        data = await fetch_once(opened, offset, bytes_max)
        headers = [header for _, header in walk(data)]
        assert headers[0].base_offset <= offset < headers[0].next_offset, (offset, headers[0])
        found |= {at: value for at, value in records_in(data).items() if at >= offset}
        assert headers[-1].next_offset > offset, "an answer must bring its reader forward"
        offset = headers[-1].next_offset
    return found


class WatchedStore:
    """`inner`, calling `before(operation, argument)` before each request goes through; `after` when it was answered."""

    def __init__(
        self,
        inner: ObjectStore,
        before: Callable[[str, Any], None] | None = None,
        after: Callable[[str, Any], None] | None = None,
    ) -> None:
        self.inner = inner
        self.before = before or (lambda operation, argument: None)
        self.after = after or (lambda operation, argument: None)
        self.hangs: set[str] = set()  # operations that are never answered
        self.holds: dict[str, asyncio.Event] = {}  # operations that wait, after their effect, for an event

    def list(self, prefix: str) -> Any:
        self.before("list", prefix)
        return self._hang_listing() if "list" in self.hangs else self.inner.list(prefix)

    async def _hang_listing(self) -> Any:
        await asyncio.Event().wait()
        yield None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("get", "get_if_changed", "head", "put_segment", "put_root", "delete"):
            return found

        async def call(argument: Any, *more: Any) -> Any:
            self.before(name, argument)
            if name in self.hangs:
                async with asyncio.timeout(100_000):
                    await asyncio.Event().wait()
            answer = await found(argument, *more)
            if name in self.holds:
                await self.holds[name].wait()
            self.after(name, argument)
            return answer

        return call
