"""What the controller of a run decides of the one topic: rows by the product's own rules, on what it can know.

Owns topics' ids, what was acknowledged in each, and what an acknowledgement still promises. Always true: a replica
joins the in-sync set only in the very step in which its leader takes the row, and holds all then, flushed (the leader
acknowledges alone until it knows of the other); what an in-sync set acknowledged is promised until its partition begins
uncleanly, and no other record has its offset then. Must not know faults or time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from broker.metadata.image import Topic
from broker.metadata.records import NO_LEADER, Row, RowsSet, TopicCreated, TopicDeleted
from broker.metadata.row_steps import next_row, with_leader, with_replicas
from broker.metadata.rows import begun_uncleanly, proposed, session_began, sessions_ended
from broker.replication.follower import Phase
from tests.sim.pair.brokers import Brokers
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import NAME

FIRST_ID = 77
OF_ITS_OWN = 8
"""Leader epochs that a process may have begun by its own image, before it was told of this one."""


@dataclass
class Promises:
    """Of one topic: values by offset. `may_be_gone`: acknowledged before the last unclean start."""

    acked: dict[int, bytes] = field(default_factory=dict)
    may_be_gone: dict[int, bytes] = field(default_factory=dict)

    def acknowledged(self, offset: int, value: bytes) -> None:
        known = self.acked.get(offset) or self.may_be_gone.get(offset)
        assert known is None or known == value, f"two records acknowledged at {offset}: {known!r} and {value!r}"
        self.acked[offset] = value

    def begun_uncleanly(self) -> None:
        self.may_be_gone.update(self.acked)
        self.acked.clear()


class Controller:
    """Decides; `Brokers.publish` tells."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._count = FIRST_ID
        self.topic_id = ""
        self.promises = Promises()

    @property
    def topic(self) -> Topic:
        return self._brokers.image.topics[self.topic_id]

    @property
    def row(self) -> Row:
        return self.topic.rows[0]

    @property
    def has_topic(self) -> bool:
        """Whether there is one now."""
        return self.topic_id in self._brokers.image.topics

    def _set(self, row: Row) -> None:
        self._brokers.note(RowsSet(self.topic_id, ((0, row),)))

    def is_active(self, node_id: int) -> bool:
        node = self._brokers.image.nodes.get(node_id)
        return node is not None and node.active

    # --- topics ---
    def make(self, replicas: tuple[int, ...], leader: int, configs: dict[str, str]) -> None:
        in_sync = tuple(node_id for node_id in replicas if self.is_active(node_id))
        self._count += 1
        self.topic_id = id_of(self._count)
        first = leader if leader in in_sync else next(iter(in_sync), NO_LEADER)
        row = Row(replicas, first, 0, 0, in_sync, 0)
        self._brokers.note(TopicCreated(self.topic_id, NAME, (row,), configs))
        self.promises = Promises()

    def delete(self) -> None:
        self._brokers.note(TopicDeleted(self.topic_id))

    # --- rows ---
    def elect(self, leader: int) -> bool:
        """It leads from the next epoch on, or nobody; whether it may."""
        row = self.row
        if leader != NO_LEADER and (leader not in row.in_sync or not self.is_active(leader)):
            return False
        self._set(next_row(row, with_leader(row, leader)))
        return True

    def begin_uncleanly(self, leader: int) -> bool:
        """It begins without all that was acknowledged, as when the whole in-sync set is lost."""
        row = self.row
        if leader not in row.replicas or not self.is_active(leader):
            return False
        self.promises.begun_uncleanly()
        self._set(next_row(row, replace(with_leader(row, NO_LEADER), in_sync=())))
        self._set(begun_uncleanly(self._brokers.image, self.topic, 0, leader))
        return True

    def move_off(self, node_id: int) -> bool:
        """The other one holds it alone; whether it can."""
        row = self.row
        others = tuple(other for other in row.replicas if other != node_id)
        if not row.clean or not any(other in row.in_sync for other in others):
            return False
        self._set(next_row(row, with_replicas(self._brokers.image, row, others)))
        return True

    def move_on(self, node_id: int) -> bool:
        """It is to hold it too."""
        row = self.row
        if node_id in row.assigned or not row.clean:
            return False
        self._set(next_row(row, with_replicas(self._brokers.image, row, row.replicas, (*row.replicas, node_id))))
        return True

    # --- sessions ---
    def ended(self, node_id: int) -> None:
        """Its process is gone."""
        node = self._brokers.image.nodes.get(node_id)
        if node is None or not node.active:
            return
        self._brokers.note(replace(node, active=False))
        for change in sessions_ended(self._brokers.image, [node_id]):
            self._brokers.note(change)

    def began(self, node_id: int, *, has_lost: bool) -> None:
        """Its next process has a session; `has_lost`: power went, and acks meant the page cache."""
        if not self.has_topic:
            return
        topic_id, row = self.topic_id, self.row
        lost = [(topic_id, 0)] if has_lost else []
        for change in session_began(self._brokers.image, node_id, is_other_directory=False, lost_logs=lost):
            self._brokers.note(change)
        after = with_leader(replace(self.row, leader_epoch=self.row.leader_epoch + OF_ITS_OWN), self.row.leader)
        self._set(next_row(self.row, after))
        if self.row.unclean_epoch != row.unclean_epoch or (row.in_sync and not self.row.in_sync):
            self.promises.begun_uncleanly()

    # --- what leaders ask for ---
    def tend(self) -> None:
        """An unclean start that is done serves, an empty set begins again, who holds all is in sync."""
        if not self.has_topic:
            return
        row = self.row
        if not row.in_sync:
            self._begin_again(row.replicas)
        elif not row.clean:
            self._serve(row)
        elif missing := [node_id for node_id in row.assigned if node_id not in row.in_sync]:
            self._take_in(row, missing[0])

    def _begin_again(self, replicas: Collection[int]) -> None:
        leader = next((node_id for node_id in replicas if self.is_active(node_id)), None)
        if leader is not None and self.begin_uncleanly(leader):
            self._brokers.publish()

    def _serve(self, row: Row) -> None:
        life = self._brokers.lives.get(row.leader)
        if life is None or life.broker.components.server is None:
            return
        found = life.context.registry.starting.get((NAME, 0))
        if found is not None and str(found.topic_id) == self.topic_id and found.leader_epoch == row.leader_epoch:
            self._set(proposed(self._brokers.image, self.topic, 0, row.in_sync, is_done=True))
            self._brokers.publish()

    def _take_in(self, row: Row, node_id: int) -> None:
        lives = self._brokers.lives
        if row.leader not in lives or node_id not in lives or not self.is_active(node_id):
            return
        leads = lives[row.leader].context.registry.partitions.get((NAME, 0))
        copy = lives[node_id].context.registry.followed.get((NAME, 0))
        if leads is None or copy is None or not leads.leading:
            return
        epochs = {leads.leader_epoch, copy.leader_epoch, row.leader_epoch}
        topics = {str(leads.topic_id), str(copy.topic_id), self.topic_id}
        if len(epochs) > 1 or len(topics) > 1 or copy.failure:
            return
        if copy.follower.phase is not Phase.FOLLOWING:
            return  # whether its log agrees with the leader's is not known yet
        if min(copy.follower.end, copy.log.stable_end_offset) < leads.log.log_end_offset:
            return
        before = self._brokers.image
        self._set(proposed(before, self.topic, 0, (*row.in_sync, node_id), is_done=False))
        self._brokers.publish(row.leader)
        if leads.leader.in_sync.row.partition_epoch != self.row.partition_epoch:
            self._set(proposed(self._brokers.image, self.topic, 0, row.in_sync, is_done=False))
