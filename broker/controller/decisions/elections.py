"""Decides requested elections (ElectLeaders; KIP-183, KIP-460). Pure.

Source: Kafka's ReplicationControlManager.electLeader. A preferred replica must be in sync, have a session and be fit.
An unclean election chooses the best replica that answered just now (R20), and does not wait for replicas that are off.
Each partition has its own result in Kafka's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from broker.controller.decisions.decision import Decision
from broker.controller.decisions.fitness import Unfit, may_lead
from broker.controller.unclean_recovery import CandidatesByQuestion, Question, best
from broker.error_codes import ErrorCode
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, LogPlace, Row
from broker.metadata.rows import begun_uncleanly, elected, rows_set


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class Election(NamedTuple):
    error: ErrorCode
    message: str | None


_ELECTED = Election(ErrorCode.NONE, None)
_NOT_NEEDED = Election(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NOT_AVAILABLE = {
    ElectionType.PREFERRED: Election(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    ),
    ElectionType.UNCLEAN: Election(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
    ),
}


def leaderless(image: ClusterImage, wanted: Iterable[tuple[str, int]]) -> list[LogPlace]:
    """The leaderless partitions of `wanted`. Their replicas are asked before an unclean election."""
    topics = {topic.name: topic for topic in image.topics.values()}
    return [
        (topic.topic_id, index)
        for name, index in dict.fromkeys(wanted)
        if (topic := topics.get(name)) is not None
        and 0 <= index < topic.partitions
        and topic.rows[index].leader == NO_LEADER
    ]


def elect(
    image: ClusterImage,
    kind: ElectionType,
    wanted: Sequence[tuple[str, int]],
    heard: CandidatesByQuestion = MappingProxyType({}),
    unfit: Unfit = MappingProxyType({}),
) -> Decision[dict[tuple[str, int], Election]]:
    """The outcome of each partition, by topic and index. A partition that is named twice is elected once. `heard`:
    answers of the replicas of the partitions that `leaderless` returned."""
    topics = {topic.name: topic for topic in image.topics.values()}
    rows: dict[LogPlace, Row] = {}
    answers: dict[tuple[str, int], Election] = {}
    for name, index in wanted:
        if (name, index) in answers:
            continue
        topic = topics.get(name)
        if topic is None:
            answer = Election(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
        elif not 0 <= index < topic.partitions:
            answer = Election(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
        else:
            answer, row = _one(image, kind, topic, index, heard, unfit)
            if row is not None:
                rows[topic.topic_id, index] = row
        answers[name, index] = answer
    return Decision(rows_set(rows), answers)


def _one(
    image: ClusterImage, kind: ElectionType, topic: Topic, index: int, heard: CandidatesByQuestion, unfit: Unfit
) -> tuple[Election, Row | None]:
    row = topic.rows[index]
    if row.leader == row.assigned[0] or (kind is ElectionType.UNCLEAN and row.leader != NO_LEADER):
        return _NOT_NEEDED, None
    after = None
    if kind is ElectionType.PREFERRED:
        if may_lead((topic.topic_id, index), row.assigned[0], unfit):
            after = elected(image, topic, index)
    else:
        said = heard.get(Question((topic.topic_id, index), topic.name, row.leader_epoch), {})
        there = {node_id: what for (node_id, epoch), what in said.items() if image.has_session(node_id, epoch)}
        if there:
            after = begun_uncleanly(image, topic, index, best(row, there))
    return (_NOT_AVAILABLE[kind], None) if after is None else (_ELECTED, after)
