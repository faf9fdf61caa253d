"""Groups' state on disk and in the bucket, of a whole broker: what a load meets there."""

from __future__ import annotations

import asyncio

from broker.error_codes import ErrorCode as E
from broker.groups.commits import CommitRow
from broker.groups.events import AdmitCommit
from broker.groups.topic import OFFSETS_TOPIC
from broker.internal_topics.shard_life import ShardState
from broker.internal_topics.watcher import InternalTopicWatcher
from logformat.record_batch import LENGTH_AT
from tests.support.broker_kit import Life, Place, play


async def commit(life: Life, offset: int, metadata: str = "") -> E:
    rows = [CommitRow("log", 0, offset, -1, metadata)]
    (code,) = await life.context.groups.commit_offsets("g", AdmitCommit(None), rows)
    return code


async def committed(life: Life) -> int | E:
    error, topics = await life.context.groups.fetch_offsets("g", None)
    return error if error is not E.NONE else topics[0].partitions[0][1].offset


async def with_commits(place: Place, count: int = 3) -> Life:
    life = await place.start()
    await life.create("log")
    assert await life.context.groups.find("g") is E.NONE
    for number in range(count):
        assert await commit(life, number) is E.NONE
    return life


def test_a_length_that_rotted_keeps_its_partition_off_and_no_load_running() -> None:
    """A batch that claims more bytes than the log has was read again and again, ever larger, and nobody was told: its
    groups were told for ever that they are being loaded."""

    async def scenario() -> None:
        place = Place("offsets.topic.num.partitions=1", "thermocline.offsets.snapshot.interval.ms=3600000")
        life = await with_commits(place)
        await life.crash()
        path = f"/data/a/{OFFSETS_TOPIC}-0/{0:020}.log"
        life = await place.start()
        await life.context.groups.log.wait_loaded()
        assert await committed(life) == 2
        # As a bit flip in the page cache, or on a disk, of a log that is open already.
        life.context.groups.log.resign(0)
        place.disk.flip_bit(path, LENGTH_AT + 1, 6)
        partition = life.partition(OFFSETS_TOPIC)
        partition.leader_epoch += 1
        InternalTopicWatcher(life.context.groups.log, life.clock, life.workers).led(partition)
        async with asyncio.timeout(60):
            await life.context.groups.log.wait_loaded()
        assert life.context.groups.log.state_of(0) is ShardState.FAILED
        assert await commit(life, 9) is E.COORDINATOR_NOT_AVAILABLE
        place.disk.flip_bit(path, LENGTH_AT + 1, 6)
        await asyncio.sleep(60)
        assert await committed(life) == 2
        await life.crash()

    play(scenario())
