"""A log that is still being made when its topic is deleted takes nothing of the topic that has the name by then."""

from __future__ import annotations

import asyncio

from broker.metadata.records import Row, TopicCreated, TopicDeleted
from hotstore.host.data_dir import DataDir
from logformat.values import TopicPartition
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, until
from tests.unit.broker.partition.late_work.test_late_threads import slow

AGAIN = id_of(78)


async def test_a_log_of_a_deleted_topic_that_is_being_made_leaves_the_next_topic_s_copy_where_it_is() -> None:
    """Its thread cleared the place it was to be made in: the directory of an open, in-sync copy. Five more acks=all
    were given, and a restart found nothing."""
    pair = Pair()
    await pair.start(1)
    await pair.start(2)
    began = slow(pair.lives[1], "_make")
    pair.note(TopicCreated(TOPIC_ID, NAME, (Row((2, 1), 2, 0, 0, (2, 1), 0),), {}))
    pair.publish()
    await until(lambda: bool(began), "it is being made")
    pair.note(TopicDeleted(TOPIC_ID))
    pair.publish()
    pair.note(TopicCreated(AGAIN, NAME, (Row((2, 1), 2, 0, 0, (2, 1), 0),), {}))
    pair.publish()
    await until(lambda: (NAME, 0) in pair.lives[2].context.registry.partitions, "2 leads")
    producing = [asyncio.ensure_future(pair.lives[2].produce(NAME, b"acked")) for _ in range(10)]
    await asyncio.sleep(25.0)
    acked = [(await one).error_code for one in producing].count(0)
    assert acked == 10 or acked == 0, "all of them, or the copy waited too long for its place"
    for _ in range(5):
        assert (await pair.lives[2].produce(NAME, b"acked too")).error_code == 0
    assert pair.bytes_of(1) == pair.bytes_of(2)
    await pair.lives[1].crash()
    pair.places[1].kill()
    directory = DataDir.open(pair.places[1].disk, "/data/a")
    assert TopicPartition(NAME, 0) in directory.partitions()
    await pair.lives[2].stop()
