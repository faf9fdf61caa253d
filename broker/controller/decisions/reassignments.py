"""Decides and lists partition reassignments (KIP-455, KIP-860). Pure.

Source: Kafka's ReplicationControlManager.alterPartitionReassignments.

- Each partition has its own result, in Kafka's order, codes and words. A new move replaces an ongoing move.
- A cancelled or replaced move removes replicas at once. Enough other replicas must stay in sync: the minimum without
  failed logs, and at least one that has a session and is fit to lead (R19).
- A move without effect makes no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.controller.decisions.decision import Decision
from broker.controller.decisions.fitness import FitnessByNode, judge
from broker.controller.decisions.placement import check_assignment
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, LogPlace, Row
from broker.metadata.row_steps import PartitionFitness
from broker.metadata.rows import cancelled, ended, reassigned, rows_set
from logformat.values import TOPIC_NAME_CHARS_MAX


class Move(NamedTuple):
    """The requested replicas of one partition, its leader first; None: cancel the ongoing move."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class Outcome(NamedTuple):
    """The result for one partition."""

    error: ErrorCode
    message: str | None


DONE = Outcome(ErrorCode.NONE, None)


class OngoingReassignment(NamedTuple):
    """An ongoing move: all old and new replicas, the joining replicas and the leaving replicas."""

    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def reassign(
    image: ClusterImage, wanted: Sequence[Move], told: FitnessByNode | None = None, *, allows_factor_change: bool = True
) -> Decision[tuple[Outcome, ...]]:
    """One outcome for each of `wanted`, in order. If a partition is named twice, its last valid move counts. `told`:
    brokers' reports about their logs (None: all are sound)."""
    topics = {topic.name: topic for topic in image.topics.values()}
    rows: dict[LogPlace, Row] = {}
    outcomes, said_of = [], judge(told)
    for move in wanted:
        try:
            topic = _found(topics, move)
            said = said_of((topic.topic_id, move.partition))
            row = _one(image, topic, move, said, allows_factor_change=allows_factor_change)
        except ApiError as refused:
            has_words = refused.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS  # without a message, as in Kafka
            outcomes.append(Outcome(refused.code, str(refused) if has_words else None))
            continue
        place = topic.topic_id, move.partition
        if row is not None:
            rows[place] = row
        else:
            rows.pop(place, None)
        outcomes.append(DONE)
    return Decision(rows_set(rows), tuple(outcomes))


def _found(topics: dict[str, Topic], move: Move) -> Topic:
    topic = topics.get(move.topic)
    if topic is None:
        # A request has many partitions of one topic, and each gets the message.
        name = move.topic[:TOPIC_NAME_CHARS_MAX]
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= move.partition < topic.partitions:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {move.topic}:{move.partition}.")
    return topic


def over(image: ClusterImage, told: FitnessByNode | None = None) -> Decision[None]:
    """Complete the moves that waited only for a replica's session or for a log to be fit again. Other moves complete
    when the leader proposes an in-sync set. 30 000 rows without moves take 1 ms.
    """
    said_of = judge(told)
    rows = {
        (topic.topic_id, index): after
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if row.target and (after := ended(image, topic, index, said_of((topic.topic_id, index)))) is not None
    }
    return Decision(rows_set(rows), None)


def _one(
    image: ClusterImage, topic: Topic, move: Move, said: PartitionFitness | None, *, allows_factor_change: bool
) -> Row | None:
    """The new row of one partition; None: nothing changes."""
    row = topic.rows[move.partition]
    if move.replicas is None:
        if not row.target:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        _check_who_stays(image, topic, move, row.replicas, said)
        return cancelled(image, topic, move.partition)
    check_assignment(image, move.replicas)
    now = len(row.target or row.replicas)
    if not allows_factor_change and len(move.replicas) != now:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {now} to {len(move.replicas)}",
        )
    _check_who_stays(image, topic, move, (*row.replicas, *move.replicas), said)
    return reassigned(image, topic, move.partition, move.replicas, said)


def _check_who_stays(
    image: ClusterImage, topic: Topic, move: Move, named: tuple[int, ...], said: PartitionFitness | None
) -> None:
    """Refuse a move that leaves too few replicas in sync, because replicas that are not in `named` leave before other
    replicas join (R19)."""
    row = topic.rows[move.partition]
    stay = [node_id for node_id in row.in_sync if node_id in named]
    if len(stay) == len(row.in_sync):
        return
    if said is not None:
        stay = [node_id for node_id in stay if node_id not in said.failed]
    least = effective_min(topic, row, image)
    if len(stay) < least:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{_revert(move)} it would leave {len(stay)} in-sync replicas of {len(row.in_sync)}, and at least {least} "
            "have to stay.",
        )
    leads_on = [n for n in stay if image.nodes[n].active and (said is None or n == row.leader or n not in said.unfit)]
    if row.leader != NO_LEADER and not leads_on:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{_revert(move)} it would require an unclean leader election."
        )


def _revert(move: Move) -> str:
    return f"Unable to revert partition assignment for {move.topic}:{move.partition} because"


def under_way(
    image: ClusterImage, wanted: Iterable[tuple[str, Sequence[int]]] | None = None
) -> list[tuple[str, list[OngoingReassignment]]]:
    """Ongoing moves by topic: all, or those of `wanted`. Topics without an ongoing move are left out."""
    topics = {topic.name: topic for topic in image.topics.values()}
    asked = [(name, range(topics[name].partitions)) for name in sorted(topics)] if wanted is None else wanted
    found = []
    for name, indexes in asked:
        topic = topics.get(name)
        moving = [] if topic is None else [each for index in indexes if (each := _moving(topic, index)) is not None]
        if moving:
            found.append((name, moving))
    return found


def _moving(topic: Topic, index: int) -> OngoingReassignment | None:
    if not 0 <= index < topic.partitions or not (row := topic.rows[index]).target:
        return None
    return OngoingReassignment(index, row.assigned, row.adding, row.removing)
