"""Unclean recovery of leaderless partitions: selects the replicas to query and the new leader (R20). Pure.

- An answer counts only in the leader epoch and the session in which it was given.
- With an empty in-sync set every assigned replica must have answered, because a machine that is only off may hold more
  of the log. Forgotten nodes need not answer (`cluster forget`).
- If unclean elections are allowed, a replica with a session is chosen one session time after the last member's session
  ended.
- The replica that keeps most of the log leads. Among equal replicas, a replica that saw the last served epoch leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from broker.controller.decisions.decision import Decision
from broker.metadata.data_configs import is_unclean_election_allowed
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import FORGOTTEN, NO_LEADER, LogPlace, Row
from broker.metadata.rows import begun_uncleanly, rows_set
from logformat.leader_epochs import kept_end


class Candidate(NamedTuple):
    """A replica's answer about its log: the last leader epoch in which the replica led or agreed with a leader, its
    high watermark, and the end of its usable bytes."""

    seen_epoch: int
    high_watermark: int
    end: int


class Chosen(NamedTuple):
    """`node_id`, in its session `broker_epoch`, is to lead a partition whose row has these epochs."""

    place: LogPlace
    leader_epoch: int
    partition_epoch: int
    node_id: int
    broker_epoch: int


class Question(NamedTuple):
    place: LogPlace
    topic: str
    leader_epoch: int


CandidatesByNode = Mapping[int, Candidate]  # by node id
CandidatesByQuestion = Mapping[Question, Mapping[tuple[int, int], Candidate]]  # by node id and broker epoch


def best(row: Row, heard: CandidatesByNode) -> int:
    """The replica that keeps most of the log (`kept_end`)."""
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
    question: Question
    row: Row
    assigned: tuple[int, ...]
    is_allowed: bool  # a leader may be chosen without the answers of replicas that have no session
    since_s: float
    answers: dict[int, Candidate | None] = field(default_factory=dict)  # by node id; only answers of present sessions

    @property
    def candidates(self) -> dict[int, Candidate]:
        return {node_id: said for node_id, said in self.answers.items() if said is not None}


@dataclass(slots=True)
class _Count:
    """Summary of all waiting partitions, valid until an answer or an image comes."""

    questions: dict[int, list[Question]] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    ready: list[_Waiting] = field(default_factory=list)
    ready_in_time: list[_Waiting] = field(default_factory=list)  # ready a session time after their wait began
    earliest_s: float = inf  # when the first of these waits began


class UncleanRecovery:
    """The waiting partitions of one controller. `session_s`: how long a broker may be silent. `now_s` never goes back
    between calls. The cost of an image grows with the topics that changed. After an image or an answer the next check
    takes 10 ms for 10 000 partitions; other checks cost nothing."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._waiting: dict[str, dict[int, _Waiting]] = {}  # by topic id and index
        self._image = ClusterImage()
        self._sessions: dict[int, int] = {}  # broker epochs of the sessions
        self._given_up: frozenset[int] = frozenset()
        self._counted: _Count | None = None

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, image: ClusterImage, now_s: float) -> None:
        """A new image. Answers of other sessions or leader epochs are dropped."""
        if image is self._image:
            return
        before, self._image = self._image, image
        self._follow_nodes(image)
        are_others = before.cluster_configs != image.cluster_configs
        for topic_id in [topic_id for topic_id in self._waiting if topic_id not in image.topics]:
            del self._waiting[topic_id]
            self._counted = None
        for topic_id, topic in image.topics.items():
            if are_others or before.topics.get(topic_id) is not topic:
                self._follow_topic(topic, now_s)

    def _follow_nodes(self, image: ClusterImage) -> None:
        sessions = {node_id: node.broker_epoch for node_id, node in image.nodes.items() if node.active}
        given_up = frozenset(node_id for node_id, node in image.nodes.items() if node.directory_id == FORGOTTEN)
        if (sessions, given_up) == (self._sessions, self._given_up):
            return
        void = [node_id for node_id, epoch in self._sessions.items() if sessions.get(node_id) != epoch]
        self._sessions, self._given_up, self._counted = sessions, given_up, None
        for waiting in self._all():
            for node_id in void:
                waiting.answers.pop(node_id, None)

    def _follow_topic(self, topic: Topic, now_s: float) -> None:
        is_allowed = is_unclean_election_allowed(topic, self._image)
        known = self._waiting.pop(topic.topic_id, {})
        found: dict[int, _Waiting] = {}
        for index, row in enumerate(topic.rows):
            if row.leader != NO_LEADER or (row.in_sync and not is_allowed):
                continue  # the partition has a leader, or a member of the in-sync set may return
            question = Question((topic.topic_id, index), topic.name, row.leader_epoch)
            found[index] = now = _Waiting(question, row, _assigned(row), is_allowed, now_s)
            was = known.get(index)
            if was is not None and was.row.leader_epoch == row.leader_epoch:
                now.since_s, now.answers = was.since_s, was.answers
        if found or known:
            self._counted = None
        if found:
            self._waiting[topic.topic_id] = found

    def answered(self, node_id: int, broker_epoch: int, asked: Question, candidate: Candidate | None) -> None:
        """The answer of this session for its replica; None: its disk failed, so it cannot lead for now."""
        waiting = self._waiting.get(asked.place[0], {}).get(asked.place[1])
        if (
            waiting is not None
            and waiting.row.leader_epoch == asked.leader_epoch
            and self._sessions.get(node_id) == broker_epoch
            and waiting.answers.get(node_id, waiting) is not candidate
        ):
            waiting.answers[node_id] = candidate
            self._counted = None

    # ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────
    def questions(self) -> dict[int, list[Question]]:
        """Partitions to query, by node: replicas with a session that did not answer, or whose disk had failed."""
        return self._count().questions

    def missing(self) -> dict[int, int]:
        """Number of partitions that wait for a node without a session, by node."""
        return self._count().missing

    def choose(self, now_s: float) -> list[Chosen]:
        """The chosen leaders of the partitions that have enough answers."""
        count = self._count()
        chosen = [self._chosen(waiting) for waiting in count.ready]
        if now_s - count.earliest_s >= self._session_s:
            in_time = (waiting for waiting in count.ready_in_time if now_s - waiting.since_s >= self._session_s)
            chosen += [self._chosen(waiting) for waiting in in_time]
        return chosen

    def _chosen(self, waiting: _Waiting) -> Chosen:
        node_id = best(waiting.row, waiting.candidates)
        row = waiting.row
        return Chosen(waiting.question.place, row.leader_epoch, row.partition_epoch, node_id, self._sessions[node_id])

    def _count(self) -> _Count:
        if self._counted is None:
            self._counted = count = _Count()
            for waiting in self._all():
                self._add(count, waiting)
        return self._counted

    def _add(self, count: _Count, waiting: _Waiting) -> None:
        """Decide whether the answers suffice: every replica with a session has answered, and one can lead. If the
        in-sync set is empty and no replica is off or failed, the leader is chosen at once. Otherwise, if unclean
        elections are allowed, the leader is chosen after a session time.
        """
        answers, is_asked, others, is_empty = waiting.answers, False, 0, not waiting.row.in_sync
        for node_id in waiting.assigned:
            if answers.get(node_id) is not None:
                continue
            if node_id in self._sessions:
                if node_id in answers:
                    others += 1
                else:
                    is_asked = True
                count.questions.setdefault(node_id, []).append(waiting.question)
            elif node_id not in self._given_up:
                others += 1
                if is_empty:
                    count.missing[node_id] = count.missing.get(node_id, 0) + 1
        if is_asked or all(said is None for said in answers.values()):
            return
        if is_empty and not others:
            count.ready.append(waiting)
        elif waiting.is_allowed:
            count.ready_in_time.append(waiting)
            count.earliest_s = min(count.earliest_s, waiting.since_s)

    def _all(self) -> Iterator[_Waiting]:
        return (waiting for of_topic in self._waiting.values() for waiting in of_topic.values())


def _assigned(row: Row) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*row.replicas, *row.target))) if row.target else row.replicas


def questions_of(image: ClusterImage, places: Iterable[LogPlace]) -> dict[int, list[Question]]:
    """The questions about requested partitions, by node: every replica with a session is asked."""
    wanted: dict[int, list[Question]] = {}
    for topic_id, index in places:
        topic = image.topics[topic_id]
        row = topic.rows[index]
        for node_id in _assigned(row):
            if image.nodes[node_id].active:
                wanted.setdefault(node_id, []).append(Question((topic_id, index), topic.name, row.leader_epoch))
    return wanted


def begin(image: ClusterImage, chosen: list[Chosen]) -> Decision[int]:
    """Append rows for the chosen leaders whose partition is unchanged and still allows an unclean start. Returns the
    number of rows."""
    rows = {}
    for of in chosen:
        topic = image.topics.get(of.place[0])
        if topic is None or not image.has_session(of.node_id, of.broker_epoch):
            continue
        row = topic.rows[of.place[1]]
        may_begin = not row.in_sync or is_unclean_election_allowed(topic, image)
        is_same = (row.leader_epoch, row.partition_epoch) == (of.leader_epoch, of.partition_epoch)
        if row.leader == NO_LEADER and is_same and may_begin:
            rows[of.place] = begun_uncleanly(image, topic, of.place[1], of.node_id)
    return Decision(rows_set(rows), len(rows))
