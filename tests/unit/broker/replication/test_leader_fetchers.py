"""Two lanes to one leader: who goes where, and that its leader hears of one position at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.partition.following.fetcher_manager import LeaderFetchers
from broker.replication.fetch_lane import EASY_BYTES, FetchLane
from broker.replication.fetch_session_handler import Key, Limits, key_of
from broker.replication.fetcher import Fetcher
from broker.replication.replication_quota import ReplicationQuota, ThrottledReplicas
from broker.wire.messages import (
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.scenario import by
from tests.unit.broker.replication.test_fetcher import TOPIC, Copied, forgotten, named

NEAR, FAR = (key_of(TOPIC, index) for index in range(2))
LIMITS = Limits(wait_ms=500, bytes_max=8 << 20, partition_bytes_max=1 << 20)
COMMITTED = 200


class Leader:
    """Holds 200 committed records of each partition; a record of `FAR` is as long as an answer. One session a lane."""

    def __init__(self) -> None:
        self.held: list[dict[Key, int]] = [{}, {}]
        self.under_way: list[set[Key]] = [set(), set()]
        self.asked: list[list[FetchRequest]] = [[], []]
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def lane(self, number: int) -> Callable[[FetchRequest], Awaitable[FetchResponse]]:
        async def ask(request: FetchRequest) -> FetchResponse:
            held = self.held[number]
            self.asked[number].append(request)
            if request.session_epoch == 0:
                held.clear()
            held |= {key_of(TOPIC, index): offset for index, offset in named(request).items()}
            for index in forgotten(request):
                held.pop(key_of(TOPIC, index), None)
            self.under_way[number] = set(held)
            assert self.under_way[0].isdisjoint(self.under_way[1]), "it is told two positions of one replica"
            await asyncio.sleep(0.001)
            await self.goes_on.wait()
            self.under_way[number] = set()
            moved = {key: offset for key, offset in held.items() if offset < COMMITTED}
            if not moved:
                await asyncio.sleep(request.max_wait_ms / 1000)
            parts = [
                FetchResponsePartition(
                    partition_index=key[1],
                    high_watermark=COMMITTED,
                    records=memoryview(bytes(EASY_BYTES if key == FAR else 100)),
                )
                for key in moved
            ]
            return FetchResponse(
                session_id=4 + number, responses=[FetchResponseTopic(topic_id=TOPIC, partitions=parts)]
            )

        return ask


def copying(scenario: Callable[[Leader, LeaderFetchers, set[Key]], Awaitable[None]]) -> None:
    async def run() -> None:
        leader, in_sync, lanes = Leader(), {NEAR}, iter(range(2))

        def fetcher(lane: FetchLane) -> Fetcher:
            throttled = ThrottledReplicas(ReplicationQuota(), in_sync.__contains__)
            return Fetcher(1, leader.lane(next(lanes)), lambda: (2, 50, ""), LIMITS, throttled, lane)

        copies = LeaderFetchers(fetcher, in_sync.__contains__, {})
        keeping = [asyncio.ensure_future(fetcher.run()) for fetcher in copies.both]
        async with asyncio.timeout(60):
            await scenario(leader, copies, in_sync)
        assert not any(one.done() for one in keeping)
        for one in keeping:
            one.cancel()

    run_fast(run(), timeout_s=HOUR_S)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.0005)


@by(copying)
async def test_who_is_behind_is_asked_for_apart_and_joins_the_others_when_in_sync(
    leader: Leader, copies: LeaderFetchers, in_sync: set[Key], /
) -> None:
    near, far = Copied(), Copied()
    copies.follow(NEAR, near)
    copies.follow(FAR, far)
    await until(lambda: copies.behind.has(FAR))
    assert far.offset == 1 and copies.keeping_up.has(NEAR)
    await until(lambda: far.offset == 20)
    assert near.offset > 25, "it waits for no pause"
    assert copies.behind.has(FAR) and not copies.keeping_up.has(FAR)
    in_sync.add(FAR)
    await until(lambda: copies.keeping_up.has(FAR))
    assert not copies.behind.has(FAR)
    await until(lambda: far.offset == near.offset == COMMITTED)
    assert leader.asked[1][0].topics[0].partitions[0].fetch_offset == 1, "nothing is asked for twice"


@by(copying)
async def test_a_role_that_begins_again_waits_for_the_question_that_is_under_way(
    leader: Leader, copies: LeaderFetchers, in_sync: set[Key], /
) -> None:
    """The leader looks at that position again whenever the log moves: told after a newer one, it counted what a log
    that was opened anew does not have any more."""
    copies.follow(FAR, far := Copied())
    await until(lambda: copies.behind.has(FAR))
    leader.goes_on.clear()
    await until(lambda: copies.behind.is_asking(FAR))
    copies.leave(FAR, far)
    copies.follow(FAR, Copied())
    assert copies.behind.has(FAR) and not copies.keeping_up.has(FAR)
    copies.leave(FAR, far)  # of before: it is another copy
    assert copies.behind.has(FAR)
    leader.goes_on.set()
    in_sync.add(FAR)
    await until(lambda: copies.keeping_up.has(FAR))


@by(copying)
async def test_a_throttled_replica_is_so_in_either_lane(
    leader: Leader, copies: LeaderFetchers, in_sync: set[Key], /
) -> None:
    copies.follow(FAR, Copied(), is_throttled=True)
    await until(lambda: copies.behind.has(FAR))
    assert copies.behind.is_throttled(FAR) and not copies.keeping_up.is_throttled(FAR)
    copies.throttle(FAR, is_throttled=False)
    assert not copies.behind.is_throttled(FAR)
