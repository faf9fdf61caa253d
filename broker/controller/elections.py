"""Elections that somebody asked for, as decisions.

Pure. Owns who becomes a leader by request: the preferred replica, where it is in sync and has a session. Always true:
what has the leader that was asked for is left alone; each partition is answered by itself, in Kafka's words. Must not
know who asks. An unclean election begins with a claim (R20) and is not made by request yet: what has no leader keeps
none. Source: Kafka's ReplicationControlManager.electLeader; KIP-183, KIP-460.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from broker.controller.decision import Decision
from broker.error_codes import ErrorCode
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, Row
from broker.metadata.rows import elected, rows_set


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class Election(NamedTuple):
    """What became of one partition."""

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


def elect(
    image: ClusterImage, kind: ElectionType, wanted: Sequence[tuple[str, int]]
) -> Decision[dict[tuple[str, int], Election]]:
    """Of each partition, by topic and index, what became of it. One named twice is elected once."""
    topics = {topic.name: topic for topic in image.topics.values()}
    rows: dict[tuple[str, int], Row] = {}
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
            answer, row = _one(image, kind, topic, index)
            if row is not None:
                rows[topic.topic_id, index] = row
        answers[name, index] = answer
    return Decision(rows_set(rows), answers)


def _one(image: ClusterImage, kind: ElectionType, topic: Topic, index: int) -> tuple[Election, Row | None]:
    row = topic.rows[index]
    if row.leader == row.replicas[0] or (kind is ElectionType.UNCLEAN and row.leader != NO_LEADER):
        return _NOT_NEEDED, None
    after = elected(image, topic, index) if kind is ElectionType.PREFERRED else None
    return (_NOT_AVAILABLE[kind], None) if after is None else (_ELECTED, after)
