"""Group offsets of a transaction that come back with a snapshot, after the disk that had the rest is lost: the log
knows of no open transaction, its marker may be lost, and no coordinator may know of it (TX12; simulated seed 22)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.groups.machine.events import AdmitCommit
from broker.groups.offset_requests import CommitRow
from broker.groups.offsets import UNSTABLE, Wanted
from broker.internal_topics.batches import Producer
from broker.transactions.interfaces import Decision
from broker.transactions.open_ended import OpenEnded
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import Life, Place
from tests.unit.broker.transactions.test_open_ended import TIMEOUT_MS, FakeOutcomes, _Idle

_TOPIC = "__consumer_offsets"


def keeper(life: Life, outcomes: FakeOutcomes) -> OpenEnded:
    context = life.context
    return OpenEnded(context.registry.partitions, outcomes, life.clock, lambda: TIMEOUT_MS, context.groups.undecided)


async def put(life: Life, offset: int, producer: Producer) -> ErrorCode:
    """A TxnOffsetCommit of the group g, verified."""
    groups = life.context.groups

    async def verified() -> ErrorCode:
        return ErrorCode.NONE

    row = CommitRow("t", 0, offset, -1, "", groups.topic_id("t"))
    (code,) = await groups.offsets.commit_in_transaction(
        "g", AdmitCommit(None), [row], producer, verified, until_s=groups.deadline()
    )
    return code


async def stable(life: Life) -> int | ErrorCode:
    _, rows = await life.context.groups.offsets.fetch("g", [Wanted("t", [0])], require_stable=True)
    value = rows[0].partitions[0][1]
    return ErrorCode.UNSTABLE_OFFSET_COMMIT if value is UNSTABLE else value.offset


async def restored(monkeypatch: pytest.MonkeyPatch) -> Life:
    """A broker whose disk was lost. Producer 7 had committed offset 5 in a transaction, which was open then."""
    monkeypatch.setattr("broker.start.OpenEnded", _Idle)
    place = Place()
    life = await place.start(directory="a")
    await life.create("t")
    assert await life.context.groups.find("g") is ErrorCode.NONE
    assert await put(life, 5, Producer(7, 3)) is ErrorCode.NONE
    await asyncio.sleep(120)  # a snapshot
    await life.crash()
    await asyncio.sleep(60)
    life = await place.start(directory="b", take_over=True)
    assert await life.context.groups.find("g") is ErrorCode.NONE
    await life.context.groups.log.wait_loaded()
    assert await stable(life) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    index = life.context.groups.partition_of("g")
    assert not life.partition(_TOPIC, index).log.producers.transactions.first_offsets
    return life


@pytest.mark.parametrize(
    ("decision", "offset"), [(Decision.COMMITTED, 5), (Decision.ABORTED, -1), (Decision.UNKNOWN, -1)]
)
async def test_restored_offsets_end_as_coordinators_say(
    monkeypatch: pytest.MonkeyPatch, decision: Decision, offset: int
) -> None:
    life = await restored(monkeypatch)
    outcomes = FakeOutcomes({7: None})
    ended = keeper(life, outcomes)
    await ended.round()
    assert outcomes.asked == [(7, 3)]
    assert await stable(life) is ErrorCode.UNSTABLE_OFFSET_COMMIT, "while a coordinator is not to be had it stands"
    outcomes.of[7] = decision
    await asyncio.sleep(100)
    await ended.round()
    await asyncio.sleep(30)  # its marker is committed
    assert await stable(life) == offset
    assert not life.context.groups.undecided(_TOPIC, life.context.groups.partition_of("g"))
    await ended.round()
    assert len(outcomes.asked) == 2, "there is nothing to ask any more"


async def test_restored_offsets_of_a_producer_that_goes_on_are_left_to_its_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its next offset is in the log: the log has a transaction of it open."""
    life = await restored(monkeypatch)
    life.partition(_TOPIC, life.context.groups.partition_of("g")).awaits_coordinators = False
    assert await put(life, 6, Producer(7, 3)) is ErrorCode.NONE
    outcomes = FakeOutcomes({7: Decision.ABORTED})
    await keeper(life, outcomes).round()
    assert not outcomes.asked
    assert await stable(life) is ErrorCode.UNSTABLE_OFFSET_COMMIT


async def test_an_answer_after_the_role_leaves_the_next_role_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the answer about a restored transaction came when the partition led in the next epoch. It allowed
    transactions there before the ongoing ones were aborted (TX32)."""
    life = await restored(monkeypatch)
    partition = life.partition(_TOPIC, life.context.groups.partition_of("g"))
    epoch = partition.leader_epoch
    assert partition.awaits_coordinators

    class Slow(FakeOutcomes):
        async def decide(self, *_: Any, **__: Any) -> Decision | None:
            if partition.leader_epoch == epoch:
                partition.leader_epoch += 1
                partition.awaits_coordinators = True  # as the opening in the new epoch sets it
            return Decision.ABORTED

    await keeper(life, Slow()).round()
    assert partition.awaits_coordinators


def marked(index: int, producer_epoch: int, version: int) -> wire.WriteTxnMarkersRequest:
    """A commit of producer 7 in a partition of `__consumer_offsets`, by a coordinator."""
    return wire.WriteTxnMarkersRequest(
        markers=[
            wire.WriteTxnMarkersRequestMarker(
                producer_id=7,
                producer_epoch=producer_epoch,
                transaction_result=True,
                topics=[wire.WriteTxnMarkersRequestTopic(name=_TOPIC, partition_indexes=[index])],
                coordinator_epoch=5,
                transaction_version=version,
            )
        ]
    )


@pytest.mark.parametrize(
    ("epoch", "version", "offset"),
    [(3, 2, ErrorCode.UNSTABLE_OFFSET_COMMIT), (4, 2, 5), (3, 0, 5)],
    ids=["the transaction before", "this transaction", "this one in version 0"],
)
async def test_a_repeated_commit_leaves_the_next_transactions_restored_offsets(
    monkeypatch: pytest.MonkeyPatch, epoch: int, version: int, offset: int | ErrorCode
) -> None:
    """Regression, seed 102 of three simulated brokers: `__transaction_state` lost all its disks. A commit of its older
    state was repeated. In version 2 its marker has the epoch of the next transaction, whose restored offsets it
    committed."""
    life = await restored(monkeypatch)
    request = marked(life.context.groups.partition_of("g"), epoch, version)
    answer = await life.call(ApiKey.WRITE_TXN_MARKERS, request)
    is_refused = offset is ErrorCode.UNSTABLE_OFFSET_COMMIT
    code = ErrorCode.NOT_ENOUGH_REPLICAS if is_refused else ErrorCode.NONE
    assert answer.markers[0].topics[0].partitions[0].error_code == code
    await asyncio.sleep(30)
    assert await stable(life) == offset
    if is_refused:  # the coordinators know only the transaction before
        await keeper(life, FakeOutcomes({7: Decision.UNKNOWN})).round()
        answer = await life.call(ApiKey.WRITE_TXN_MARKERS, request)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        await asyncio.sleep(30)
        assert await stable(life) == -1
