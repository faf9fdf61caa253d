"""Transactions at one broker: verified, appended, ended, read hot, cold and across the seam; over a restart."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from broker.context import Call
from broker.error_codes import ErrorCode
from broker.handlers.fetch.list_offsets import LATEST
from broker.handlers.transactions.markers import handle_write_txn_markers
from broker.net.dispatch import Peer
from broker.replication.leader import Leader
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from coldstore.inspection.bucket_inspection import BucketInspector
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, fetch_request, parts_of
from tests.support.brokers.transaction_kit import (
    end,
    produce_in,
    read_committed,
    shown,
    with_transactions,
)
from tests.support.workers import LoopWorkers


async def served(**configs: str) -> tuple[Place, Life]:
    place = Place()
    life = await place.start()
    with_transactions(life)
    await life.create("log", **configs)
    return place, life


async def latest(life: Life, isolation: int) -> int:
    asked = wire.ListOffsetsRequestPartition(partition_index=0, timestamp=LATEST)
    request = wire.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[wire.ListOffsetsRequestTopic(name="log", partitions=[asked])],
    )
    response = await life.call(ApiKey.LIST_OFFSETS, request)
    offset: int = response.topics[0].partitions[0].offset
    return offset


async def test_while_there_is_no_coordinator_nothing_is_appended() -> None:
    """Clients repeat the produce after this error."""
    life = await Place().start()
    await life.create("log")
    answer = await produce_in(life, "log", 7, 0, b"a")
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS and life.partition("log").log.log_end_offset == 0


async def test_committed_readers_see_what_was_committed() -> None:
    """read_committed ends at the last stable offset and is told what was aborted; ListOffsets says the same end."""
    _, life = await served()
    assert (await produce_in(life, "log", 7, 0, b"a")).base_offset == 0
    assert (await produce_in(life, "log", 8, 0, b"b")).base_offset == 1
    await life.produce("log", b"plain")
    assert await latest(life, 0) == 3 and await latest(life, 1) == 0
    seen = await read_committed(life, "log")
    assert (seen.values, seen.last_stable_offset, seen.aborted) == ([], 0, [])
    assert await end(life, "log", 7, commit=False) == ErrorCode.NONE
    seen = await read_committed(life, "log")
    assert (seen.values, seen.last_stable_offset, seen.aborted) == ([], 1, [(7, 0)])
    assert await end(life, "log", 8, commit=True) == ErrorCode.NONE
    seen = await read_committed(life, "log")
    assert (seen.values, seen.last_stable_offset, seen.aborted) == ([b"b", b"plain"], 5, [(7, 0)])
    assert await latest(life, 1) == 5
    all_seen = await life.fetch("log", 0)
    assert all_seen.aborted_transactions is None and all_seen.last_stable_offset == 5


@pytest.mark.parametrize("version", [4, 11, 12, 18])
async def test_every_fetch_version_has_the_aborted_list(version: int) -> None:
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a")
    await end(life, "log", 7, commit=False)
    request = fetch_request(("log", 0, 0), isolation_level=1)
    if version >= 13:
        request.topics[0].topic, request.topics[0].topic_id = "", life.partition("log").topic_id
    part = (await life.call(ApiKey.FETCH, request, version)).responses[0].partitions[0]
    assert [(of.producer_id, of.first_offset) for of in part.aborted_transactions] == [(7, 0)]
    assert part.last_stable_offset == 2 and shown(part) == []


async def test_a_waiting_fetch_wakes_when_the_last_stable_offset_moves() -> None:
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a")
    waiting = asyncio.ensure_future(
        life.call(ApiKey.FETCH, fetch_request(("log", 0, 0), isolation_level=1, max_wait_ms=50_000))
    )
    await asyncio.sleep(1)
    assert not waiting.done()
    began = asyncio.get_running_loop().time()
    await end(life, "log", 7, commit=True)
    part = (await waiting).responses[0].partitions[0]
    assert shown(part) == [b"a"] and asyncio.get_running_loop().time() - began < 1


async def test_the_first_batch_is_verified_once() -> None:
    """TX4: version 11 verifies, version 12 adds; a batch of an open transaction asks nobody."""
    _, life = await served()
    verifier = with_transactions(life)
    await produce_in(life, "log", 7, 0, b"a", version=11)
    await produce_in(life, "log", 7, 1, b"b", version=11)
    assert verifier.asked == [("id-7", 7, 0, ("log-0",), False)]
    await end(life, "log", 7, commit=True)
    await produce_in(life, "log", 7, 0, b"c", epoch=1, version=12)
    assert verifier.asked[1:] == [("id-7", 7, 1, ("log-0",), True)]


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
async def test_what_the_coordinator_refuses(said: ErrorCode, version: int, told: ErrorCode) -> None:
    _, life = await served()
    with_transactions(life).answer = said
    assert (await produce_in(life, "log", 7, 0, b"a", version=version)).error_code == told
    assert life.partition("log").log.log_end_offset == 0 and len(life.partition("log").guards) == 0


async def test_a_coordinators_marker_waits_for_what_the_bucket_says() -> None:
    """TX10. Regression, seed 38 of the simulation: a gap took the marker of a commit, and the coordinator's log, too,
    came back without it. Its abort landed before the leader had read the footer that names the commit."""
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a")
    partition = life.partition("log")
    partition.undecided[7] = None
    request = wire.WriteTxnMarkersRequest(
        markers=[
            wire.WriteTxnMarkersRequestMarker(
                producer_id=7,
                producer_epoch=0,
                transaction_result=False,
                topics=[wire.WriteTxnMarkersRequestTopic(name="log", partition_indexes=[0])],
            )
        ]
    )
    for expected in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE):
        answer = await life.call(ApiKey.WRITE_TXN_MARKERS, request)
        assert answer.markers[0].topics[0].partitions[0].error_code == expected
        assert partition.log.log_end_offset == (1 if expected else 2)
        partition.undecided.clear()


async def test_an_add_waits_for_the_markers_of_the_transaction_before() -> None:
    """`add.partitions.to.txn.retry.backoff.ms`: the next transaction begins while the one before is being marked. Its
    marker voids only the guard of the try before it."""
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a", version=12)
    verifier = with_transactions(life)
    verifier.answer = ErrorCode.CONCURRENT_TRANSACTIONS
    began = asyncio.get_running_loop().time()
    following = asyncio.ensure_future(produce_in(life, "log", 7, 0, b"b", epoch=1, version=12))
    await asyncio.sleep(0.05)
    await end(life, "log", 7, commit=True)
    verifier.answer = ErrorCode.NONE
    assert (await following).error_code == ErrorCode.NONE
    assert asyncio.get_running_loop().time() - began < 0.08
    assert len(verifier.asked) == 7  # the first try, then pauses of 2, 4, 8, 16, 20, 20 ms
    assert len(life.partition("log").guards) == 0


async def test_a_marker_between_verification_and_append_voids_it() -> None:
    """TX40: verified, then the abort of that transaction lands, then the append: it would open one that nobody ends."""
    _, life = await served()
    verifier = with_transactions(life)
    verifier.gate = asyncio.Event()
    late = asyncio.ensure_future(produce_in(life, "log", 7, 0, b"a"))
    await asyncio.sleep(0.1)
    assert verifier.asked and not late.done()
    await end(life, "log", 7, commit=False)
    verifier.gate.set()
    assert (await late).error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert life.partition("log").last_stable_offset == 1 and len(life.partition("log").guards) == 0


async def test_an_unknown_producer_begins_at_sequence_zero() -> None:
    """Transaction version 2 (TX40): with a batch missing the first one seen is no beginning."""
    _, life = await served()
    assert (await produce_in(life, "log", 7, 5, b"a", version=12)).error_code == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert (await produce_in(life, "log", 7, 5, b"a", version=11)).error_code == ErrorCode.NONE


async def test_the_fast_path_refuses_a_batch_outside_of_the_transaction() -> None:
    """TX41: a run of plain batches of a producer with an open transaction."""
    from tests.support.brokers.broker_kit import batch_of, produce_request

    _, life = await served()
    for at in range(3):  # the path learns the head
        batch = batch_of(b"x", producer_id=9, producer_epoch=0, base_sequence=at)
        await life.call(ApiKey.PRODUCE, produce_request("log", batch), 9)
    await produce_in(life, "log", 9, 3, b"a")
    batch = batch_of(b"x", producer_id=9, producer_epoch=0, base_sequence=4)
    frames = [life.frame(ApiKey.PRODUCE, 9, produce_request("log", batch))]
    count, _ = life.dispatch_run(frames)
    assert count == 1, "the fast path takes it"
    answer = await life.call(ApiKey.PRODUCE, produce_request("log", batch), 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TXN_STATE
    assert life.partition("log").log.log_end_offset == 4


async def test_markers_are_answered_by_topic_id_and_epoch() -> None:
    """TX39: a topic made again under its name gets no marker of the old one; TX2: an older coordinator is fenced."""
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a")
    assert await end(life, "log", 7, commit=True, topic_id=uuid4()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await end(life, "none", 7, commit=True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await end(life, "log", 7, commit=True, coordinator=5, topic_id=life.partition("log").topic_id) == 0
    assert await end(life, "log", 7, commit=False, coordinator=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await end(life, "log", 7, commit=False, epoch=0, coordinator=6) == 0, (
        "nothing is open: appended all the same"
    )
    assert (await read_committed(life, "log")).values == [b"a"]


async def test_the_answer_of_a_marker_waits_for_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """TX22: answered before that, a leader change may lose the marker, and nobody sends it again."""
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a")
    partition = life.partition("log")
    with monkeypatch.context() as stuck:
        stuck.setattr(Leader, "flushed", lambda self, end_offset: False)
        answered = asyncio.ensure_future(end(life, "log", 7, commit=True))
        await asyncio.sleep(5)
        assert not answered.done() and partition.log.log_end_offset == 2
        assert partition.last_stable_offset == 0
    partition.flushed(partition.log.stable_end_offset)
    assert await answered == ErrorCode.NONE and partition.last_stable_offset == 2


async def test_a_marker_that_came_before_answers_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the last result of a request counted as its end. Without offsets, that of a marker that came before
    lies below the others: they were answered before they were committed, and a leader change could lose them (TX22)."""
    _, life = await served()
    for producer_id in (7, 8):
        await produce_in(life, "log", producer_id, 0, b"a")
    assert await end(life, "log", 8, commit=True) == 0
    partition = life.partition("log")
    partition.log.reserved_end = partition.log.log_end_offset + 1
    of = wire.WriteTxnMarkersRequestTopic(name="log", partition_indexes=[0])
    markers = [
        wire.WriteTxnMarkersRequestMarker(
            producer_id=producer_id, producer_epoch=0, transaction_result=True, topics=[of], coordinator_epoch=0
        )
        for producer_id in (7, 8)
    ]
    request = wire.WriteTxnMarkersRequest(markers=markers)
    with monkeypatch.context() as stuck:
        stuck.setattr(Leader, "flushed", lambda self, end_offset: False)
        call = Call(2, life.peer, "coordinator")
        answered = asyncio.ensure_future(handle_write_txn_markers(life.context, request, call))
        await asyncio.sleep(5)
        assert partition.log.log_end_offset == 4 and partition.high_watermark == 3
        assert not answered.done()
    partition.flushed(partition.log.stable_end_offset)
    rows = [topic.partitions[0] for marker in (await answered).markers for topic in marker.topics]
    assert [row.error_code for row in rows] == [0, 0]


async def test_describe_producers_tells_the_transaction() -> None:
    _, life = await served()
    await produce_in(life, "log", 7, 0, b"a", epoch=3)
    await end(life, "log", 7, commit=True, epoch=3, coordinator=11)
    await produce_in(life, "log", 7, 1, b"b", epoch=3)
    request = wire.DescribeProducersRequest(
        topics=[wire.DescribeProducersRequestTopic(name="log", partition_indexes=[0])]
    )
    response = await life.call(ApiKey.DESCRIBE_PRODUCERS, request)
    (shown_,) = response.topics[0].partitions[0].active_producers
    assert (shown_.producer_id, shown_.producer_epoch, shown_.coordinator_epoch) == (7, 3, 11)
    assert shown_.current_txn_start_offset == 2


async def test_a_restart_keeps_what_is_open() -> None:
    for clean in (True, False):
        place, life = await served()
        await produce_in(life, "log", 7, 0, b"a")
        await produce_in(life, "log", 8, 0, b"b")
        await end(life, "log", 8, commit=False)
        await (life.stop() if clean else life.crash())
        life = await place.start(take_over=True)
        with_transactions(life)
        await asyncio.sleep(60)
        seen = await read_committed(life, "log")
        assert (seen.values, seen.last_stable_offset) == ([], 0)
        assert await end(life, "log", 7, commit=True) == 0
        seen = await read_committed(life, "log")
        assert (seen.values, seen.aborted) == ([b"a"], [(8, 1)])


async def test_nothing_undecided_leaves_for_the_bucket() -> None:
    """TX5: an open transaction holds the copier; then the lists are the same hot, cold and across the seam (TX6)."""
    place, life = await served(**SMALL_SEGMENTS)
    value = b"v" * 150
    await produce_in(life, "log", 7, 0, b"a" + value)
    for at in range(40):
        await life.produce("log", b"%d " % at + value)
    await asyncio.sleep(60)
    partition = life.partition("log")
    assert partition.tier.remote_end_offset == 0 and partition.log.local_log_start_offset == 0
    await produce_in(life, "log", 8, 0, b"b" + value)
    await end(life, "log", 7, commit=False)
    await end(life, "log", 8, commit=True)
    for at in range(40, 60):
        await life.produce("log", b"%d " % at + value)
    hot = {}
    for offset in range(0, 60, 7):
        hot[offset] = await read_committed(life, "log", offset, partition_max_bytes=900)
    await asyncio.sleep(60)
    start = partition.log.local_log_start_offset
    assert start > 43, "the transactions sank"
    for offset, seen in hot.items():
        again = await read_committed(life, "log", offset, partition_max_bytes=900)
        n = min(len(again.values), len(seen.values))
        assert again.values[:n] == seen.values[:n] and n, offset
        if offset < 40:
            assert again.aborted == seen.aborted == [(7, 0)], offset
    inspector = BucketInspector(place.memory, LoopWorkers())
    assert await inspector.verify(partition.topic_id, 0, deep=True) == [], "section 7 says what the markers say"


async def test_retention_and_deleted_records_pass_an_open_transaction() -> None:
    """TX43: the last stable offset is never below the log start, and what is not copied is deleted by age."""
    _, life = await served(**(SMALL_SEGMENTS | {"remote_storage_enable": "false", "retention_ms": "60000"}))
    value = b"v" * 150
    await produce_in(life, "log", 7, 0, b"a" + value)
    for at in range(20):
        await life.produce("log", b"%d " % at + value)
    partition = life.partition("log")
    assert partition.last_stable_offset == 0
    asked = wire.DeleteRecordsRequestPartition(partition_index=0, offset=5)
    topic = wire.DeleteRecordsRequestTopic(name="log", partitions=[asked])
    await life.call(ApiKey.DELETE_RECORDS, wire.DeleteRecordsRequest(topics=[topic], timeout_ms=5_000))
    assert partition.last_stable_offset == partition.log_start_offset == 5
    await asyncio.sleep(600)
    await life.produce("log", b"wakes retention")
    await asyncio.sleep(600)
    start = partition.log_start_offset
    assert start > 10 and partition.last_stable_offset == start
    assert await end(life, "log", 7, commit=True) == 0
    assert partition.last_stable_offset == partition.high_watermark


async def test_a_marker_without_an_offset_asks_for_more() -> None:
    """It ends nothing here, so no offset was kept for it (TX24). A log that gave its offsets back has none before."""
    _, life = await served(**SMALL_SEGMENTS)
    await life.produce("log", b"plain")
    partition = life.partition("log")
    await asyncio.sleep(5)
    partition.log.reserved_end = partition.log.log_end_offset
    assert await end(life, "log", 7, commit=False) == ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(5)
    assert await end(life, "log", 7, commit=False) == ErrorCode.NONE
    await life.stop()


async def test_a_marker_of_a_closed_connection_does_not_end_the_next_transaction() -> None:
    """Regression: a large request waited for its slot while its coordinator, after a time-out, sent the marker again.
    The late marker ended the producer's next transaction, which has the same epoch before transaction version 2."""
    life = await Place().start()
    with_transactions(life)
    await life.create("log")
    await produce_in(life, "log", 7, 0, b"first")
    may_answer = asyncio.Event()

    async def waits(*_: object) -> wire.DescribeGroupsResponse:
        await may_answer.wait()
        return wire.DescribeGroupsResponse()

    life.dispatcher._handlers = {**life.dispatcher._handlers, ApiKey.DESCRIBE_GROUPS: waits}
    large = wire.DescribeGroupsRequest(groups=[f"group-{number:040}" for number in range(2000)])
    coordinator = Peer(9, "10.0.0.9:1", life.peer.listener)
    before = [life.dispatch(ApiKey.DESCRIBE_GROUPS, large, peer=coordinator) for _ in range(3)]
    topics = [wire.WriteTxnMarkersRequestTopic(name="log", partition_indexes=[0])]
    topics += [
        wire.WriteTxnMarkersRequestTopic(name=f"other-{number:040}", partition_indexes=[0]) for number in range(2000)
    ]
    marker = wire.WriteTxnMarkersRequestMarker(
        producer_id=7, producer_epoch=0, transaction_result=True, topics=topics, coordinator_epoch=0
    )
    late = life.dispatch(ApiKey.WRITE_TXN_MARKERS, wire.WriteTxnMarkersRequest(markers=[marker]), 2, coordinator)
    await asyncio.sleep(15)  # the time-out of its sender
    coordinator.closed = True
    assert await end(life, "log", 7, commit=True) is ErrorCode.NONE
    await produce_in(life, "log", 7, 1, b"second")
    may_answer.set()
    await asyncio.gather(*map(parts_of, before), parts_of(late), return_exceptions=True)
    assert await end(life, "log", 7, commit=False) is ErrorCode.NONE
    assert (await read_committed(life, "log")).values == [b"first"]
    await life.stop()
