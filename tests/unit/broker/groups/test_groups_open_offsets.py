"""Offsets in transactions (TX12): open until their marker, in the log's order, through moves, rewrites and restores."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode as E
from broker.groups.machine.events import AdmitCommit
from broker.groups.offset_requests import CommitRow
from broker.groups.offsets import UNSTABLE, FetchedOffset, Wanted
from broker.groups.records import CommittedOffset
from broker.handlers.groups.offsets import _group_answer, _GroupQuery
from broker.handlers.transactions.offsets import handle_txn_offset_commit
from broker.internal_topics.batches import Producer, batches_in
from broker.internal_topics.rewriting import Rewrites
from broker.metadata.image import TopicFacts
from broker.wire.messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from logformat.transaction_marker import TransactionMarker
from tests.support.fast_loop import run_fast
from tests.support.groups.group_world import GroupWorld, in_world


async def put(
    w: GroupWorld, group: str, offset: int, pid: int, epoch: int = 0, partition: int = 0, **member: object
) -> E:
    """A TxnOffsetCommit of one row, verified."""

    async def verified() -> E:
        return E.NONE

    row = CommitRow("t", partition, offset, -1, "")
    admit = AdmitCommit(None, **member)  # type: ignore[arg-type]
    (code,) = await w.groups.offsets.commit_in_transaction(
        group, admit, [row], Producer(pid, epoch), verified, until_s=w.groups.deadline()
    )
    return code


def mark(w: GroupWorld, pid: int, epoch: int = 0, *, is_commit: bool = True) -> int:
    """A coordinator's marker reaches the partition's leader, which appends it and tells its log."""
    marker = TransactionMarker(pid, epoch, is_commit, 1)
    offset = w.log.shard_log(0, w.epoch).append_marker(marker)
    w.groups.log.marked(0, w.epoch, marker, offset)
    return offset


async def stable(w: GroupWorld, group: str, partition: int = 0) -> int | E:
    _, rows = await w.groups.offsets.fetch(group, [Wanted("t", [partition])], require_stable=True)
    value = rows[0].partitions[0][1]
    return E.UNSTABLE_OFFSET_COMMIT if value is UNSTABLE else value.offset


async def settle() -> None:
    await asyncio.sleep(0.01)


@in_world
async def test_an_offset_counts_when_its_transaction_commits(w):
    """Meanwhile readers see the one before, or hear that it is not stable."""
    await w.commit("g", 1)
    assert await put(w, "g", 5, 7) == E.NONE
    assert (await w.fetch("g"), await stable(w, "g")) == (1, E.UNSTABLE_OFFSET_COMMIT)
    assert await stable(w, "g", 1) == -1
    mark(w, 7)
    await settle()
    assert (await w.fetch("g"), await stable(w, "g")) == (5, 5)
    await put(w, "g", 9, 7)
    mark(w, 7, is_commit=False)
    await settle()
    assert (await w.fetch("g"), await stable(w, "g")) == (5, 5)
    await w.restart()
    assert await w.fetch("g") == 5


@in_world
async def test_the_next_coordinator_finds_what_is_open(w):
    """E12: the marker may come before, while or after it loads."""
    await put(w, "g", 5, 7)
    await put(w, "h", 6, 8)
    await w.restart()
    assert await stable(w, "g") == E.UNSTABLE_OFFSET_COMMIT
    mark(w, 7)
    await settle()
    assert (await w.fetch("g"), await stable(w, "h")) == (5, E.UNSTABLE_OFFSET_COMMIT)
    await w.kill()
    w.log.shard_log(0, 1).append_marker(TransactionMarker(8, 0, True, 1))
    await w.ready()
    assert (await w.fetch("h"), await stable(w, "h")) == (6, 6)


@in_world
async def test_a_marker_counts_only_when_it_is_committed_and_in_the_logs_order(w):
    """It may stand in the log and be truncated. A commit that was appended before it is applied before it."""
    await put(w, "g", 5, 7)
    w.log.writes_first = True
    w.log.hold()
    late = w.ask(put(w, "g", 6, 7, partition=1))
    await settle()
    mark(w, 7)
    await settle()
    assert w.groups.log.ready(0).groups["g"].offsets.get("t", 0) is None
    w.log.release()
    assert await late == E.NONE
    await settle()
    assert [await w.fetch("g", partition=index) for index in (0, 1)] == [5, 6]
    assert await put(w, "g", 9, 7, 1) == E.NONE
    assert await stable(w, "g") == E.UNSTABLE_OFFSET_COMMIT


@in_world
async def test_an_old_outcome_ends_no_other_transaction(w):
    """TX29: a marker of an earlier epoch that comes again, and markers of other producers."""
    await put(w, "g", 5, 7, 3)
    for pid, epoch in ((7, 2), (8, 9)):
        mark(w, pid, epoch)
    await settle()
    assert await stable(w, "g") == E.UNSTABLE_OFFSET_COMMIT
    mark(w, 7, 4, is_commit=False)  # the fence of epoch 3
    await settle()
    assert await stable(w, "g") == -1


@in_world
async def test_a_later_plain_commit_wins(w):
    """By the place in the log, as in Kafka; also over another producer's, and after a replay."""
    await put(w, "g", 5, 7)
    await w.commit("g", 9)
    mark(w, 7)
    await settle()
    assert await w.fetch("g") == 9
    await put(w, "h", 1, 7)
    await put(w, "h", 2, 8)
    mark(w, 8)
    mark(w, 7)
    await settle()
    assert await w.fetch("h") == 2
    await w.restart()
    assert (await w.fetch("g"), await w.fetch("h")) == (9, 2)


@in_world
async def test_a_transaction_that_ended_before_the_append_gets_no_more_offsets(w):
    """TX40: verified, then a marker, then the append: it would open a transaction that nobody ends."""
    gate = asyncio.Event()

    async def verify() -> E:
        await gate.wait()
        return E.NONE

    rows = [CommitRow("t", 0, 5, -1, "")]
    late = w.ask(
        w.groups.offsets.commit_in_transaction(
            "g", AdmitCommit(None), rows, Producer(7, 0), verify, until_s=w.groups.deadline()
        )
    )
    await settle()
    mark(w, 7, is_commit=False)
    gate.set()
    assert await late == [E.TRANSACTION_ABORTABLE]
    await settle()
    assert not [found for data in w.log.batches[0] for found in batches_in(data) if list(found.records)]


@in_world
async def test_a_marker_while_the_commit_waits_in_the_queue_refuses_it(w):
    w.log.hold()
    first = w.ask(w.commit("other", 1))
    await settle()
    late = w.ask(put(w, "g", 5, 7))
    await settle()
    mark(w, 7)
    w.log.release()
    assert (await first, await late) == (E.NONE, E.TRANSACTION_ABORTABLE)


@in_world
async def test_a_commit_that_waits_longer_than_its_request_stays_out_of_the_next_transaction(w):
    """TX40: the high watermark stands still, so the commit waits in the queue. Its request times out, and the producer
    aborts. Before transaction version 2 the next transaction has the same epoch: its commit would commit the offset of
    the aborted one, and the records below that offset would not be processed."""
    w.log.hold()
    first = w.ask(w.commit("other", 1))
    await settle()
    assert await put(w, "g", 5, 7) is E.COORDINATOR_NOT_AVAILABLE
    mark(w, 7, is_commit=False)
    w.log.release()
    await first
    await settle()
    assert await put(w, "g", 3, 7, partition=1) is E.NONE
    mark(w, 7)
    await settle()
    assert [await w.fetch("g", partition=at) for at in (0, 1)] == [-1, 3]


@in_world
async def test_the_last_rows_of_a_commit_stay_out_of_the_next_transaction(w):
    """Regression: each 1 500 rows of a TxnOffsetCommit were verified alone, the later ones when the earlier ones were
    durable. If their transaction was aborted meanwhile, the last rows joined the producer's next transaction, which
    before version 2 has the same epoch: its marker committed an offset of the aborted one."""
    answers = [E.NONE, E.NONE]  # the second one is of the next transaction
    topic_id = UUID(int=1)
    facts = TopicFacts(topic_id, 50)

    class Verifier:
        async def verify(self, _: str, *producer: object, add: bool) -> dict[object, E]:
            *_, partitions = producer
            await asyncio.sleep(0.1)
            return dict.fromkeys(cast("list[object]", partitions), answers.pop(0))

    context = SimpleNamespace(groups=w.groups, verifier=Verifier(), metadata=SimpleNamespace(facts=lambda _: facts))
    rows = [TxnOffsetCommitRequestPartition(partition_index=at, committed_offset=100) for at in range(2_000)]
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        generation_id=-1,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=rows)],
    )
    w.log.writes_first = True
    w.log.hold()
    committing = w.ask(handle_txn_offset_commit(context, request, SimpleNamespace(version=3)))
    await asyncio.sleep(0.2)
    mark(w, 7, is_commit=False)  # its client was told that the commit failed, or connected again
    w.log.release()
    await settle()
    assert await put(w, "g", 60, 7) is E.NONE  # the next transaction
    await committing
    mark(w, 7)
    await settle()
    assert (await w.fetch("g"), await w.fetch("g", partition=1_999)) == (60, -1)


@in_world
async def test_members_are_checked_as_in_kafka(w):
    """KIP-447. Producers of before say nothing of the group, and may commit while it rebalances."""
    member, generation = await w.member("g")
    assert await put(w, "g", 1, 7) == E.NONE
    assert await put(w, "g", 1, 7, member_id=member, generation=generation) == E.NONE
    assert await put(w, "g", 1, 7, member_id=member, generation=generation - 1) == E.ILLEGAL_GENERATION
    assert await put(w, "g", 1, 7, member_id="who", generation=generation) == E.UNKNOWN_MEMBER_ID
    assert await put(w, "nobody", 1, 7, member_id="who", generation=3) == E.ILLEGAL_GENERATION
    refused = E.INVALID_TXN_STATE

    async def verify() -> E:
        return refused

    rows = [CommitRow("t", 0, 5, -1, "")]
    assert await w.groups.offsets.commit_in_transaction(
        "g", AdmitCommit(None), rows, Producer(7, 0), verify, until_s=w.groups.deadline()
    ) == [refused]


@in_world
async def test_a_deleted_group_takes_its_open_offsets_along(w):
    await w.commit("g", 1)
    await put(w, "g", 5, 7, partition=3)
    assert await w.groups.admin.delete("g") == E.NONE
    assert "g" not in w.groups.log.ready(0).groups
    mark(w, 7)
    await settle()
    assert await w.fetch("g", partition=3) == -1
    await w.restart()
    assert await w.fetch("g", partition=3) == -1


@in_world
async def test_single_offsets_are_deleted_with_what_is_open(w):
    await put(w, "g", 5, 7)
    assert await w.groups.admin.forget("g", [("t", 0)]) == (E.NONE, [E.NONE])
    mark(w, 7)
    await settle()
    assert await w.fetch("g") == -1


async def grow(w: GroupWorld) -> Rewrites:
    """Make the log of the shard so long that it is rewritten at the next look."""
    w.shard().growth.log_bytes += 100 << 20
    return Rewrites(w.groups.log)


@in_world
async def test_a_rewrite_keeps_what_is_open_behind_its_start(w):
    """TX37: the log below the rewrite is deleted, then the marker comes."""
    await w.commit("g", 1)
    await put(w, "g", 5, 7)
    await put(w, "h", 6, 8)
    await (await grow(w)).write_due()
    assert w.log.starts[0] > 2
    await w.restart()
    assert (await w.fetch("g"), await stable(w, "g")) == (1, E.UNSTABLE_OFFSET_COMMIT)
    mark(w, 7)
    mark(w, 8, is_commit=False)
    await settle()
    await w.restart()
    assert (await w.fetch("g"), await w.fetch("h")) == (5, -1)


@pytest.mark.parametrize("turns", range(24))
def test_a_marker_that_lands_anywhere_in_a_rewrite_is_not_lost(turns: int) -> None:
    """Before, between and after the batches that repeat what is open: it commits the same, live and when replayed."""

    async def whole() -> None:
        w = GroupWorld()
        w.log.writes_first = True  # as a partition's leader does: in the turn in which the batch is made
        await w.ready()
        for group in range(3):
            await w.commit(f"g{group}", 1)
            for pid in (7, 8, 9):
                await put(w, f"g{group}", 10 + pid, pid, partition=pid)
        rewrites = await grow(w)
        work = w.ask(rewrites.write_due())
        for _ in range(turns):
            await asyncio.sleep(0)
        for pid in (7, 8, 9):
            mark(w, pid, is_commit=pid != 9)
            await asyncio.sleep(0)
        await work
        await settle()
        for _ in range(2):
            found = [[await w.fetch(f"g{group}", partition=pid) for pid in (7, 8, 9)] for group in range(3)]
            assert found == [[17, 18, -1]] * 3
            assert [await w.fetch(f"g{group}") for group in range(3)] == [1, 1, 1]
            assert not w.groups.log.ready(0)._open
            assert w.log.starts[0] > 0
            await w.restart()
        await w.kill()
        assert not w.failures

    run_fast(whole())


@in_world
async def test_a_snapshot_carries_what_is_open(w):
    """TX38: after a lost disk the marker finds it. A marker makes a snapshot due."""
    await w.commit("g", 1)
    await put(w, "g", 5, 7)
    await put(w, "g", 6, 8, 2, partition=1)
    await put(w, "h", 7, 7, partition=2)
    end, batches = await w.snapshot()
    w.shard().book.written(end)
    assert w.shard().book.dirty_since_s is None
    producers = [{record.producer for record in found.records} for found in batches_in(batches)]
    assert producers == [{None}, {Producer(7, 0)}, {Producer(8, 2)}, {Producer(7, 0)}]
    mark(w, 9)
    await settle()
    assert w.shard().book.dirty_since_s is not None
    w.log.snapshots[0], w.log.batches[0], w.log.starts[0] = (end, batches), [], end
    w.log.ends[0] = max(w.log.ends[0], end)
    await w.restart()
    assert (await w.fetch("g"), await stable(w, "g")) == (1, E.UNSTABLE_OFFSET_COMMIT)
    mark(w, 7)
    mark(w, 8, 2)
    await settle()
    assert [await w.fetch("g", partition=index) for index in (0, 1)] == [5, 6]
    assert await w.fetch("h", partition=2) == 7
    assert w.groups.log.ready(0).groups["g"].offsets.open.count == 0


@in_world
async def test_a_group_with_open_offsets_does_not_expire(w):
    """Kafka keeps it until the transaction ends; then its offsets expire like all."""
    day_s = 24 * 3_600
    await w.commit("g", 1)
    await put(w, "g", 5, 7)
    await asyncio.sleep(0)
    group = w.groups.log.ready(0).groups["g"]
    from broker.groups.offsets import expiry_rule

    rule = expiry_rule(group.machine)
    assert rule is not None
    assert group.offsets.expired(rule, 10 * day_s * 1_000, 1_000) == []
    mark(w, 7)
    await settle()
    assert group.offsets.expired(rule, 10 * day_s * 1_000, 1_000) == [("t", 0)]


@pytest.mark.parametrize("seed", range(60))
def test_any_history_reads_the_same_live_and_replayed(seed: int) -> None:
    """Against a model that applies records in the log's order: commits, open offsets, markers, rewrites, moves."""

    async def whole() -> None:
        rng = random.Random(seed)
        w = GroupWorld()
        await w.ready()
        plain: dict[tuple[str, int], int] = {}
        opened: dict[int, dict[tuple[str, int], tuple[int, int, int]]] = {}  # by producer: (order, epoch, offset)
        order = 0
        for _ in range(60):
            group, partition, pid = f"g{rng.randrange(2)}", rng.randrange(3), rng.randrange(3)
            order += 1
            match rng.randrange(9):
                case 0 | 1:
                    assert await w.commit(group, order, partition=partition) == E.NONE
                    plain[group, partition] = order
                    for held in opened.values():
                        held.pop((group, partition), None)
                case 2 | 3 | 4:
                    epoch = max((row[1] for row in opened.get(pid, {}).values()), default=rng.randrange(3))
                    assert await put(w, group, order, pid, epoch, partition) == E.NONE
                    opened.setdefault(pid, {})[group, partition] = (order, epoch, order)
                case 5 | 6:
                    epoch, is_commit = rng.randrange(4), rng.random() < 0.6
                    mark(w, pid, epoch, is_commit=is_commit)
                    await settle()
                    for at, row in list(opened.get(pid, {}).items()):
                        if row[1] > epoch:
                            continue
                        del opened[pid][at]
                        if is_commit:
                            plain[at] = row[2]
                            for held in opened.values():
                                if at in held and held[at][0] < row[0]:
                                    del held[at]
                case 7:
                    await (await grow(w)).write_due()
                case 8:
                    await w.restart()
            for name in ("g0", "g1"):
                for index in range(3):
                    assert await w.fetch(name, partition=index) == plain.get((name, index), -1), (name, index)
                    is_open = any((name, index) in held for held in opened.values())
                    assert (await stable(w, name, index) == E.UNSTABLE_OFFSET_COMMIT) == is_open
        await w.kill()
        assert not w.failures

    run_fast(whole())


def test_an_unstable_row_takes_no_topic_id_away():
    """Regression: of all topics, by id (OffsetFetch 10), the id was that of the first row. An unstable one has none, so
    the other offsets of the topic counted as those of another topic."""
    topic_id, now = UUID(int=5), UUID(int=6)
    known = CommittedOffset(7, -1, "", 0, topic_id=topic_id)
    asked = _GroupQuery()
    both = FetchedOffset("t", ((0, UNSTABLE), (1, known)))
    (found,) = _group_answer("g", E.NONE, (both,), asked, lambda _: now).topics
    assert found.topic_id == topic_id
    assert [(row.committed_offset, row.error_code) for row in found.partitions] == [
        (-1, E.UNSTABLE_OFFSET_COMMIT),
        (7, E.NONE),
    ]
    (found,) = _group_answer("g", E.NONE, (FetchedOffset("t", ((0, UNSTABLE),)),), asked, lambda _: now).topics
    assert found.topic_id == now
