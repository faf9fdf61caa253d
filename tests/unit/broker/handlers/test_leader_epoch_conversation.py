"""Readers that name leader epochs get the same answers as from Apache Kafka 4.3.1.

`tests/golden/epochs_kafka_4_3_1.json` holds Kafka's (recorded with `python -m
tests.support.conversations.record_epochs` against the peer, which was started anew between two terms). Each answer here
went through the codec of its version.
"""

from __future__ import annotations

import json
from typing import Any

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from tests.support.brokers.broker_kit import Place
from tests.support.conversations.epoch_conversation import EpochTalk, leader_epochs
from tests.support.conversations.our_broker import OurBroker
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.repository import GOLDEN as GOLDEN_FILES

GOLDEN = json.loads((GOLDEN_FILES / "epochs_kafka_4_3_1.json").read_text())


def test_epochs_are_answered_as_kafka_does() -> None:
    """Fetch with a last fetched epoch and OffsetForLeaderEpoch: of epochs that are older, latest, led without a record,
    replaced by a later one at the same offset, deleted, never heard of; as of older, equal and newer leader epochs."""

    async def scenario() -> list[Any]:
        broker = await OurBroker.start()
        talk = EpochTalk(broker)
        await leader_epochs(talk)
        await broker.stop()
        return talk.log

    ours = json.loads(json.dumps(run_fast(scenario(), timeout_s=HOUR_S)))
    theirs = GOLDEN["leader epochs"]
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    different = [f"{label}: {a} instead of {b}" for (label, a), (_, b) in zip(ours, theirs, strict=True) if a != b]
    assert not different, "\n".join(different)


def test_the_end_of_the_latest_epoch_is_the_logs_end_before_it_is_flushed() -> None:
    """A reader that compares its place with the high watermark would take one that came back lower for a truncation."""

    async def scenario() -> tuple[int, int, int]:
        life = await Place().start()
        await life.create("e")
        await life.produce("e", b"1", b"2", acks=1)
        partition = life.context.registry.partitions["e", 0]
        wanted = m.OffsetForLeaderEpochRequestPartition(leader_epoch=partition.leader_epoch)
        request = m.OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[m.OffsetForLeaderEpochRequestTopic(topic="e", partitions=[wanted])]
        )
        answer: Any = await life.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        found = partition.high_watermark, answer.topics[0].partitions[0].end_offset
        await life.stop()
        return *found, partition.log.flushed_end_offset

    assert run_fast(scenario(), timeout_s=HOUR_S) == (0, 2, 2)
