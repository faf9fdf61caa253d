"""Silences that are turned into commits, of the one who keeps who is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import NO_LEASE, NOT_READ, AnsweredAt, SessionHeartbeat, SessionRequest
from broker.controller.cluster_control import ClusterControl
from broker.controller.decisions.fitness import FIT
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord, Node
from seams.loop.beats import Beats
from tests.support.brokers.cluster_kit import session
from tests.support.fast_loop import FastClock

TIMES = ClusterTimes(interval_s=1.0, lease_s=5.0)


class Decides:
    """When something was decided."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.at_s: list[float] = []

    def activate(self, is_disputed: Callable[[], bool]) -> None: ...

    async def decide(self, change: Callable[[ClusterImage], Any], rows: int = 0) -> Any:
        self.at_s.append(asyncio.get_running_loop().time())
        return change(self.image).answer


class DecidesLate(Decides):
    """Each change waits `waits_s` for those before it, and its commit takes `takes_s`; `made` are the records."""

    def __init__(self, image: ClusterImage, *, waits_s: float = 0.0, takes_s: float = 0.0) -> None:
        super().__init__(image)
        self.epoch = 1
        self.waits_s, self.takes_s = waits_s, takes_s
        self.made: list[MetadataRecord] = []

    async def decide(self, change: Callable[[ClusterImage], Any], rows: int = 0) -> Any:
        await asyncio.sleep(self.waits_s)
        decision = change(self.image)
        await asyncio.sleep(self.takes_s)
        self.made += decision.records
        self.at_s.append(asyncio.get_running_loop().time())
        return decision.answer


class Kept:
    """The attendance of broker 1, the controller, which beats its lease; broker 2 has a session."""

    def __init__(self, *, waits_s: float = 0.0, takes_s: float = 0.0) -> None:
        self.clock = FastClock()
        self.image = ClusterImage().with_records([session(node_id=n, broker_epoch=n) for n in (1, 2)])
        self.commit_queue: Any = DecidesLate(self.image, waits_s=waits_s, takes_s=takes_s)

        async def refuses(node: Node) -> bool:
            return False

        world: Any = SimpleNamespace(clock=self.clock, beats=Beats())
        root: Any = SimpleNamespace(encoded=None)
        self.cluster_control = ClusterControl(
            self.commit_queue, root, world, 1, "c", TIMES, refuses=refuses, step_back=lambda: None, bump=lambda: None
        )
        at = ImageAt(2, self.image, ControllerAt(1, "ours", 1))
        self.cluster_control.begin(at, is_sure=False, claimed_s=self.clock.boottime_s())

    async def go(self, seconds: float) -> None:
        """Let time pass, with a bump of the lease each second."""
        until_s = self.clock.monotonic_s() + seconds
        while (left_s := until_s - self.clock.monotonic_s()) > 0:
            self.cluster_control.lease_bumped(1, self.clock.boottime_s())
            await asyncio.sleep(min(left_s, 0.5))

    async def heartbeat(self) -> ErrorCode:
        """Of broker 2, that knows nothing yet, so that it is answered at once."""
        try:
            await self.cluster_control.heartbeat(SessionHeartbeat(2, 2, 1, FIT))
        except ApiError as refused:
            return refused.code
        return ErrorCode.NONE


async def test_a_port_is_asked_while_the_store_is_away() -> None:
    """It is asked once, half a second after its connection closed. That was left out where the store was away just
    then: who was killed beside an outage had a session for all of its time."""
    clock, image = FastClock(), ClusterImage().with_records([session(node_id=n, broker_epoch=n) for n in (1, 2)])
    commit_queue: Any = Decides(image)

    async def refuses(node: Node) -> bool:
        return node.node_id == 2

    world: Any = SimpleNamespace(clock=clock, beats=Beats())
    root: Any = SimpleNamespace(encoded=None)
    cluster_control = ClusterControl(
        commit_queue, root, world, 1, "c", TIMES, refuses=refuses, step_back=lambda: None, bump=lambda: None
    )
    cluster_control.begin(ImageAt(2, image, ControllerAt(1, "ours", 1)), is_sure=False, claimed_s=clock.boottime_s())
    keeping = asyncio.ensure_future(cluster_control.keep())
    await asyncio.sleep(TIMES.away_s + 0.1)
    cluster_control.closed(2, 2)
    closed_s = clock.monotonic_s()
    await asyncio.sleep(TIMES.knock_s + 0.1)
    assert not commit_queue.at_s, "the store is away"
    cluster_control.lease_bumped(2, clock.boottime_s())
    await asyncio.sleep(0.1)
    keeping.cancel()
    assert commit_queue.at_s and commit_queue.at_s[0] - closed_s < TIMES.closed_s / 2, commit_queue.at_s


async def test_who_reads_a_copy_of_the_bucket_is_not_let_in() -> None:
    """Its lease stands where it stood when it was copied. Who has not seen it move is shown that it does."""
    clock, image = FastClock(), ClusterImage().with_records([session(node_id=1, broker_epoch=1)])
    commit_queue: Any = Decides(image)
    bumped: list[int] = []

    async def refuses(node: Node) -> bool:
        return False

    world: Any = SimpleNamespace(clock=clock, beats=Beats())
    root: Any = SimpleNamespace(encoded=None)
    cluster_control = ClusterControl(
        commit_queue,
        root,
        world,
        1,
        "c",
        TIMES,
        refuses=refuses,
        step_back=lambda: None,
        bump=lambda: bumped.append(1),
    )
    cluster_control.begin(ImageAt(2, image, ControllerAt(1, "ours", 1)), is_sure=False, claimed_s=clock.boottime_s())

    async def ask(counter: int, *, wants_bump: bool = False) -> ErrorCode:
        who = SessionRequest(2, "c", "0" * 32, "d2", "boot", (), lease_counter=counter, wants_bump=wants_bump)
        try:
            await cluster_control.register(who)
        except ApiError as refused:
            return refused.code
        return ErrorCode.NONE

    assert await ask(NO_LEASE) == ErrorCode.NONE, "right after a claim"
    cluster_control.lease_bumped(9, clock.boottime_s())
    assert [await ask(counter) for counter in (NO_LEASE, 6, 7, 10, NOT_READ)] == [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    decided = len(commit_queue.at_s)
    assert await ask(9, wants_bump=True) == ErrorCode.NOT_CONTROLLER and bumped == [1]
    assert len(commit_queue.at_s) == decided


async def test_who_is_heard_before_its_end_is_decided_keeps_its_session() -> None:
    """A bucket that takes a commit in seconds has the end of a session wait behind others. It was decided as it was
    asked: who came back meanwhile, and was answered that it is in session, lost all that it led."""
    place = Kept(waits_s=4.0)
    keeping = asyncio.ensure_future(place.cluster_control.keep())
    await place.go(TIMES.session_s + 1)
    assert not place.commit_queue.at_s
    assert await place.heartbeat() is ErrorCode.NONE
    await place.go(4.0)
    keeping.cancel()
    assert place.commit_queue.at_s and not place.commit_queue.made


async def test_who_is_heard_after_its_end_was_decided_is_not_told_that_it_is_in_session() -> None:
    """The commit is under way and lands at any time: a coordinator of groups rested on such an answer that nobody else
    can coordinate them, for a session from then on, and showed offsets of before (R25)."""
    place = Kept(takes_s=4.0)
    keeping = asyncio.ensure_future(place.cluster_control.keep())
    await place.go(TIMES.session_s + 1)
    assert not place.commit_queue.at_s, "under way"
    assert await place.heartbeat() is ErrorCode.STALE_BROKER_EPOCH
    await place.go(4.0)
    keeping.cancel()
    assert [record.active for record in place.commit_queue.made if isinstance(record, Node)] == [False]


async def test_a_process_that_is_heard_again_while_another_one_registers_as_its_node_stays() -> None:
    """Its connection was closed when the other one asked; the decision waits, and it is back by then."""
    place = Kept(waits_s=3.0)
    assert await place.heartbeat() is ErrorCode.NONE
    place.cluster_control.closed(2, 2)
    other = SessionRequest(2, "c", "0" * 32, "another", "boot", (), previous_broker_epoch=2)
    registering = asyncio.ensure_future(place.cluster_control.register(other))
    await place.go(1.0)
    assert await place.heartbeat() is ErrorCode.NONE
    with pytest.raises(ApiError) as refused:
        await registering
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION and not place.commit_queue.made


async def test_a_heartbeat_that_was_late_on_its_way_promises_no_more_than_it_said() -> None:
    """The promise ran from its arrival: another broker had claimed, and the controller answered as if none had."""
    kept = Kept()
    kept.cluster_control.lease_bumped(1, kept.clock.boottime_s())
    answer = await kept.cluster_control.heartbeat(SessionHeartbeat(2, 2, 1, FIT, no_claim_s=TIMES.lease_s))
    since = AnsweredAt(answer.controller_epoch, answer.boottime_ms)
    late = SessionHeartbeat(2, 2, 1, FIT, no_claim_s=TIMES.lease_s, since=since)
    await asyncio.sleep(TIMES.lease_s - 0.1)  # on its way; its sender looked at the lease last as it left
    answer = await kept.cluster_control.heartbeat(late)
    assert not kept.cluster_control.is_disputed
    await asyncio.sleep(0.2)
    assert kept.cluster_control.is_disputed, "the sender may have claimed"
    again = replace(late, since=AnsweredAt(answer.controller_epoch, answer.boottime_ms))
    answer = await kept.cluster_control.heartbeat(again)
    assert not kept.cluster_control.is_disputed, "it claims nothing yet"
