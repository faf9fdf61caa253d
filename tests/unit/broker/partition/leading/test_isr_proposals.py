"""What becomes of a proposal: it counts before it is sent, and until a row settles it (R17)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.partition.leading import isr_proposals as proposing_module
from broker.partition.leading.isr_proposals import IsrProposals
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.in_sync import AppliedRow
from broker.replication.isr_policy import PartitionProposal
from broker.replication.leader import Report
from logformat.errors import Retryable
from seams.loop.beats import Beats
from tests.support.brokers.broker_kit import Place

SESSION, LAG_MS = 7, 60_000


def in_sync_with(partition: LeaderReplica, *others: int) -> None:
    """These have a session, and are in the set."""
    row = partition.leader.in_sync.row
    sessions = {**row.sessions, **dict.fromkeys(others, SESSION)}
    in_sync = row.in_sync | set(others)
    partition.applied(replace(row, partition_epoch=row.partition_epoch + 1, in_sync=in_sync, sessions=sessions))


async def test_cluster_d69_neither_a_refusal_nor_silence_drops_a_proposal() -> None:
    """Another one of its time may stand, and take the candidate in: what was proposed counts until the image settles
    it, and is asked about again. With each answer, and with none."""
    life = await Place().start()
    await life.context.controller.create_topic("log", 1, {})
    partition = life.partition("log")
    row = partition.leader.in_sync.row
    shared = replace(row, partition_epoch=row.partition_epoch + 1, sessions={**row.sessions, 2: SESSION})
    partition.applied(shared)
    partition.reported(2, Report(partition.log.log_end_offset, SESSION), partition.leader_epoch)
    asked: list[PartitionProposal] = []
    answers = [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.INELIGIBLE_REPLICA, None]

    async def propose(proposals: list[PartitionProposal]) -> tuple[ErrorCode, ...]:
        asked.extend(proposals)
        answer = answers[min(len(asked), len(answers)) - 1]
        if answer is None:
            raise Retryable("nobody decides")
        return (answer,)

    keeping = asyncio.ensure_future(IsrProposals(life.context.registry, propose, LAG_MS, Beats()).keep())
    async with asyncio.timeout(60.0):
        while len(asked) < 4:
            await asyncio.sleep(0.1)
    own = partition.leader.node_id
    assert tuple(node for node, _ in asked[-1].in_sync) == (own,), "the set as it is settles it"
    assert partition.leader.in_sync.union == {own, 2} and not partition.leader.in_sync.is_settled
    waiting = asyncio.ensure_future(life.produce("log", b"one"))
    while partition.log.flushed_end_offset < 1:
        await asyncio.sleep(0.01)
    assert partition.high_watermark == 0 and not waiting.done()
    keeping.cancel()
    partition.applied(replace(shared, partition_epoch=shared.partition_epoch + 1))
    assert (await waiting).error_code == ErrorCode.NONE and partition.high_watermark == 1
    await life.stop()


async def test_what_a_request_has_no_room_for_counts_only_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unclean starts that are done, and sets with a joiner: a request takes two. A proposal that counted without being
    sent stood in the way of its partition for two seconds, and its joiner in that of the high watermark."""
    monkeypatch.setattr(proposing_module, "_PROPOSALS_MAX", 2)
    life = await Place().start()
    await life.context.controller.create_topic("log", 5, {})
    registry = life.context.registry
    partitions = [life.partition("log", index) for index in range(5)]
    for partition in partitions[:3]:
        registry.resign(partition)
        registry.start(partition)
    for partition in partitions[3:]:
        row = partition.leader.in_sync.row
        sessions = {**row.sessions, 2: SESSION}
        partition.applied(replace(row, partition_epoch=row.partition_epoch + 1, sessions=sessions))
        partition.reported(2, Report(0, SESSION), partition.leader_epoch)

    async def propose(proposals: list[PartitionProposal]) -> tuple[ErrorCode, ...]:
        raise AssertionError("nobody keeps it")

    proposing, asked = IsrProposals(registry, propose, LAG_MS, Beats()), []
    for now_ms in (10_000, 10_500, 11_000):
        found = proposing.due_proposals(now_ms)
        asked += [proposal.place[1] for proposal in found]
        assert len(found) <= 2
        counted = [partition.index for partition in partitions if not partition.leader.in_sync.is_settled]
        assert counted == sorted(asked)
    assert sorted(asked) == [0, 1, 2, 3, 4]
    await life.crash()


async def test_a_partition_at_rest_is_not_looked_at_and_misses_nobody_who_lags_after() -> None:
    """Everybody holds the whole log: it costs a comparison. What is appended then wakes it, and who lacks that for the
    longest lag leaves the set; who has it in time keeps its seat."""
    life = await Place().start()
    await life.context.controller.create_topic("log", 1, {})
    partition = life.partition("log")
    own = partition.leader.node_id
    in_sync_with(partition, 2, 3)
    looked: list[int] = []
    began_look = IsrProposals._proposal_of

    async def propose(proposals: list[PartitionProposal]) -> tuple[ErrorCode, ...]:
        raise AssertionError("nobody keeps it")

    class Counting(IsrProposals):
        def _proposal_of(self, partition: LeaderReplica, now_ms: int) -> PartitionProposal | None:
            looked.append(now_ms)
            return began_look(self, partition, now_ms)

    proposing = Counting(life.context.registry, propose, LAG_MS, Beats())
    for node_id in (2, 3):
        assert proposing.due_proposals(0) == []
        partition.reported(node_id, Report(0, SESSION), partition.leader_epoch)
    assert proposing.due_proposals(500) == []  # nobody is late any more
    before = len(looked)
    assert proposing.due_proposals(1_000) == [] and proposing.due_proposals(LAG_MS * 5) == []
    assert len(looked) == before and partition not in life.context.registry.isr_pending, "at rest"
    row = partition.leader.in_sync.row
    for sessions in (
        {**row.sessions, 2: SESSION + 1},
        row.sessions,
    ):  # 2 is another, and back: no report counts
        row = replace(row, partition_epoch=row.partition_epoch + 1, sessions=sessions)
        partition.applied(row)
    now_ms = LAG_MS * 5
    assert proposing.due_proposals(now_ms) == [] and partition.leader.late_since_ms == {}
    assert proposing.due_proposals(now_ms + 500) == [] and partition.leader.late_since_ms == {2: now_ms}
    partition.reported(2, Report(0, SESSION), partition.leader_epoch)
    assert proposing.due_proposals(now_ms + 1_000) == proposing.due_proposals(now_ms + 1_500) == []
    await life.produce("log", b"one", acks=1)
    await partition.flusher.flush()
    now_ms = LAG_MS * 5
    while not (found := proposing.due_proposals(now_ms)):
        now_ms += 500
        if now_ms == LAG_MS * 5 + 5_000:
            partition.reported(2, Report(1, SESSION), partition.leader_epoch)
        assert now_ms < LAG_MS * 7
    assert now_ms - LAG_MS * 5 >= LAG_MS
    assert [sorted(dict(proposal.in_sync)) for proposal in found] == [[own, 2]]
    await life.stop()


async def test_cluster_d01_an_answer_changes_nothing_the_image_does() -> None:
    """It carries no state: the leader counts by the row that it applied, until another one comes with an image. An
    answer that overtook the image (which has another minimum, perhaps) would let it acknowledge alone."""
    life = await Place().start()
    await life.context.controller.create_topic("log", 1, {})
    partition = life.partition("log")
    own, row = partition.leader.node_id, partition.leader.in_sync.row
    shared = replace(row, partition_epoch=row.partition_epoch + 1, sessions={**row.sessions, 2: SESSION})
    partition.applied(shared)
    partition.reported(2, Report(partition.log.log_end_offset, SESSION), partition.leader_epoch)
    rows: list[AppliedRow] = []
    answered = asyncio.Event()

    async def propose(proposals: list[PartitionProposal]) -> tuple[ErrorCode, ...]:
        rows.append(partition.leader.in_sync.row)
        answered.set()
        return (ErrorCode.NONE,) * len(proposals)

    keeping = asyncio.ensure_future(IsrProposals(life.context.registry, propose, LAG_MS, Beats()).keep())
    async with asyncio.timeout(60.0):
        await answered.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    assert partition.leader.in_sync.row is rows[0] and not partition.leader.in_sync.is_settled
    assert partition.leader.in_sync.union == {own, 2}
    keeping.cancel()
    await life.stop()


async def test_who_stops_asking_while_the_log_rests_does_not_hold_back_delete_records_for_ever() -> None:
    """It has a session and every record: nothing ever moved again by which it would lag, and the start was not known to
    it. It leaves the set as one that lacks records does, after as long."""
    life = await Place().start()
    await life.context.controller.create_topic("log", 1, {})
    partition = life.partition("log")
    own = partition.leader.node_id
    in_sync_with(partition, 2)

    async def propose(proposals: list[PartitionProposal]) -> tuple[ErrorCode, ...]:
        raise AssertionError("nobody keeps it")

    proposing = IsrProposals(life.context.registry, propose, LAG_MS, Beats())
    await life.produce("log", b"one", acks=1)
    await partition.flusher.flush()
    for now_ms in (0, 500):
        partition.reported(2, Report(1, SESSION), partition.leader_epoch)
        assert proposing.due_proposals(now_ms) == []
    assert partition.is_isr_steady
    partition.lease.advance_log_start(1)
    waiting = partition.start_known(1)
    assert waiting is not None
    now_ms = 1_000
    while not (found := proposing.due_proposals(now_ms)):
        now_ms += 500
        assert now_ms < 3 * LAG_MS
    assert now_ms >= LAG_MS and dict(found[0].in_sync).keys() == {own}
    row = partition.leader.in_sync.row
    partition.applied(replace(row, partition_epoch=row.partition_epoch + 1, in_sync=frozenset({own})))
    assert waiting.done()
    await life.stop()


async def test_cluster_d01_an_answer_to_a_proposal_does_not_run_ahead_of_the_image() -> None:
    """D1: the proposal was taken. The set is the one of the image until the image has the new one, and both count."""
    life = await Place().start()
    await life.context.controller.create_topic("log", 1, {})
    partition = life.partition("log")
    row = partition.leader.in_sync.row
    partition.applied(replace(row, partition_epoch=row.partition_epoch + 1, sessions={**row.sessions, 2: SESSION}))
    partition.reported(2, Report(partition.log.log_end_offset, SESSION), partition.leader_epoch)
    applied, answered = partition.leader.in_sync.row, asyncio.Event()

    async def propose(proposals: list[PartitionProposal]) -> tuple[ErrorCode, ...]:
        if answered.is_set():
            await asyncio.sleep(3600)
        answered.set()
        return (ErrorCode.NONE,) * len(proposals)

    keeping = asyncio.ensure_future(IsrProposals(life.context.registry, propose, LAG_MS, Beats()).keep())
    async with asyncio.timeout(60.0):
        await answered.wait()
    await asyncio.sleep(5.0)
    assert not keeping.done() and partition.leader.in_sync.row == applied
    assert partition.leader.in_sync.union == {partition.leader.node_id, 2} and not partition.leader.in_sync.is_settled
    keeping.cancel()
    await life.stop()
