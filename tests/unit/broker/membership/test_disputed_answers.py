"""A controller that is cut off, and replaced, answers nothing from its own image, though no commit shows it that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.controller.controller_requests import ControllerRequests
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from tests.sim.world.links import both_ways
from tests.support.brokers.house import QUICK_LEASE, house
from tests.support.waiting import until

Question = Callable[[ControllerRequests], Awaitable[Any]]


@pytest.mark.parametrize(
    "question",
    [
        lambda asked: asked.moves(),
        lambda asked: asked.create_topic("new", 1, {}, validate_only=True),
        lambda asked: asked.create_topic("log", 1, {}),  # which is there, as its image says
    ],
    ids=["moves", "validation", "refusal"],
)
async def test_what_needs_no_commit_is_answered_by_whoever_decides(question: Question) -> None:
    async with house(1, *QUICK_LEASE) as it:
        await asyncio.sleep(8)
        it.stores[1].down = True
        it.place.net.links.cut(both_ways([("1", "2"), ("1", "3")]))
        await until(lambda: it.session(2).is_controller or it.session(3).is_controller, 60)
        assert it.session(1).is_controller, "as it believes"
        with pytest.raises(ApiError) as refused:
            await question(it.lives[1].context.controller)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_what_needs_no_commit_is_answered_while_the_bucket_is_away_from_everybody() -> None:
    """The others say that they claim nothing, so the image is the newest."""
    async with house(1, *QUICK_LEASE) as it:
        await asyncio.sleep(8)
        for store in it.stores.values():
            store.down = True
        await asyncio.sleep(60)
        assert await it.lives[1].context.controller.moves() == []
