"""The transaction coordinator over a log in memory: decisions, markers, moves, losses. Ids E… are transactions.md's."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.transactions.coordinator import Listing
from broker.transactions.machine import Expected
from broker.transactions.transaction import TV_0, TV_2
from logformat.errors import Retryable
from logformat.transaction_marker import TransactionMarker
from tests.support.transactions.transaction_world import TransactionWorld

NONE = ErrorCode.NONE


async def test_a_commit_marks_every_partition_once_and_is_complete() -> None:
    """One request a broker; the decision is answered before any marker is."""
    w = TransactionWorld()
    await w.led(3)
    parts = [w.partition(0, leader=1), w.partition(1, leader=2), w.partition(2, leader=2)]
    pid, epoch = await w.begin("tx", *parts)
    w.held = asyncio.Event()
    reply = await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
    assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, pid, epoch + 1)
    assert w.state("tx") == "PrepareCommit" and not w.taken
    w.held.set()
    await w.settle()
    marker = TransactionMarker(pid, epoch + 1, True, 3, 2)
    assert {at: w.taken[at] for at in parts} == {at: [marker] for at in parts}
    assert len(w.requests) == 2
    assert w.state("tx") == "CompleteCommit"
    assert len(w.coordinator.sender.pending) == 0
    await w.close()


async def test_a_stalled_partition_holds_up_its_own_transaction_only() -> None:
    """Others complete meanwhile on the same broker, and partitions that answered get no second marker."""
    w = TransactionWorld()
    await w.led()
    slow, fast = w.partition(0), w.partition(1)
    w.stalled.add(slow)
    pid, epoch = await w.begin("slow", slow, fast)
    await w.coordinator.end("slow", pid, epoch, TV_2, is_commit=True)
    await w.settle()
    for round_ in range(20):
        one, its_epoch = await w.begin(f"tx-{round_}", fast)
        await w.coordinator.end(f"tx-{round_}", one, its_epoch, TV_2, is_commit=False)
        await w.settle(3.0)
        assert w.state(f"tx-{round_}") == "CompleteAbort", round_
    assert w.state("slow") == "PrepareCommit"
    assert [marker.producer_id for marker in w.taken[fast]].count(pid) == 1
    w.stalled.clear()
    await w.settle(20)
    assert w.state("slow") == "CompleteCommit"
    await w.close()


async def test_markers_wait_for_whoever_leads_and_end_with_a_deleted_topic() -> None:
    """TX15: no leader now; another one after a while; the topic's id is gone."""
    w = TransactionWorld()
    await w.led()
    moving, leaving = w.partition(0), w.partition(0, topic=2)
    pid, epoch = await w.begin("tx", moving, leaving)
    w.leaders[moving] = w.leaders[leaving] = -1
    await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
    await w.settle(60)
    assert not w.requests and w.state("tx") == "PrepareCommit"
    w.leaders[moving] = 5
    w.coordinator.sender.image_changed()
    await w.settle()
    assert len(w.taken[moving]) == 1 and w.state("tx") == "PrepareCommit"
    w.deleted.add(leaving.topic_id)
    w.coordinator.sender.image_changed()
    await w.settle()
    assert w.state("tx") == "CompleteCommit" and leaving not in w.taken
    await w.close()


async def test_a_refused_marker_is_sent_until_it_is_taken() -> None:
    """Not led there, not enough replicas, a silent broker, a fence that will not stand: it is never given up."""
    w = TransactionWorld()
    await w.led()
    at = w.partition(0)
    pid, epoch = await w.begin("tx", at)
    for error in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ):
        w.errors[at] = error
        reply = await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
        await w.settle(30)
        assert w.state("tx") == "PrepareCommit" and not w.taken[at]
    assert reply.error is ErrorCode.CONCURRENT_TRANSACTIONS  # the retry of an end
    assert len(w.requests) < 60  # with growing pauses
    w.errors.clear()
    w.silent.add(1)
    await w.settle(30)
    w.silent.clear()
    await w.settle(40)
    assert w.state("tx") == "CompleteCommit" and len(w.taken[at]) == 1
    await w.close()


async def test_whoever_leads_next_sends_the_markers_of_a_decision() -> None:
    """E1: the coordinator ends between the decision and its markers, between two markers, before the completion."""
    for before in ("markers", "second", "complete"):
        w = TransactionWorld()
        await w.led(1)
        first, second = w.partition(0, leader=1), w.partition(1, leader=2)
        pid, epoch = await w.begin("tx", first, second)
        if before == "markers":
            w.silent |= {1, 2}
        elif before == "second":
            w.silent.add(2)
        await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
        if before == "complete":
            w.memory.hold()
        await w.settle()
        assert w.state("tx") == "PrepareCommit"
        w.resign()
        assert w.state("tx") == "NOT_COORDINATOR"
        w.memory.release()
        w.silent.clear()
        await w.settle()
        old, w.coordinator = w.coordinator, w.make()
        await w.led(2)
        await w.settle(30)
        assert w.state("tx") == "CompleteCommit", before
        for at in (first, second):
            epochs = [marker.coordinator_epoch for marker in w.taken[at]]
            assert epochs and set(epochs) <= {1, 2} and all(marker.is_commit for marker in w.taken[at])
        assert before != "markers" or w.taken[second][-1].coordinator_epoch == 2
        await old.close()
        await w.close()


async def test_an_answer_after_the_role_changes_nothing() -> None:
    """E18: requests under way when the role ends; their answers belong to nobody."""
    w = TransactionWorld()
    await w.led(1)
    pid, epoch = await w.begin("tx", w.partition(0))
    w.held = asyncio.Event()
    await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
    await w.settle()
    appends = w.memory.appends
    w.resign()
    w.held.set()
    await w.settle(60)
    assert w.memory.appends == appends and len(w.requests) == 1
    assert len(w.coordinator.sender.pending) == 0
    await w.close()


async def test_a_completion_that_is_refused_is_written_later() -> None:
    """Not enough replicas for the last record: no marker is sent again, and the id becomes free."""
    w = TransactionWorld()
    await w.led()
    at = w.partition(0)
    pid, epoch = await w.begin("tx", at)
    w.held = asyncio.Event()
    await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
    w.memory.fail = [Retryable("not enough replicas") for _ in range(5)]
    w.held.set()
    await w.settle(3)
    assert w.state("tx") == "PrepareCommit"
    await w.settle(10)
    assert w.state("tx") == "CompleteCommit" and len(w.taken[at]) == 1
    await w.close()


async def test_a_decision_is_answered_only_when_it_is_durable() -> None:
    """Its log does not commit: no answer of success, no marker; the client asks again."""
    w = TransactionWorld()
    await w.led()
    at = w.partition(0)
    pid, epoch = await w.begin("tx", at)
    w.memory.hold()
    reply = await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)
    assert reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE and not w.requests
    assert (await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)).error is (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    w.memory.release()
    await w.settle()
    assert (await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)).error is NONE
    await w.add("tx", pid, epoch + 1, at)
    w.memory.fail = [Retryable("no")]
    assert (await w.coordinator.end("tx", pid, epoch + 1, TV_2, is_commit=False)).error is (
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    assert w.state("tx") == "Ongoing" and len(w.taken[at]) == 1
    await w.close()


async def test_a_transaction_beyond_its_time_out_is_aborted_and_its_producer_fenced() -> None:
    """E3, TX3; also one that the next coordinator finds."""
    w = TransactionWorld()
    await w.led()
    at = w.partition(0)
    pid, epoch = await w.begin("tx", at, timeout_ms=5_000)
    other, _ = await w.begin("found", at, timeout_ms=15_000)
    await w.settle(11)
    assert w.state("tx") == "CompleteAbort" and w.state("found") == "Ongoing"
    assert w.taken[at] == [TransactionMarker(pid, epoch + 1, False, 1, 2)]
    assert (await w.coordinator.end("tx", pid, epoch, TV_0, is_commit=True)).error is ErrorCode.PRODUCER_FENCED
    assert (await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)).error is ErrorCode.INVALID_TXN_STATE
    error = await w.coordinator.add_partitions("tx", pid, epoch, [at], TV_2)
    assert error is ErrorCode.PRODUCER_FENCED
    w.resign()
    await w.led(2)
    await w.settle(11)
    assert w.state("found") == "CompleteAbort" and w.taken[at][-1].producer_id == other
    await w.close()


async def test_a_clock_that_is_set_back_does_not_delay_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a transaction that began by a clock 50 minutes fast was open for 50 minutes more, and nothing but its
    coordinator ends it (TX35). The time since which the coordinator knows it counts, too, at the next one from its
    load on."""
    w = TransactionWorld()
    await w.led()
    fast_ms, wall_ms = 3_000_000, w.clock.wall_ms
    monkeypatch.setattr(w.clock, "wall_ms", lambda: wall_ms() + fast_ms)
    await w.begin("tx", w.partition(0), timeout_ms=5_000)
    await w.begin("found", w.partition(0), timeout_ms=15_000)
    fast_ms = 0
    await w.settle(4)
    assert w.state("tx") == "Ongoing"
    await w.settle(11)
    assert w.state("tx") == "CompleteAbort" and w.state("found") == "Ongoing"
    w.resign()
    await w.led(2)
    await w.settle(26)
    assert w.state("found") == "CompleteAbort"
    await w.close()


async def test_nothing_is_answered_before_the_whole_partition_is_loaded() -> None:
    w = TransactionWorld()
    w.memory.writes_first = True
    await w.led()
    await w.begin("tx", w.partition(0))
    w.resign()
    w.memory.hold()
    for index in range(w.memory.partitions):
        w.coordinator.log.lead(w.memory.shard_log(index, 2))
    await w.settle()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await w.coordinator.init_producer_id("tx", 1_000, None)).error is loading
    assert (await w.coordinator.end("tx", 1, 0, TV_2, is_commit=True)).error is loading
    assert w.coordinator.describe("tx")[0] is loading
    assert await w.coordinator.listed(lambda _: True) == Listing(loading)
    assert set(w.coordinator.verify_partitions("tx", 1, 0, [w.partition(0)]).values()) == {loading}
    w.memory.release()
    await w.coordinator.log.wait_loaded()
    assert w.state("tx") == "Ongoing"
    await w.close()


async def test_a_coordinator_without_a_session_answers_for_nobody() -> None:
    """R25: another broker may coordinate the ids by now."""
    w = TransactionWorld()
    await w.led()
    pid, epoch = await w.begin("tx", w.partition(0))
    w.session = False
    assert (await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True)).error is ErrorCode.NOT_COORDINATOR
    assert await w.coordinator.listed(lambda _: True) == Listing(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    await w.close()


async def test_after_a_restore_every_id_gets_a_fresh_producer_id() -> None:
    """TX11, TX36: the snapshot may be older than what data partitions hold. What is open is driven to its end first."""
    w = TransactionWorld(partitions=1)
    await w.led(1)
    at = w.partition(0)
    idle, _ = await w.begin("idle", at)
    await w.coordinator.end("idle", idle, 0, TV_2, is_commit=True)
    open_id, _ = await w.begin("open", at)
    w.silent.add(1)
    decided, _ = await w.begin("decided", at)
    await w.settle()
    await w.coordinator.end("decided", decided, 0, TV_2, is_commit=True)
    (shard,) = w.coordinator.log.shards()
    end, batches = await shard.snapshot()
    w.resign()
    w.memory.snapshots[0], w.memory.starts[0], w.memory.batches[0] = (end, batches), end, []
    w.silent.clear()
    w.taken.clear()
    await w.led(2)
    await w.settle(60)
    for name, old in (("idle", idle), ("open", open_id), ("decided", decided)):
        known = w.known(name)
        if name == "open":
            assert (known.producer_epoch, known.state.title, known.needs_fresh_id) == (0, "Empty", False)
            assert known.producer_id not in (idle, open_id, decided)
        else:  # a partition may ask for a commit, so its id is new only at the next start
            assert (known.producer_id, known.state.title, known.needs_fresh_id) == (old, "CompleteCommit", True), name
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await w.coordinator.end(name, old, 0, TV_2, is_commit=True)).error is mapping
        assert set(w.coordinator.verify_partitions(name, old, 0, [at]).values()) == {mapping}
    fenced = await w.coordinator.init_producer_id("idle", 60_000, Expected(idle, 1))
    assert fenced.error is ErrorCode.PRODUCER_FENCED
    assert (await w.coordinator.init_producer_id("idle", 60_000, None)).producer_id not in (idle, open_id, decided)
    outcomes = {marker.producer_id: marker.is_commit for marker in w.taken[at]}
    assert outcomes[open_id] is False and outcomes[decided] is True
    # A whole log again: what was given stays.
    ids = {name: w.known(name).producer_id for name in ("idle", "open", "decided")}
    w.resign()
    w.memory.snapshots.clear()
    w.memory.starts[0] = 0
    await w.led(3)
    await w.settle()
    assert {name: w.known(name).producer_id for name in ids} == ids
    await w.close()


async def test_an_id_that_is_idle_for_long_is_forgotten() -> None:
    """TX13, with a tombstone: the next coordinator does not know it either."""
    w = TransactionWorld(id_expiration_ms=600_000, expiry_interval_ms=60_000)
    await w.led()
    at = w.partition(0)
    pid, epoch = await w.begin("idle", at)
    await w.coordinator.end("idle", pid, epoch, TV_2, is_commit=False)
    await w.begin("busy", at, timeout_ms=900_000)
    await w.settle(500)
    assert w.state("idle") == "CompleteAbort"
    await w.settle(300)
    assert w.state("idle") == "TRANSACTIONAL_ID_NOT_FOUND"
    w.resign()
    await w.led(2)
    assert w.state("idle") == "TRANSACTIONAL_ID_NOT_FOUND"
    await w.close()


async def test_a_thousand_transactions_of_a_hundred_partitions_share_requests() -> None:
    """E16: markers are batched; what is kept is gone at the end."""
    w = TransactionWorld()
    await w.led()
    parts = [w.partition(index, leader=1 + index % 3) for index in range(100)]
    started = await asyncio.gather(*[w.begin(f"tx-{one}", *parts) for one in range(1_000)])
    ends = [
        w.coordinator.end(f"tx-{one}", pid, epoch, TV_2, is_commit=one % 2 == 0)
        for one, (pid, epoch) in enumerate(started)
    ]
    replies = await asyncio.gather(*ends)
    assert {reply.error for reply in replies} == {NONE}
    await w.settle(30)
    assert {w.state(f"tx-{one}") for one in range(1_000)} == {"CompleteCommit", "CompleteAbort"}
    assert all(len(markers) == 1_000 for markers in w.taken.values())
    assert len(w.requests) < 200
    assert w.coordinator.sender.pending.partitions == 0
    await w.close()


async def test_an_add_of_version_1_is_answered_when_the_markers_are_there() -> None:
    """The client would wait for its own back-off. Markers that take longer than that are its business."""
    w = TransactionWorld()
    await w.led()
    at = w.partition(0)
    pid, epoch = await w.begin("tx", at)
    w.held = asyncio.Event()
    assert (await w.coordinator.end("tx", pid, epoch, TV_0, is_commit=True)).error is NONE
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await w.coordinator.add_partitions("tx", pid, epoch, [at], TV_0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert loop.time() - began == pytest.approx(0.02)
    early = asyncio.ensure_future(w.coordinator.add_partitions("tx", pid, epoch, [at], TV_0))
    await asyncio.sleep(0.003)
    w.held.set()
    assert await early is NONE and w.state("tx") == "Ongoing"
    assert loop.time() - began < 0.035
    await w.close()


async def test_a_storm_of_ends_writes_one_decision() -> None:
    """E17: retries of one end, side by side."""
    w = TransactionWorld()
    await w.led()
    pid, epoch = await w.begin("tx", w.partition(0))
    replies = await asyncio.gather(*[w.coordinator.end("tx", pid, epoch, TV_2, is_commit=True) for _ in range(5_000)])
    assert [reply.error for reply in replies].count(NONE) == 1
    assert {reply.error for reply in replies} == {NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
    await w.settle()
    assert len(w.taken[w.partition(0)]) == 1
    await w.close()


async def test_two_producers_of_one_id_never_both_commit_one_epoch() -> None:
    """E4, E5: starts, ends and coordinator moves in random orders. What was answered stands in every partition: each
    epoch of a producer id has one outcome, and a commit that was answered is in all its partitions."""
    for seed in range(30):
        rng = random.Random(seed)
        w = TransactionWorld(partitions=1)
        await w.led(1)
        parts = [w.partition(index, leader=1 + index % 2) for index in range(3)]
        committed: list[tuple[int, int, frozenset[int]]] = []
        leader_epoch = 1

        async def produce(w: TransactionWorld, rng: random.Random, parts: list, committed: list) -> None:
            while True:
                reply = await w.coordinator.init_producer_id("tx", 30_000, None)
                if reply.error is not NONE:
                    await asyncio.sleep(rng.uniform(0.001, 0.2))
                    continue
                pid, epoch = reply.producer_id, reply.producer_epoch
                for _ in range(rng.randrange(1, 5)):
                    await asyncio.sleep(rng.uniform(0, 0.05))
                    some = rng.sample(parts, rng.randrange(1, 3))
                    if await w.coordinator.add_partitions("tx", pid, epoch, some, TV_2) is not NONE:
                        break
                    is_commit = rng.random() < 0.7
                    end = await w.coordinator.end("tx", pid, epoch, TV_2, is_commit=is_commit)
                    if end.error is not NONE:
                        break
                    if is_commit:
                        committed.append((pid, epoch + 1, frozenset(at.partition for at in some)))
                    pid, epoch = end.producer_id, end.producer_epoch

        producers = [asyncio.ensure_future(produce(w, rng, parts, committed)) for _ in range(2)]
        for _ in range(6):
            await w.settle(rng.uniform(0.05, 0.5))
            w.resign()
            leader_epoch += 1
            await w.settle(rng.uniform(0, 0.05))
            await w.led(leader_epoch)
        for producer in producers:
            producer.cancel()
        await asyncio.gather(*producers, return_exceptions=True)
        await w.settle(60)
        outcome: dict[tuple[int, int], bool] = {}
        for at, markers in w.taken.items():
            for marker in markers:
                key = marker.producer_id, marker.producer_epoch
                assert outcome.setdefault(key, marker.is_commit) == marker.is_commit, (seed, key, at)
        for pid, epoch, indexes in committed:
            assert outcome[pid, epoch] is True, (seed, pid, epoch)
            for index in indexes:
                keys = [(m.producer_id, m.producer_epoch) for m in w.taken[parts[index]]]
                assert (pid, epoch) in keys, (seed, pid, epoch, index)
        assert w.state("tx") in ("Empty", "CompleteCommit", "CompleteAbort")
        await w.close()


async def test_limits_and_bad_requests() -> None:
    w = TransactionWorld(ids_max=3, partitions_max=4)
    await w.led()
    request = ErrorCode.INVALID_REQUEST
    assert (await w.coordinator.init_producer_id("", 1_000, None)).error is request
    assert (await w.coordinator.init_producer_id("x" * 3_000, 1_000, None)).error is request
    timeout = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    for timeout_ms in (0, -1, 900_001):
        assert (await w.coordinator.init_producer_id("tx", timeout_ms, None)).error is timeout
    for one in range(3):
        await w.begin(f"tx-{one}", w.partition(one))
    assert (await w.coordinator.init_producer_id("tx-4", 1_000, None)).error is ErrorCode.POLICY_VIOLATION
    assert (await w.coordinator.init_producer_id("tx-1", 1_000, None)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    more = [w.partition(index) for index in range(5, 8)]
    assert await w.coordinator.add_partitions("tx-0", 1_001, 0, more, TV_2) is ErrorCode.POLICY_VIOLATION
    assert UUID(int=1) == more[0].topic_id
    await w.close()
