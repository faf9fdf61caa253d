"""The rest of an answer is dropped when the broker's session ended while it was taken (D66)."""

from __future__ import annotations

import asyncio

from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import key_of
from broker.replication.fetcher import Fetcher
from broker.replication.follower import FetchPosition
from broker.replication.replication_quota import ReplicationQuota, ThrottledReplicas
from broker.wire.messages import FetchResponsePartition
from tests.unit.broker.replication.test_fetcher import LIMITS, TOPIC, Copied, Leader


class Stamped(Copied):
    """Notes the session as `FollowerReplica.answered` does: the one that there is when it is answered."""

    def __init__(self, asked_in: dict[str, int], now: dict[str, int], wrong: list[tuple[int, int]]) -> None:
        super().__init__()
        self.asked_in, self.now, self.wrong = asked_in, now, wrong

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        if self.asked_in["epoch"] != self.now["epoch"]:
            self.wrong.append((self.asked_in["epoch"], self.now["epoch"]))
        return super().answered(asked, answer, broker_epoch)


async def test_what_was_said_to_the_session_before_is_not_taken_as_said_to_this_one() -> None:
    now, asked_in, wrong = {"epoch": 50}, {"epoch": 50}, list[tuple[int, int]]()
    leader = Leader()

    async def ask(request):  # type: ignore[no-untyped-def]
        asked_in["epoch"] = request.replica_state.replica_epoch
        answer = await leader(request)
        if request.replica_state.replica_epoch == 50 and len(leader.questions) == 1:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, now.__setitem__, "epoch", 51)  # an image comes
        return answer

    throttled = ThrottledReplicas(ReplicationQuota(), lambda _: False)
    lane = FetchLane(lambda _: False, {}, is_behind=False)
    fetcher = Fetcher(1, ask, lambda: (2, now["epoch"], ""), LIMITS, throttled, lane)
    for index in range(2500):
        fetcher.follow(key_of(TOPIC, index), Stamped(asked_in, now, wrong))
    keeping = asyncio.ensure_future(fetcher.run())
    await asyncio.sleep(1.0)
    keeping.cancel()
    assert now["epoch"] == 51
    assert not wrong, f"{len(wrong)} partitions took what was said to session 50 as said to 51"
