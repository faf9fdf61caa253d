"""Partitions that nobody who has all of them can lead: whom to ask what is left, and who begins (R20). Pure.

Owns the list of those partitions, what their replicas answered, and the choice. Always true: an answer counts in the
leader epoch and session in which it was given; where the in-sync set is empty every assigned replica was heard before
one is chosen, but for nodes that were given up (`cluster forget`): a machine that is merely off may hold more; where
unclean elections are allowed it is chosen among replicas with a session, a session-time after the last member's ended.
Who keeps most begins, and of equals the one that saw the epoch which served last. Must not know requests, clocks, nor
what the chosen one does (tiering.lost_tail).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.controller.decision import Decision
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import FORGOTTEN, NO_EPOCH, NO_LEADER, LogPlace, Row
from broker.metadata.rows import begun_uncleanly, rows_set
from broker.metadata.unclean import is_unclean_election_allowed
from logformat.leader_epochs import kept_end


class Candidate(NamedTuple):
    """What a replica says of its log: the last leader epoch in which it agreed with a leader, or led; its high
    watermark; where its usable bytes end."""

    seen_epoch: int
    high_watermark: int
    end: int


class Chosen(NamedTuple):
    """`node_id`, in its session `broker_epoch`, is to begin a partition whose row is of `leader_epoch`."""

    place: LogPlace
    leader_epoch: int
    node_id: int
    broker_epoch: int


class Question(NamedTuple):
    """Of one replica."""

    place: LogPlace
    topic: str
    leader_epoch: int


Heard = Mapping[int, Candidate]
"""By node id."""
HeardNow = Mapping[Question, Mapping[tuple[int, int], Candidate]]
"""By node id and broker epoch, of each partition as it was when its replicas were asked."""


def best(row: Row, heard: Heard) -> int:
    """Who keeps most of the log (`kept_end`)."""
    order = (*row.replicas, *row.target)
    return max(
        heard,
        key=lambda node_id: (
            kept_end(*heard[node_id], row.served_epoch),
            heard[node_id].seen_epoch >= row.served_epoch,
            -order.index(node_id),
        ),
    )


@dataclass(slots=True)
class _Waiting:
    topic: str
    row: Row
    is_allowed: bool  # without those that have no session
    since_s: float
    answers: dict[int, tuple[int, Candidate | None]] = field(default_factory=dict)  # by node id, with its broker epoch

    @property
    def candidates(self) -> dict[int, Candidate]:
        return {node_id: said for node_id, (_, said) in self.answers.items() if said is not None}


class Unclean:
    """Of one controller. `session_s`: of a session that is silent. `now_s` of each call never goes back."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._waiting: dict[LogPlace, _Waiting] = {}
        self._image = ClusterImage()

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, image: ClusterImage, now_s: float) -> None:
        """The image is this; answers of other sessions or leader epochs are void."""
        if image is self._image:
            return
        self._image = image
        found: dict[LogPlace, _Waiting] = {}
        for topic in image.topics.values():
            for index, row in enumerate(topic.rows):
                if row.leader == NO_LEADER:
                    self._look(found, topic, index, row, now_s)
        self._waiting = found

    def _look(self, found: dict[LogPlace, _Waiting], topic: Topic, index: int, row: Row, now_s: float) -> None:
        is_allowed = is_unclean_election_allowed(topic, self._image)
        if row.in_sync and not is_allowed:
            return  # a member is only away
        place = topic.topic_id, index
        known = self._waiting.get(place)
        waiting = found[place] = _Waiting(topic.name, row, is_allowed, now_s)
        if known is not None and known.row.leader_epoch == row.leader_epoch:
            waiting.since_s = known.since_s
            waiting.answers = {
                node_id: answer for node_id, answer in known.answers.items() if self._epoch(node_id) == answer[0]
            }

    def heard(self, node_id: int, broker_epoch: int, asked: Question, candidate: Candidate | None) -> None:
        """What this session says of its replica; None: its log failed, and it cannot begin."""
        waiting = self._waiting.get(asked.place)
        if (
            waiting is not None
            and waiting.row.leader_epoch == asked.leader_epoch
            and self._epoch(node_id) == broker_epoch
        ):
            waiting.answers[node_id] = broker_epoch, candidate

    # ── what is to be done ───────────────────────────────────────────────────────────────────────────────────────
    def questions(self) -> dict[int, list[Question]]:
        """What to ask, by node: replicas with a session that did not answer yet."""
        wanted: dict[int, list[Question]] = {}
        for place, waiting in self._waiting.items():
            for node_id in _assigned(waiting.row):
                if node_id not in waiting.answers and self._epoch(node_id) != NO_EPOCH:
                    wanted.setdefault(node_id, []).append(Question(place, waiting.topic, waiting.row.leader_epoch))
        return wanted

    def missing(self) -> dict[int, int]:
        """Of how many partitions an answer is waited for that cannot come, by node: it has no session."""
        found: dict[int, int] = {}
        for waiting in self._waiting.values():
            for node_id in _assigned(waiting.row):
                is_there = node_id in waiting.answers or self._epoch(node_id) != NO_EPOCH
                if not is_there and not waiting.row.in_sync and not self._is_given_up(node_id):
                    found[node_id] = found.get(node_id, 0) + 1
        return found

    def choose(self, now_s: float) -> list[Chosen]:
        """Of the partitions of which enough is known, who begins."""
        chosen = []
        for place, waiting in self._waiting.items():
            if self._is_enough(waiting, now_s):
                node_id = best(waiting.row, waiting.candidates)
                chosen.append(Chosen(place, waiting.row.leader_epoch, node_id, waiting.answers[node_id][0]))
        return chosen

    def _is_enough(self, waiting: _Waiting, now_s: float) -> bool:
        heard = waiting.candidates
        missing = [node_id for node_id in _assigned(waiting.row) if node_id not in heard]
        if waiting.is_allowed and now_s - waiting.since_s >= self._session_s:
            missing = [of for of in missing if of not in waiting.answers and self._epoch(of) != NO_EPOCH]
        elif waiting.row.in_sync:
            return False
        return bool(heard) and all(self._is_given_up(node_id) for node_id in missing)

    def _is_given_up(self, node_id: int) -> bool:
        return self._image.nodes[node_id].directory_id == FORGOTTEN

    def _epoch(self, node_id: int) -> int:
        """The broker epoch of its session; NO_EPOCH without one."""
        node = self._image.nodes.get(node_id)
        return node.broker_epoch if node is not None and node.active else NO_EPOCH


def _assigned(row: Row) -> dict[int, None]:
    return dict.fromkeys((*row.replicas, *row.target))


def questions_of(image: ClusterImage, places: Iterable[LogPlace]) -> dict[int, list[Question]]:
    """What to ask now of partitions that somebody wants led, by node: all replicas with a session."""
    wanted: dict[int, list[Question]] = {}
    for topic_id, index in places:
        topic = image.topics[topic_id]
        row = topic.rows[index]
        for node_id in _assigned(row):
            if image.nodes[node_id].active:
                wanted.setdefault(node_id, []).append(Question((topic_id, index), topic.name, row.leader_epoch))
    return wanted


def begin(image: ClusterImage, chosen: list[Chosen]) -> Decision[int]:
    """Rows for those that are as they were when they were chosen, and that may still begin so; how many."""
    rows = {}
    for of in chosen:
        topic = image.topics.get(of.place[0])
        if topic is None or not image.has_session(of.node_id, of.broker_epoch):
            continue
        row = topic.rows[of.place[1]]
        may_begin = not row.in_sync or is_unclean_election_allowed(topic, image)
        if row.leader == NO_LEADER and row.leader_epoch == of.leader_epoch and may_begin:
            rows[of.place] = begun_uncleanly(image, topic, of.place[1], of.node_id)
    return Decision(rows_set(rows), len(rows))
