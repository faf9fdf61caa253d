"""The follower machine, and every short conversation between it and a leader: KIP-101, 279, 320, 595."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from broker.replication.follower import Cut, FetchPosition, Follower, Phase, Take
from broker.replication.in_sync import AppliedRow
from broker.replication.leader import Leader, Report
from logformat.leader_epochs import EpochEnd, LeaderEpochs


def lineage(*starts: tuple[int, int]) -> LeaderEpochs:
    found = LeaderEpochs()
    for epoch, start in starts:
        found = found.assign(epoch, start)
    return found


def asked(follower: Follower) -> FetchPosition:
    found = follower.next_fetch()
    assert found is not None
    return found


def test_nothing_moves_before_the_first_clean_answer() -> None:
    """KAFKA-14704: a high watermark raised before the cut would show what is cut."""
    follower = Follower(lineage((1, 0)), 10, 4)
    follower.begin(2)
    assert follower.next_fetch() == FetchPosition(10, 1, 2)
    assert follower.answered(asked(follower), EpochEnd(1, 7), 9) == Cut(7)
    assert follower.high_watermark == 4 and follower.next_fetch() is None
    follower.cut(lineage((1, 0)), 7)
    assert isinstance(follower.answered(asked(follower), None, 9), Take)
    assert (follower.high_watermark, follower.phase, follower.seen_epoch) == (7, Phase.FOLLOWING, 2)
    follower.flushed(lineage((1, 0), (2, 7)), 8)
    assert follower.high_watermark == 8 and follower.next_fetch() == FetchPosition(8, 2, 2)


def test_cluster_d23_the_same_leader_in_a_new_epoch_is_asked_anew() -> None:
    """KAFKA-7164: it may have come back with less; what was agreed in the epoch before says nothing."""
    follower = Follower(lineage((1, 0)), 5, 5)
    follower.begin(1)
    follower.answered(asked(follower), None, 5)
    before = asked(follower)
    follower.begin(2)
    assert follower.phase is Phase.RECONCILING
    assert follower.answered(before, None, 9) is None, "an answer of the epoch before"


def test_an_answer_that_comes_twice_is_taken_once() -> None:
    """What it answered is flushed already: the next question is another one."""
    follower = Follower(LeaderEpochs(), 0, 0)
    follower.begin(1)
    first = asked(follower)
    assert isinstance(follower.answered(first, None, 3), Take)
    follower.flushed(lineage((1, 0)), 3)
    assert follower.answered(first, None, 3) is None


def test_cluster_d22_an_epoch_of_its_own_without_a_record_goes_before_anything_is_taken() -> None:
    """KAFKA-10706: it led, wrote nothing, and the next leader has older records where that epoch begins. The lineages
    agree below, so nothing shows divergence, and the leader's records would not follow that epoch."""
    follower = Follower(lineage((1, 0), (2, 4)), 4, 4)
    follower.begin(3)
    assert asked(follower) == FetchPosition(4, 1, 3)
    assert follower.answered(asked(follower), None, 6) == Cut(4)
    follower.cut(lineage((1, 0)), 4)
    assert isinstance(follower.answered(asked(follower), None, 6), Take) and follower.phase is Phase.FOLLOWING
    follower.flushed(lineage((1, 0), (3, 6)), 6)
    assert follower.next_fetch() == FetchPosition(6, 1, 3), "one that its leader began is not asked about again"
    assert isinstance(follower.answered(asked(follower), None, 6), Take)


@pytest.mark.parametrize(
    ("mine", "end", "leaders", "at"),
    [
        (lineage((1, 0)), 10, EpochEnd(1, 6), 6),  # KIP-101: the leader has less of our epoch
        (lineage((1, 0), (3, 6)), 10, EpochEnd(2, 8), 6),  # KIP-279: an epoch we lack; ours of before ends at 6
        (lineage((1, 0), (3, 6)), 10, EpochEnd(1, 4), 4),
        (lineage((5, 0)), 10, EpochEnd(2, 3), 0),  # nothing of ours is older
    ],
)
def test_a_log_is_cut_where_the_lineages_part(mine: LeaderEpochs, end: int, leaders: EpochEnd, at: int) -> None:
    """Never above either end of the last epoch that both may have."""
    follower = Follower(mine, end, 0)
    follower.begin(9)
    assert follower.answered(asked(follower), leaders, 0) == Cut(at)


def test_cluster_d25_what_is_committed_is_not_cut_but_for_an_unclean_start() -> None:
    """It goes offline and says so; an unclean epoch that it has seen already is no leave to cut again."""
    for unclean, seen, phase in ((-1, 1, Phase.OFFLINE), (1, 1, Phase.OFFLINE), (2, 1, Phase.CUTTING)):
        follower = Follower(lineage((1, 0)), 10, 8, seen_epoch=seen)
        follower.begin(3, unclean)
        found = follower.answered(asked(follower), EpochEnd(1, 6), 0)
        assert follower.phase is phase and found == (Cut(6) if phase is Phase.CUTTING else None)
        assert follower.high_watermark == (6 if phase is Phase.CUTTING else 8)
        if phase is Phase.OFFLINE:
            follower.begin(4)
            assert follower.next_fetch() is None, "nobody else may clear it either"


# ── every short conversation ─────────────────────────────────────────────────────────────────────────────────────────
class Answer(NamedTuple):
    """What the leader sent: of which question, in which epoch."""

    to: FetchPosition
    diverging: EpochEnd | None
    records: tuple[tuple[int, int], ...]
    high_watermark: int


Log = tuple[tuple[int, int], ...]  # (epoch, name) of every record
Event = str


def lineage_of(log: Log, epochs: tuple[tuple[int, int], ...]) -> LeaderEpochs:
    found = LeaderEpochs()
    starts = {epoch: offset for offset, (epoch, _) in reversed(tuple(enumerate(log)))} | dict(epochs)
    for epoch in sorted(starts):
        found = found.assign(epoch, starts[epoch])
    return found


class Pair:
    """Two replicas, both in the in-sync set all the time: 0 leads first, elections alternate. Each record is flushed
    as it is appended. Messages wait in bags: any may come next, or never."""

    def __init__(self) -> None:
        self.logs: list[Log] = [(), ()]
        self.begun: list[tuple[tuple[int, int], ...]] = [((1, 0),), ()]  # epochs without a record, too
        self.epoch, self.name, self.lives = 1, 0, [1, 1]
        self.marks = [0, 0]
        self.committed: Log = ()
        self.fetches: list[tuple[FetchPosition, int]] = []
        self.answers: list[Answer] = []
        self.elections = self.restarts = 0
        self._roles()

    @property
    def at(self) -> int:
        return (self.epoch + 1) % 2

    def _roles(self) -> None:
        at, other = self.at, 1 - self.at
        end = len(self.logs[at])
        row = AppliedRow(self.epoch, 1, frozenset((0, 1)), 1, dict(enumerate(self.lives)))
        self.leader = Leader(at, row, epoch_start=end, high_watermark=self.marks[at], own_end=end)
        self.follower = Follower(self._lineage(other), len(self.logs[other]), self.marks[other])
        self.follower.begin(self.epoch)

    def _lineage(self, node: int) -> LeaderEpochs:
        return lineage_of(self.logs[node], self.begun[node])

    def events(self) -> list[Event]:
        found = ["append"] if self.name < 3 else []
        if self.follower.next_fetch() is not None and len(self.fetches) < 2:
            found.append("fetch")
        found += [f"serve{i}" for i in range(len(self.fetches))]
        found += [f"answer{i}" for i in range(len(self.answers))]
        if self.elections < 2:
            found.append("elect")
        if self.restarts < 1:
            found.append("restart")
        return found

    def play(self, event: Event) -> None:
        at, other = self.at, 1 - self.at
        match event.rstrip("0123456789"), event[-1]:
            case "append", _:
                self.logs[at] += ((self.epoch, self.name),)
                self.name += 1
                self.leader.flushed(len(self.logs[at]))
            case "fetch", _:
                self.fetches.append((asked(self.follower), self.lives[other]))
            case "serve", index:
                self._serve(*self.fetches.pop(int(index)))
            case "answer", index:
                self._take(self.answers.pop(int(index)))
            case "elect", _:
                self.elections += 1
                self._note_marks()
                self.epoch += 1
                self.begun[self.at] = (*self.begun[self.at], (self.epoch, len(self.logs[self.at])))
                self._roles()
            case "restart", _:  # the follower's process: another broker epoch, an older high watermark
                self.restarts += 1
                self.lives[other] += 1
                self.marks[other] = 0
                self.follower = Follower(self._lineage(other), len(self.logs[other]), 0)
                self.follower.begin(self.epoch)
                row = replace(self.leader.in_sync.row, sessions=dict(enumerate(self.lives)))
                self.leader.applied(row)
        self._check()

    def _serve(self, fetch: FetchPosition, broker_epoch: int) -> None:
        at, other = self.at, 1 - self.at
        if fetch.leader_epoch != self.epoch:
            return  # FENCED_LEADER_EPOCH
        log = self.logs[at]
        if fetch.last_fetched_epoch >= 0:
            found = self._lineage(at).end_offset_for(fetch.last_fetched_epoch, len(log))
            if found.epoch != fetch.last_fetched_epoch or found.end_offset < fetch.offset:
                self.answers.append(Answer(fetch, found, (), self.leader.high_watermark))
                return
        elif fetch.offset > len(log):
            return
        self.leader.reported(other, Report(fetch.offset, broker_epoch), fetch.leader_epoch)
        self.answers.append(Answer(fetch, None, log[fetch.offset : fetch.offset + 1], self.leader.high_watermark))

    def _take(self, answer: Answer) -> None:
        other, follower = 1 - self.at, self.follower
        match follower.answered(answer.to, answer.diverging, answer.high_watermark):
            case Cut(offset):
                self.logs[other] = self.logs[other][:offset]
                self.begun[other] = tuple((e, start) for e, start in self.begun[other] if start < offset)
                follower.cut(self._lineage(other), offset)
            case Take() if answer.records:
                self.logs[other] += answer.records
                follower.flushed(self._lineage(other), len(self.logs[other]))

    def _note_marks(self) -> None:
        self.marks[self.at], self.marks[1 - self.at] = self.leader.high_watermark, self.follower.high_watermark

    def _check(self) -> None:
        mark = self.leader.high_watermark
        if mark > len(self.committed):
            self.committed = self.logs[self.at][:mark]
        assert self.follower.phase is not Phase.OFFLINE
        for node in (0, 1):
            assert self.logs[node][: len(self.committed)] == self.committed[: len(self.logs[node])], self.logs
        assert self.logs[self.at][: len(self.committed)] == self.committed, "a leader lacks what was acknowledged"
        assert self.follower.high_watermark <= len(self.committed)

    @property
    def state(self) -> object:
        f = self.follower
        return (
            tuple(self.logs), tuple(self.begun), self.epoch, tuple(self.lives), tuple(self.marks), self.committed,
            tuple(sorted(map(repr, [*self.fetches, *self.answers]))), self.elections, self.restarts,
            self.leader.high_watermark, tuple(sorted(self.leader._reports.items())), f.phase, f.end, f.high_watermark,
        )  # fmt: skip


def test_every_conversation_of_eight_events_keeps_what_was_acknowledged() -> None:
    """Every order of appends, fetches, answers late, lost or out of order, two elections and a restart: below what was
    ever committed both logs are the same, every leader has it, and nobody has to go offline."""
    seen: set[object] = {Pair().state}
    paths: list[tuple[Event, ...]] = [()]
    cut = committed_in_two_epochs = 0
    for _ in range(8):
        longer: list[tuple[Event, ...]] = []
        for path in paths:
            for event in replayed(path).events():
                pair = replayed((*path, event))
                cut += pair.follower.phase is Phase.RECONCILING and len(pair.logs[1 - pair.at]) < pair.name
                committed_in_two_epochs += len({epoch for epoch, _ in pair.committed}) > 1
                if pair.state not in seen:
                    seen.add(pair.state)
                    longer.append((*path, event))
        paths = longer
    assert len(seen) > 5_000 and cut > 1_000, (len(seen), cut, committed_in_two_epochs)


def replayed(path: tuple[Event, ...]) -> Pair:
    pair = Pair()
    for event in path:
        pair.play(event)
    return pair
