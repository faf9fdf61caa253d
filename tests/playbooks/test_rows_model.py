"""The controller's decisions on rows over a model of what lies on disks: who is in sync has what was acknowledged (R4).

Every event that makes rows comes through its own decision (registrations, silence, proposals, elections, fitness,
moves, lost logs, nodes given up, unclean starts), in any order, over partitions that share their nodes. The model knows
what no controller knows: which disk truly holds what.
"""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.controller.broker_rpc import PartitionProposal, ProposalsRequest, SessionRequest
from broker.controller.decisions.alter_partition import decide
from broker.controller.decisions.elections import ElectionType, elect
from broker.controller.decisions.fitness import Fitness, moved
from broker.controller.decisions.reassignments import DONE, Move, reassign
from broker.controller.decisions.registrations import claim_records, end_records, forget, lost_logs, register
from broker.controller.unclean_recovery import Chosen, begin
from broker.errors import ApiError
from broker.membership.identity import DirectoryIdentity
from broker.membership.lost_logs import lost_logs as lost_of_directory
from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage, Row, check
from broker.metadata.records import FORGOTTEN, NO_LEADER, ConfigsSet, MetadataRecord, RowsSet, TopicCreated
from broker.metadata.rows import config_changed, new_rows
from logformat.values import TopicPartition
from tests.support.brokers.cluster_kit import CLUSTER, id_of, session

TOPIC, NAME = id_of(1), "t"
NODES = (1, 2, 3, 4)
ASSIGNED = ((1, 2, 3), (3, 1, 4), (2, 4), (4,), (2, 3, 1))
node_ids, indexes = st.sampled_from(NODES), st.integers(0, len(ASSIGNED) - 1)


class RowsOverDisks(RuleBasedStateMachine):
    """`holders`: by partition, whose disk has all that was acknowledged. `untold`: disks that lack some of it, of which
    the controller was not told yet."""

    def __init__(self) -> None:
        super().__init__()
        image = ClusterImage().with_records(
            [session(f"{n}a", node_id=n, broker_epoch=n, directory_id=f"d{n}") for n in NODES]
        )
        self.image = image.with_records([TopicCreated(TOPIC, NAME, new_rows(image, ASSIGNED), {})])
        self.holders = [set(assigned) for assigned in ASSIGNED]
        self.untold: set[tuple[int, int]] = set()
        self.gone: set[tuple[int, int]] = set()  # of those, the ones whose log is not there at all
        self.kept: set[tuple[int, int]] = set()  # damaged, and nobody has more: a person decides
        self.directories = {n: f"d{n}" for n in NODES}
        self.processes = 0

    @initialize(minimum=st.sampled_from("123"))
    def begin_with(self, minimum: str) -> None:
        self.configure(minimum)

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def rows(self) -> tuple[Row, ...]:
        return self.image.topics[TOPIC].rows

    def commit(
        self, records: Sequence[MetadataRecord], excused: Sequence[tuple[int, int]] = (), steps: int = 1
    ) -> None:
        """`excused`: (partition, node) that leave for what they lack; `steps`: a row changes at most so often."""
        before, after = self.image, self.image.with_records(records)
        check(after, before)
        self.image = after
        changed = {index for r in records if isinstance(r, RowsSet) for index, _ in r.rows}
        for index, (old, row) in enumerate(zip(before.topics[TOPIC].rows, self.rows, strict=True)):
            assert (row is not old) == (index in changed)
            if row is not old:
                self._follows(index, old, row, excused, steps)
        self.kept = {(index, node) for index, node in self.kept if node in self.rows[index].in_sync}

    def _follows(self, index: int, old: Row, row: Row, excused: Sequence[tuple[int, int]], steps: int) -> None:
        assert 1 <= row.partition_epoch - old.partition_epoch <= steps
        gone = {*old.replicas, *old.target} - {*row.replicas, *row.target}
        assert not gone or row.leader_epoch == old.leader_epoch + 1, "a report of who left outlives nothing (R16)"
        for node in gone:  # what it had is removed, and nobody counts on it
            self.holders[index].discard(node)
            for told in (self.untold, self.gone, self.kept):
                told.discard((index, node))
        assert (row.leader != old.leader) <= row.leader_epoch - old.leader_epoch <= steps
        assert row.unclean_epoch in (old.unclean_epoch, row.leader_epoch)
        if row.unclean_epoch != old.unclean_epoch:
            self.holders[index] = {row.leader}
            self.untold -= {(index, node) for node in row.assigned}
            self.kept -= {(index, node) for node in row.assigned}
            return
        left = set(old.in_sync) - set(row.in_sync) - {node for at, node in excused if at == index}
        least = effective_min(self.image.topics[TOPIC], row, self.image)
        assert not left or len(row.in_sync) >= least, f"{left} left below the minimum of {least}: {row}"
        assert all(node in self.holders[index] or self._lacks(index, node) for node in row.in_sync), "who joined"
        if row.leader not in (NO_LEADER, old.leader):
            joined = row.leader in row.in_sync and row.leader in self.holders[index]
            assert row.leader in old.in_sync or (old.target and not row.target and joined), "out of the set alone"
        if old.target and not row.target and row.replicas == old.target:
            there = {node for node in row.in_sync if self._has_session(node)}
            minimum = int(self.image.topics[TOPIC].configs["min.insync.replicas"])
            assert there.issuperset(old.adding) and len(there) >= min(minimum, len(row.replicas)), "D71"

    def _lacks(self, index: int, node: int) -> bool:
        return (index, node) in self.untold or (index, node) in self.kept

    def _assigned(self, index: int) -> tuple[int, ...]:
        return self.rows[index].assigned

    def _has_session(self, node: int) -> bool:
        return self.image.nodes[node].active

    # ── what happens to brokers ──────────────────────────────────────────────────────────────────────────────────
    @rule(node=node_ids)
    def silence(self, node: int) -> None:
        self.commit(end_records(self.image, [(node, self.image.nodes[node].broker_epoch)]))

    @rule(node=node_ids, how=st.sampled_from(("restart", "restart", "new disk", "log moved away")), index=indexes)
    def another_process(self, node: int, how: str, index: int) -> None:
        """It reads the image, and registers by it."""
        asked, told = self._begins(node, how, index)
        try:
            records = register(self.image, asked, CLUSTER, is_live=False, is_silent=True).records
        except ApiError:
            return
        self._is_told(told)
        self.commit(records, told)

    @rule(node=node_ids, how=st.sampled_from(("restart", "new disk", "log moved away")), index=indexes, other=node_ids)
    def claim(self, node: int, how: str, index: int, other: int) -> None:
        """Another process takes the controller epoch, and ends the session of the controller it replaces."""
        asked, told = self._begins(node, how, index)
        self._is_told(told)
        self.commit(claim_records(self.image, asked, other), told, steps=2)

    def _begins(self, node: int, how: str, index: int) -> tuple[SessionRequest, list[tuple[int, int]]]:
        """What a new process of a node asks, and which of its logs it tells to lack something."""
        if how == "new disk":
            self.directories[node] += "x"
            self._wipe(node, [at for at in range(len(ASSIGNED)) if node in self._assigned(at)])
        elif how == "log moved away" and node in self._assigned(index) and len(self._assigned(index)) > 1:
            self._wipe(node, [index])
            self.gone.add((index, node))
        known = self.image.nodes[node]
        lost = ()
        if self.directories[node] == known.directory_id:
            there = frozenset(
                TopicPartition(NAME, at)
                for at in range(len(ASSIGNED))
                if node in self._assigned(at) and (at, node) not in self.gone
            )
            lost = lost_of_directory(
                self.image, node, known.boot_id, DirectoryIdentity(CLUSTER, node, known.directory_id, True, there)
            )
        self.processes += 1
        asked = SessionRequest(
            node,
            CLUSTER,
            f"{node}-{self.processes}",
            self.directories[node],
            known.boot_id,
            known.listeners,
            previous_broker_epoch=known.broker_epoch,
            lost_logs=lost,
        )
        return asked, [(at, node) for at in range(len(ASSIGNED)) if self._lacks(at, node)]

    def _is_told(self, told: Sequence[tuple[int, int]]) -> None:
        self.untold -= set(told)
        self.gone -= set(told)

    def _wipe(self, node: int, partitions: Sequence[int]) -> None:
        for at in partitions:
            self.holders[at].discard(node)
            self.untold.add((at, node))

    @rule(node=node_ids, index=indexes)
    def damage(self, node: int, index: int) -> None:
        """A running broker finds that a log lacks something, and says so."""
        if node not in self._assigned(index) or len(self._assigned(index)) == 1 or not self._has_session(node):
            return
        self.holders[index].discard(node)
        before = self.rows[index]
        is_last = before.in_sync == (node,)
        if is_last:
            self.kept.add((index, node))
        found = lost_logs(self.image, (node, self.image.nodes[node].broker_epoch), [(TOPIC, index)])
        self.commit(found.records, [(index, node)])
        if is_last:
            assert self.rows[index] is before, "nobody has more than what is left of it"
        else:
            assert self.rows[index].leader_epoch == before.leader_epoch + 1, "no report of that log outlives it (R16)"

    @rule(node=node_ids)
    def give_up(self, node: int) -> None:
        """`cluster forget`: of a broker that is away."""
        try:
            records = forget(self.image, node).records
        except ApiError:
            assert self._has_session(node)
            return
        self.directories[node] += "y"
        for at in range(len(ASSIGNED)):
            if node in self._assigned(at):
                self.holders[at].discard(node)
        self.commit(records, [(at, node) for at in range(len(ASSIGNED))])
        assert not any(node in row.in_sync for row in self.rows)

    @rule(unfit=st.sets(node_ids, max_size=2), failed=st.sets(indexes, max_size=2))
    def unfit(self, unfit: set[int], failed: set[int]) -> None:
        """They say that they had better not lead, or that these logs of theirs failed."""
        places = tuple((TOPIC, at) for at in sorted(failed))
        says = {node: Fitness(unfit_all=not places, unfit=places) for node in unfit if self._has_session(node)}
        before = self.rows
        self.commit(moved(self.image, says).records)
        for index, (old, row) in enumerate(zip(before, self.rows, strict=True)):
            left = set(old.in_sync) - set(row.in_sync)
            assert not left or (left <= says.keys() and index in failed), "nobody leaves but whose log failed"

    # ── what happens to partitions ───────────────────────────────────────────────────────────────────────────────
    @rule(minimum=st.sampled_from("123"))
    def configure(self, minimum: str) -> None:
        config = ConfigsSet({"min.insync.replicas": minimum}, topic_id=TOPIC)
        self.commit([config, *config_changed(self.image.with_records([config]), TOPIC)])

    @rule(index=indexes)
    def acknowledge(self, index: int) -> None:
        """Something new is acknowledged: where the leader serves, enough are there, and every member has it."""
        row = self.rows[index]
        active = [node for node in row.in_sync if self._has_session(node)]
        least = effective_min(self.image.topics[TOPIC], row, self.image)
        is_led = row.leader != NO_LEADER and row.clean and len(active) >= least
        if is_led and not any(self._lacks(index, node) for node in row.in_sync):
            self.holders[index] = set(row.in_sync)

    @rule(index=indexes, data=st.data())
    def propose(self, index: int, data: st.DataObject) -> None:
        """By the leader, honestly about who caught up, and with any epochs and members else."""
        row = self.rows[index]
        if row.leader == NO_LEADER or self._lacks(index, row.leader):
            return
        members = data.draw(st.sets(st.sampled_from(self._assigned(index))), label="members")
        joiners = {node for node in members if node not in row.in_sync}
        if any(self._lacks(index, node) for node in joiners):
            return
        late = data.draw(st.sampled_from((0, 0, 0, 1)), label="epochs too old by")
        sessions = tuple(sorted((node, self.image.nodes[node].broker_epoch - late) for node in members))
        proposal = PartitionProposal((TOPIC, index), row.leader_epoch, row.partition_epoch - late, sessions)
        asked = ProposalsRequest(row.leader, self.image.nodes[row.leader].broker_epoch, (proposal,))
        records = decide(self.image, asked).records
        if not records:
            return
        assert not late and all(self._has_session(node) for node in joiners) and row.leader in members
        self.holders[index] |= joiners
        was_clean = row.clean
        self.commit(records)
        assert self.rows[index].clean and (was_clean or self.rows[index].served_epoch == row.leader_epoch)

    @rule(index=indexes)
    def prefer(self, index: int) -> None:
        preferred = self._assigned(index)[0]
        before = self.rows[index]
        self.commit(elect(self.image, ElectionType.PREFERRED, [(NAME, index)]).records)
        may = preferred in before.in_sync and self._has_session(preferred)
        assert self.rows[index].leader == (preferred if may else before.leader)

    @rule(index=indexes, wanted=st.lists(node_ids, min_size=1, max_size=4, unique=True))
    def reassign(self, index: int, wanted: list[int]) -> None:
        """Others are to hold it, or the same in another order; refused where too few would stay in sync, or for a node
        that was given up."""
        before = self.rows[index]
        decision = reassign(self.image, [Move(NAME, index, tuple(wanted))])
        (outcome,) = decision.answer
        self.commit(decision.records)
        row = self.rows[index]
        if outcome != DONE:
            names_given_up = any(self.image.nodes[node].directory_id == FORGOTTEN for node in wanted)
            assert row is before
            assert before.target or names_given_up, "only a move under way is held to what it would drop"
        elif set(wanted) == set(before.replicas):
            assert (row.replicas, row.target) == (tuple(wanted), ())
        else:
            assert tuple(wanted) in (row.target, row.replicas)

    @rule(index=indexes)
    def cancel(self, index: int) -> None:
        """Who held it before does again."""
        before = self.rows[index]
        decision = reassign(self.image, [Move(NAME, index, None)])
        self.commit(decision.records)
        if decision.answer[0] == DONE:
            assert before.target and (self.rows[index].replicas, self.rows[index].target) == (before.replicas, ())
        else:
            assert self.rows[index] is before

    @precondition(lambda self: any(not row.in_sync for row in self.rows))
    @rule(index=indexes, node=node_ids)
    def begin_uncleanly(self, index: int, node: int) -> None:
        """Who was chosen among those that were heard."""
        row = self.rows[index]
        if row.in_sync or node not in self._assigned(index) or not self._has_session(node):
            return
        self.commit(
            begin(
                self.image,
                [
                    Chosen(
                        (TOPIC, index), row.leader_epoch, row.partition_epoch, node, self.image.nodes[node].broker_epoch
                    )
                ],
            ).records
        )
        assert self.rows[index].leader == node and not self.rows[index].clean

    # ── what always holds ────────────────────────────────────────────────────────────────────────────────────────
    @invariant()
    def who_is_in_sync_has_everything(self) -> None:
        for index, row in enumerate(self.rows):
            for node in row.in_sync:
                assert node in self.holders[index] or self._lacks(index, node), (
                    f"{node} of {row}: {self.holders[index]}"
                )

    @invariant()
    def whoever_may_lead_does(self) -> None:
        """But where its log failed: then nobody does, until an event tries again."""
        for row in self.rows:
            assert row.leader == NO_LEADER or (row.leader in row.in_sync and self._has_session(row.leader))
            assert row.clean or (len(row.in_sync) <= 1 and row.served_epoch < row.unclean_epoch)


TestRowsOverDisks = RowsOverDisks.TestCase
TestRowsOverDisks.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
