"""Rows, leaders and followers together: whatever comes late, twice or never, a clean leader has what was acknowledged.

Three replicas of one partition, a controller that commits rows one at a time, brokers that apply them late. Every
message (fetch, answer, proposal) waits in a bag: any may come next, again, or never. Processes restart, which costs
what was not flushed; sessions end; min.insync.replicas goes from 1 to 2 and back. No directory is lost here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.replication.follower import Cut, FetchPosition, Follower, Phase, Take
from broker.replication.in_sync import AppliedRow
from broker.replication.leader import Leader, Report
from logformat.leader_epochs import EpochEnd, LeaderEpochs
from seams.rng import SeededRng

NODES = (0, 1, 2)
NOBODY = -1
RECORDS_MAX, MESSAGES_MAX, BATCH_MAX = 30, 6, 2
ROUGH_ONE_IN = 10
Record = tuple[int, int]  # leader epoch, name


@dataclass(frozen=True)
class Image:
    """What the controller committed: one row, the minimum, the sessions."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[int, ...]
    minimum: int
    sessions: tuple[tuple[int, int], ...]  # (node, broker epoch)

    def row(self) -> AppliedRow:
        in_sync = frozenset(self.in_sync)
        return AppliedRow(self.leader_epoch, self.partition_epoch, in_sync, self.minimum, dict(self.sessions))

    def settled(self) -> Image:
        """As the controller leaves it: another leader where this one has no session, members without one dropped, never
        below the minimum, and only under an active leader."""
        active = dict(self.sessions)
        after = self
        if self.leader not in active:
            leader = next((node for node in self.in_sync if node in active), NOBODY)
            if leader != self.leader:
                after = replace(after, leader=leader, leader_epoch=self.leader_epoch + 1)
        if after.leader != NOBODY:
            in_sync = list(after.in_sync)
            for node in self.in_sync:
                if node not in active and len(in_sync) > after.minimum:
                    in_sync.remove(node)
            after = replace(after, in_sync=tuple(in_sync))
        is_other = (after.leader_epoch, after.in_sync) != (self.leader_epoch, self.in_sync)
        return replace(after, partition_epoch=self.partition_epoch + 1) if is_other else after


class Fetch(NamedTuple):
    """In a socket to `to`."""

    node: int
    broker_epoch: int
    to: int
    position: FetchPosition


class Answer(NamedTuple):
    fetch: Fetch
    diverging: EpochEnd | None
    records: tuple[Record, ...]
    high_watermark: int


class Proposal(NamedTuple):
    leader: int
    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]


class Replica:
    def __init__(self, node: int) -> None:
        self.node = node
        self.log: list[Record] = []
        self.flushed = 0
        self.begun: list[Record] = []  # (epoch, start) of epochs that it led, with or without a record
        self.mark = 0
        self.seen = -1
        self.applied: Image | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.broker_epoch = 0

    @property
    def lineage(self) -> LeaderEpochs:
        starts: dict[int, int] = {}
        for offset, (epoch, _) in enumerate(self.log):
            starts.setdefault(epoch, offset)
        for epoch, start in self.begun:
            starts.setdefault(epoch, start)
        found = LeaderEpochs()
        for epoch in sorted(starts):
            found = found.assign(epoch, starts[epoch])
        return found

    def apply(self, image: Image) -> None:
        before, self.applied = self.applied, image
        if before is not None and before.leader_epoch == image.leader_epoch:
            if self.leader is not None:
                self.leader.applied(image.row())
            return
        self.keep()
        self.leader = None
        if image.leader == self.node:
            self.follower = None
            end = len(self.log)
            self.begun.append((image.leader_epoch, end))
            row = image.row()
            self.leader = Leader(self.node, row, epoch_start=end, high_watermark=self.mark, own_end=self.flushed)
            return
        if self.follower is None:
            self.flushed = len(self.log)  # its tail is synced before its first fetch (D65)
            self.follower = Follower(self.lineage, self.flushed, self.mark, self.seen)
        self.follower.begin(image.leader_epoch)

    def keep(self) -> None:
        if self.leader is not None:
            self.mark = max(self.mark, self.leader.high_watermark)
        if self.follower is not None:
            self.mark, self.seen = self.follower.high_watermark, self.follower.seen_epoch

    def restart(self, *, is_power_cut: bool) -> None:
        self.keep()
        self.mark = 0 if is_power_cut else self.mark  # a checkpoint may be old
        if is_power_cut:
            del self.log[self.flushed :]
        self.flushed = len(self.log)
        self.begun = [(epoch, start) for epoch, start in self.begun if start < len(self.log)]
        self.mark = min(self.mark, self.flushed)
        self.applied = self.leader = self.follower = None


class Walk:
    """`step(number)`: one of the things that may happen now."""

    def __init__(self) -> None:
        self.replicas = [Replica(node) for node in NODES]
        self.images = [Image(0, 1, 1, NODES, 1, ((0, 1), (1, 2), (2, 3)))]
        self.next_broker_epoch, self.name = 4, 0
        self.fetches: list[Fetch] = []
        self.answers: list[Answer] = []
        self.proposals: list[Proposal] = []
        self.acknowledged: list[Record] = []
        self.acks = self.elections = self.cuts = self.joins = 0
        for replica in self.replicas:
            replica.broker_epoch = replica.node + 1
            replica.apply(self.images[0])

    @property
    def now(self) -> Image:
        return self.images[-1]

    def commit(self, image: Image) -> None:
        before, after = self.now, image.settled()
        self.images.append(after)
        if after.leader_epoch != before.leader_epoch and after.leader != NOBODY:
            self.elections += 1
            log = self.replicas[after.leader].log
            assert log[: len(self.acknowledged)] == self.acknowledged, "a clean leader lacks what was acknowledged"

    def step(self, number: int) -> None:
        kinds, at = self.events(), number // ROUGH_ONE_IN
        events = kinds[number % ROUGH_ONE_IN == 0] or kinds[1]
        marks = [self.mark_of(replica) for replica in self.replicas]
        events[at % len(events)]()
        for replica, (epoch, mark) in zip(self.replicas, marks, strict=True):
            now = self.mark_of(replica)
            assert now[0] != epoch or now[1] >= mark, "a high watermark fell within a leader epoch"
            assert replica.follower is None or replica.follower.phase is not Phase.OFFLINE
        self.acknowledge()

    @staticmethod
    def mark_of(replica: Replica) -> tuple[object, int]:
        role = replica.leader or replica.follower
        assert role is not None or replica.applied is None
        return (id(role), replica.applied), 0 if role is None else role.high_watermark

    def acknowledge(self) -> None:
        for replica in self.replicas:
            led = replica.leader
            if led is None or led.high_watermark <= len(self.acknowledged) or not led.takes_all:
                continue
            end = led.high_watermark
            assert replica.log[: len(self.acknowledged)] == self.acknowledged
            self.acknowledged = replica.log[:end]
            self.acks += 1
            for node in self.now.in_sync:
                other = self.replicas[node]
                assert other.flushed >= end and other.log[:end] == self.acknowledged, "a member of the set lacks it"

    def events(self) -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:
        """What a calm day brings, and what a rough one does."""
        found: list[Callable[[], None]] = []
        rough: list[Callable[[], None]] = [lambda: self.commit(replace(self.now, minimum=3 - self.now.minimum))]
        active = dict(self.now.sessions)
        for replica in self.replicas:
            is_active = active.get(replica.node) == replica.broker_epoch
            found += self._of(replica, is_active=is_active)
            if is_active:
                rough += [lambda node=replica.node: self._end(node), lambda of=replica: self._begin(of, False)]
                rough.append(lambda of=replica: self._begin(of, True))
            else:
                found += [lambda of=replica: self._begin(of, True), lambda of=replica: self._begin(of, False)]
        found += [lambda i=i: self._serve(i) for i in range(len(self.fetches))] * 2
        found += [lambda i=i: self._answer(i) for i in range(len(self.answers))] * 2
        found += [lambda i=i: self._decide(i) for i in range(len(self.proposals))] * 2
        rough += [lambda node=node: self._move(node) for node in self.now.in_sync if node in active]
        return found, rough

    def _of(self, replica: Replica, *, is_active: bool) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if is_active and replica.applied is not self.now:
            found += [lambda: replica.apply(self.now), lambda: self._apply_next(replica)] * 2
        if (led := replica.leader) is not None:
            if self.name < RECORDS_MAX:
                found += [lambda: self._append(replica)] * 2
            if replica.flushed < len(replica.log):
                found += [lambda: self._flush(replica)] * 2
            if len(self.proposals) < MESSAGES_MAX:
                found += [lambda n=n: self._propose(replica, n, True) for n in NODES if led.may_join(n)] * 3
                found += [lambda n=n: self._propose(replica, n, False) for n in led.in_sync.union - {replica.node}]
        if (
            (follower := replica.follower) is not None
            and (position := follower.next_fetch()) is not None
            and replica.applied is not None
            and replica.applied.leader != NOBODY
            and len(self.fetches) < MESSAGES_MAX
        ):
            fetch = Fetch(replica.node, replica.broker_epoch, replica.applied.leader, position)
            found += [lambda: self.fetches.append(fetch)] * 3
        return found

    def _apply_next(self, replica: Replica) -> None:
        at = -1 if replica.applied is None else self.images.index(replica.applied)
        mine = (replica.node, replica.broker_epoch)
        following = [image for image in self.images[at + 1 :] if mine in image.sessions]
        replica.apply(following[0])

    def _append(self, replica: Replica) -> None:
        assert replica.leader is not None
        replica.log.append((replica.leader.in_sync.row.leader_epoch, self.name))
        self.name += 1

    def _flush(self, replica: Replica) -> None:
        assert replica.leader is not None
        replica.flushed = len(replica.log)
        replica.leader.flushed(replica.flushed)

    def _serve(self, index: int) -> None:
        """A third of what is served stays in the socket: it comes again."""
        fetch = self.fetches[index] if (self.name + index) % 3 == 0 else self.fetches.pop(index)
        replica, asked = self.replicas[fetch.to], fetch.position
        led = replica.leader
        if led is None or asked.leader_epoch != led.in_sync.row.leader_epoch:
            return
        if led.in_sync.row.sessions.get(fetch.node) != fetch.broker_epoch or len(self.answers) >= MESSAGES_MAX:
            return
        mark = led.high_watermark
        if asked.last_fetched_epoch >= 0:
            end = replica.lineage.end_offset_for(asked.last_fetched_epoch, len(replica.log))
            if end.epoch != asked.last_fetched_epoch or end.end_offset < asked.offset:
                self.answers.append(Answer(fetch, end, (), mark))
                return
        elif asked.offset > len(replica.log):
            return
        led.reported(fetch.node, Report(asked.offset, fetch.broker_epoch), asked.leader_epoch)
        records = tuple(replica.log[asked.offset : asked.offset + BATCH_MAX])
        self.answers.append(Answer(fetch, None, records, led.high_watermark))

    def _answer(self, index: int) -> None:
        answer = self.answers.pop(index)
        fetch, replica = answer.fetch, self.replicas[answer.fetch.node]
        follower = replica.follower
        if follower is None or fetch.broker_epoch != replica.broker_epoch:
            return
        match follower.answered(fetch.position, answer.diverging, answer.high_watermark):
            case Cut(offset):
                self.cuts += 1
                del replica.log[offset:]
                replica.flushed = len(replica.log)
                replica.begun = [(epoch, start) for epoch, start in replica.begun if start < offset]
                follower.cut(replica.lineage, offset)
            case Take() if answer.records:
                replica.log += answer.records
                replica.flushed = len(replica.log)
                follower.flushed(replica.lineage, replica.flushed)

    def _propose(self, replica: Replica, node: int, joins: bool) -> None:
        led = replica.leader
        assert led is not None
        target = led.in_sync.row.in_sync | {node} if joins else led.in_sync.row.in_sync - {node}
        at, epochs = led.propose(target)
        epoch = led.in_sync.row.leader_epoch
        self.proposals.append(Proposal(replica.node, epoch, at, tuple(sorted(epochs.items()))))

    def _decide(self, index: int) -> None:
        """The controller: by epochs, sessions and the minimum; always a row (R17)."""
        asked, now = self.proposals.pop(index), self.now
        if (asked.leader, asked.leader_epoch, asked.partition_epoch) != (
            now.leader,
            now.leader_epoch,
            now.partition_epoch,
        ):
            return
        members = dict(asked.members)
        joiners = members.keys() - set(now.in_sync)
        if any(dict(now.sessions).get(node) != members[node] for node in joiners):
            return
        if len(members) < min(now.minimum, len(now.in_sync)):
            return
        self.joins += bool(joiners)
        self.commit(replace(now, in_sync=tuple(sorted(members)), partition_epoch=now.partition_epoch + 1))

    def _move(self, node: int) -> None:
        now = self.now
        self.commit(
            replace(now, leader=node, leader_epoch=now.leader_epoch + 1, partition_epoch=now.partition_epoch + 1)
        )

    def _end(self, node: int) -> None:
        sessions = tuple((of, epoch) for of, epoch in self.now.sessions if of != node)
        self.commit(replace(self.now, sessions=sessions))

    def _begin(self, replica: Replica, is_power_cut: bool) -> None:
        """A new process, or the same one whose session ended: registering ends the session before, in one commit."""
        active = dict(self.now.sessions)
        if is_power_cut or active.get(replica.node) == replica.broker_epoch:
            replica.restart(is_power_cut=is_power_cut)
        now = replace(self.now, sessions=tuple((of, epoch) for of, epoch in active.items() if of != replica.node))
        now = now.settled()
        replica.broker_epoch = self.next_broker_epoch
        self.next_broker_epoch += 1
        self.commit(
            replace(now, sessions=tuple(sorted({**dict(now.sessions), replica.node: replica.broker_epoch}.items())))
        )


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 1 << 20), max_size=150))
def test_whatever_happens_a_clean_leader_has_what_was_acknowledged(numbers: list[int]) -> None:
    """The claim of the design, as the machines have it (D1, D2, D3, D5, D18, D19, D65, D68, D69)."""
    walk = Walk()
    for number in numbers:
        walk.step(number)


def test_walks_do_acknowledge_elect_cut_and_join() -> None:
    """The same from seeds, long enough for each of the four to happen thousands of times or hundreds."""
    acks = elections = cuts = joins = 0
    for seed in range(600):
        rng, walk = SeededRng(seed), Walk()
        for _ in range(250):
            walk.step(rng.randrange(1 << 20))
        acks, elections = acks + walk.acks, elections + walk.elections
        cuts, joins = cuts + walk.cuts, joins + walk.joins
    assert acks > 300 and elections > 1_000 and cuts > 100 and joins > 100, (acks, elections, cuts, joins)
