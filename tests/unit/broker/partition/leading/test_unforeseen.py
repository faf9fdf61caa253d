"""An attempt to lead that fails in an unforeseen way is tried again."""

from __future__ import annotations

from typing import Any

from tests.support.brokers.shared_bucket import Pair, until


async def test_an_attempt_that_fails_in_an_unforeseen_way_is_tried_again() -> None:
    """Its lease was not ended: every later attempt was refused the log, for as long as the epoch lasted."""
    pair = Pair()
    await pair.start(1)
    tiers: Any = pair.lives[1].tiers
    attach, calls = tiers.attach, []

    async def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError
        return await attach(*args)

    tiers.attach = failing
    pair.create((1,))
    pair.publish()
    await until(lambda: pair.leads(1), "it leads")
    await pair.stop()
