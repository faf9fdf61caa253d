"""Silences that are turned into commits, of the one who keeps who is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker.config.times import ClusterTimes
from broker.controller.attendance import Attendance
from broker.controller.brokers import NO_LEASE, NOT_READ, RegistrationAsked
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node
from seams.beats import Beats
from tests.support.cluster_kit import session
from tests.support.fast_loop import FastClock, run_fast

TIMES = ClusterTimes(interval_s=1.0, lease_s=5.0)


class Decides:
    """When something was decided."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.at_s: list[float] = []

    def take_office(self) -> None: ...

    async def decide(self, change: Callable[[ClusterImage], Any]) -> Any:
        self.at_s.append(asyncio.get_running_loop().time())
        return change(self.image).answer


def test_a_port_is_asked_while_the_store_is_away() -> None:
    """It is asked once, half a second after its connection closed. That was left out where the store was away just
    then: who was killed beside an outage had a session for all of its time."""

    async def scenario() -> None:
        clock, image = FastClock(), ClusterImage().with_records([session(node_id=n, broker_epoch=n) for n in (1, 2)])
        office: Any = Decides(image)

        async def refuses(node: Node) -> bool:
            return node.node_id == 2

        world: Any = SimpleNamespace(clock=clock, beats=Beats())
        root: Any = SimpleNamespace(encoded=None)
        attendance = Attendance(
            office, root, world, 1, "c", TIMES, refuses=refuses, step_back=lambda: None, bump=lambda: None
        )
        attendance.begin(ImageAt(2, image, ControllerAt(1, "ours", 1)), is_sure=False, claimed_s=clock.boottime_s())
        keeping = asyncio.ensure_future(attendance.keep())
        await asyncio.sleep(TIMES.away_s + 0.1)
        attendance.closed(2, 2)
        closed_s = clock.monotonic_s()
        await asyncio.sleep(TIMES.knock_s + 0.1)
        assert not office.at_s, "the store is away"
        attendance.beaten(2, clock.boottime_s())
        await asyncio.sleep(0.1)
        keeping.cancel()
        assert office.at_s and office.at_s[0] - closed_s < TIMES.closed_s / 2, office.at_s

    run_fast(scenario())


def test_who_reads_a_copy_of_the_bucket_is_not_let_in() -> None:
    """Its lease stands where it stood when it was copied. Who has not seen it move is shown that it does."""

    async def scenario() -> None:
        clock, image = FastClock(), ClusterImage().with_records([session(node_id=1, broker_epoch=1)])
        office: Any = Decides(image)
        bumped: list[int] = []

        async def refuses(node: Node) -> bool:
            return False

        world: Any = SimpleNamespace(clock=clock, beats=Beats())
        root: Any = SimpleNamespace(encoded=None)
        attendance = Attendance(
            office, root, world, 1, "c", TIMES, refuses=refuses, step_back=lambda: None, bump=lambda: bumped.append(1)
        )
        attendance.begin(ImageAt(2, image, ControllerAt(1, "ours", 1)), is_sure=False, claimed_s=clock.boottime_s())

        async def ask(counter: int, *, wants_bump: bool = False) -> ErrorCode:
            who = RegistrationAsked(2, "c", "0" * 32, "d2", "boot", (), lease_counter=counter, wants_bump=wants_bump)
            try:
                await attendance.register(who)
            except ApiError as refused:
                return refused.code
            return ErrorCode.NONE

        assert await ask(NO_LEASE) == ErrorCode.NONE, "right after a claim"
        attendance.beaten(9, clock.boottime_s())
        assert [await ask(counter) for counter in (NO_LEASE, 6, 7, 10, NOT_READ)] == [
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.NONE,
        ]
        decided = len(office.at_s)
        assert await ask(9, wants_bump=True) == ErrorCode.NOT_CONTROLLER and bumped == [1]
        assert len(office.at_s) == decided

    run_fast(scenario())
