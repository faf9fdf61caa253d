"""A copy that begins elsewhere, while the bucket is away or its leader moves on (D35; R3, R26)."""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.replication.follower import FetchPosition
from broker.wire.messages import FetchResponsePartition
from coldstore.object_store import ObjectMissing, StoreUnavailable
from logformat.errors import ThermoclineError
from logformat.leader_epochs import LeaderEpochs
from tests.support.scenario import by
from tests.unit.broker.partition.following.test_follower_replica import EPOCH, Cold, Copy, copying
from tiering.opening.cold_start import ColdStart


class Moody(Cold):
    """Says what is in `moods`, once each, before it answers."""

    def __init__(self, *moods: ThermoclineError) -> None:
        self.moods = list(moods)
        self.asked: list[int] = []

    async def state_at(self, topic_id: UUID, index: int, offset: int, since: int) -> ColdStart:
        self.asked.append(offset)
        if self.moods:
            raise self.moods.pop(0)
        return ColdStart(LeaderEpochs().assign(2, 0), ())


def moved_to(verified_end: int) -> FetchResponsePartition:
    answer = FetchResponsePartition(error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=0)
    answer.verified_end = verified_end
    return answer


@by(copying)
async def test_cluster_d35_a_copy_that_is_sent_on_reads_the_root_anew(copy: Copy, /) -> None:
    """Its leader dropped more while it began: it begins again, further on, by what the bucket says then."""
    cold = copy.it._truncation._cold = Moody()
    for end in (500, 900):
        assert copy.it.refused(copy.asked(), moved_to(end)) and copy.it.next_fetch() is None
        await asyncio.sleep(0.1)
        assert copy.asked() == FetchPosition(end, 2, EPOCH, copies_on=True)
    assert cold.asked == [500, 900] and not copy.it.failure


@by(copying)
async def test_cluster_d35_a_bucket_that_is_away_ends_no_copying(copy: Copy, /) -> None:
    """It could not be asked, or the object went with an expiry meanwhile: the copy stays as it is, and begins when its
    leader is asked again. It was given up until the next leader epoch."""
    cold = copy.it._truncation._cold = Moody(StoreUnavailable("503"), ObjectMissing("expired"))
    for _ in range(2):
        assert copy.it.refused(copy.asked(), moved_to(500))
        await asyncio.sleep(0.01)
        assert copy.it.next_fetch() is None, "not at once: the store is away"
        await asyncio.sleep(10.0)
        assert not copy.it.failure and copy.asked() == FetchPosition(0, -1, EPOCH)
    assert copy.it.refused(copy.asked(), moved_to(500))
    await asyncio.sleep(0.1)
    assert copy.asked() == FetchPosition(500, 2, EPOCH, copies_on=True) and cold.asked == [500, 500, 500]


@by(copying)
async def test_a_copy_that_ends_while_it_waits_for_the_bucket_ends_at_once(copy: Copy, /) -> None:
    """The next role of the log does not wait for it."""
    copy.it._truncation._cold = Moody(StoreUnavailable("503"))
    assert copy.it.refused(copy.asked(), moved_to(500))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(0.1):
        await copy.it.over()
