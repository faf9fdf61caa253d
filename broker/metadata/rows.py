"""Partition rows after each event (R4): a session began or ended, a proposal, an election, a reassignment, a lost log.
Pure.

Every new row has the next partition epoch, and is made by `row_steps` unless it begins uncleanly. The given image
already has the event's session or config.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from broker.metadata.data_configs import effective_min, min_in_sync_set
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, LogPlace, Row, RowsSet
from broker.metadata.row_steps import (
    PartitionFitness,
    in_order,
    is_alone,
    led_from,
    next_row,
    with_leader,
    with_leader_elected,
    with_log_lost,
    with_move_completed,
    with_replicas,
    without_member,
)

_Change: TypeAlias = Callable[[int, Row, int], Row]
"""Returns a partition's next row from its index, its row and min.insync.replicas; the same row if nothing changes."""

_Choice: TypeAlias = Callable[[LogPlace, Row, Sequence[int]], int]
"""Chooses the leader from the in-sync replicas with a session, given in the order of assignment. NO_LEADER: no replica
leads. The current leader: nothing changes."""


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def new_rows(image: ClusterImage, replicas: Iterable[tuple[int, ...]]) -> tuple[Row, ...]:
    """Rows of new partitions, by their replicas. Replicas with a session are in sync. The first replica with a session
    leads."""
    return tuple(_new_row(image, assigned) for assigned in replicas)


def _new_row(image: ClusterImage, assigned: tuple[int, ...]) -> Row:
    in_sync = tuple(node_id for node_id in assigned if image.nodes[node_id].active)
    return Row(assigned, in_sync[0] if in_sync else NO_LEADER, 0, 0, in_sync, 0)


def session_began(
    image: ClusterImage,
    node_id: int,
    *,
    is_other_directory: bool,
    lost_logs: Collection[tuple[str, int]] = (),
) -> list[RowsSet]:
    """`node_id` registered, which ends its earlier session. The node keeps its leaderships, each with the next leader
    epoch. With another directory all its logs are missing. The logs in `lost_logs` (topic id, index) are missing in any
    case. The node leaves the in-sync sets of missing logs, even below the minimum (R16, R18). A partition without
    another replica begins uncleanly."""

    def change(topic_id: str) -> _Change:
        def of(index: int, row: Row, minimum: int) -> Row:
            is_lost = (topic_id, index) in lost_logs
            if (is_other_directory and node_id in row.in_sync) or is_lost:
                return with_log_lost(image, row, node_id, minimum, is_lost=is_lost)
            return with_leader_elected(image, row, minimum, begins_again=node_id)

        return of

    return _changed(image, change, node_id)


def lost(image: ClusterImage, node_id: int, places: Collection[tuple[str, int]]) -> list[RowsSet]:
    """Logs of the running `node_id` (topic id, index) are gone or damaged. The node leaves their in-sync sets, even
    below the minimum. The leader epoch grows, whether the node was in the set or not (R16, R18). If no other replica is
    complete, the row does not change: the damaged log still has more records than the other logs, and an operator
    decides."""

    def change(topic_id: str) -> _Change:
        def of(index: int, row: Row, minimum: int) -> Row:
            if (topic_id, index) not in places or row.in_sync == (node_id,) or is_alone(row, node_id):
                return row
            return with_log_lost(image, row, node_id, minimum, is_lost=True)

        return of

    return _changed(image, change, node_id)


def forgotten(image: ClusterImage, node_id: int) -> list[RowsSet]:
    """Everything on `node_id`, which has no session, counts as lost: the node leaves every in-sync set, even below the
    minimum. A partition whose set is empty then begins uncleanly on another replica."""

    def of(_: int, row: Row, minimum: int) -> Row:
        return without_member(image, row, node_id, minimum) if node_id in row.in_sync else row

    return _changed(image, lambda _: of, node_id)


def sessions_ended(image: ClusterImage, node_ids: Collection[int]) -> list[RowsSet]:
    """The sessions of these nodes ended. An in-sync replica with a session becomes the leader of their partitions, or
    none. The nodes leave in-sync sets down to the minimum."""
    return _changed(image, lambda _: lambda _, row, minimum: with_leader_elected(image, row, minimum), *node_ids)


def handed_over(
    image: ClusterImage,
    node_ids: Collection[int],
    chosen: _Choice,
    failed: Callable[[LogPlace], Collection[int]] = lambda _: (),
) -> list[RowsSet]:
    """Partitions led by `node_ids`, and leaderless partitions, get the `chosen` leader or none. Replicas with a
    `failed` log send no reports, so they leave the set, down to the minimum. All other replicas stay."""
    found = []
    for topic in image.topics.values():
        changed = []
        for index, row in enumerate(topic.rows):
            place = topic.topic_id, index
            after = row
            if row.leader in node_ids or row.leader == NO_LEADER:
                leader = chosen(place, row, led_from(image, row))
                after = row if leader == row.leader else with_leader(row, leader)
            if silent := [node_id for node_id in failed(place) if node_id in row.in_sync and node_id != after.leader]:
                least = effective_min(topic, row, image) if after.leader != NO_LEADER else len(row.in_sync)
                going = silent[: max(len(row.in_sync) - least, 0)]
                if going:
                    after = replace(after, in_sync=tuple(n for n in row.in_sync if n not in going))
            if after is not row:
                changed.append((index, next_row(row, after)))
        if changed:
            found.append(RowsSet(topic.topic_id, tuple(changed)))
    return found


def config_changed(image: ClusterImage, topic_id: str | None = None) -> list[RowsSet]:
    """`min.insync.replicas` of one topic, or (None) of all topics, changed: members without a session that were only
    kept for the minimum leave with that commit (D7)."""
    return _changed(image, lambda _: lambda _, row, minimum: with_leader_elected(image, row, minimum), only=topic_id)


def proposed(
    image: ClusterImage,
    topic: Topic,
    index: int,
    in_sync: tuple[int, ...],
    *,
    is_done: bool,
    said: PartitionFitness | None = None,
) -> Row:
    """The row of a valid proposal, which may complete a move. The row has a new partition epoch even if nothing else
    changed, so that the leader can settle a proposal of unknown outcome (R17)."""
    row = topic.rows[index]
    done = is_done and not row.clean
    wanted = replace(
        row,
        in_sync=in_order(row, in_sync),
        clean=row.clean or done,
        served_epoch=row.leader_epoch if done else row.served_epoch,
    )
    minimum = min_in_sync_set(topic, image)
    return next_row(row, with_leader_elected(image, with_move_completed(image, wanted, minimum, said), minimum))


def ended(image: ClusterImage, topic: Topic, index: int, said: PartitionFitness | None = None) -> Row | None:
    """Complete a move without a proposal: a session began, or a log is fit again. None: the move is not complete."""
    row, minimum = topic.rows[index], min_in_sync_set(topic, image)
    after = with_move_completed(image, row, minimum, said)
    return None if after is row else next_row(row, with_leader_elected(image, after, minimum))


def begun_uncleanly(image: ClusterImage, topic: Topic, index: int, leader: int) -> Row:
    """`leader`, an assigned replica with a session, leads alone without all acknowledged records. The leader serves
    when it reports that its start is done (`proposed`, R20)."""
    row = topic.rows[index]
    assert leader in (*row.replicas, *row.target) and image.nodes[leader].active, (leader, row)
    epoch = row.leader_epoch + 1
    return next_row(
        row,
        replace(row, leader=leader, leader_epoch=epoch, in_sync=(leader,), unclean_epoch=epoch, clean=False),
    )


def elected(image: ClusterImage, topic: Topic, index: int) -> Row | None:
    """The preferred replica (the first assigned replica) leads if it is in sync and has a session. None: no change."""
    row = topic.rows[index]
    preferred = row.assigned[0]
    if row.leader == preferred or preferred not in led_from(image, row):
        return None
    return next_row(row, with_leader(row, preferred))


def reassigned(
    image: ClusterImage, topic: Topic, index: int, target: tuple[int, ...], said: PartitionFitness | None = None
) -> Row | None:
    """Reassign the partition to `target`, its leader first: new replicas copy the log, and when all of them are in sync
    the other replicas leave (KIP-455). None: no change. A move to the same nodes in another order completes at once. A
    new move replaces an ongoing move: it begins with the replicas before the ongoing move, and replicas that only the
    ongoing move added leave at once."""
    row = topic.rows[index]
    is_there = set(target) == set(row.replicas)
    after = with_replicas(image, row, target) if is_there else with_replicas(image, row, row.replicas, target)
    if after == row:
        return None
    minimum = min_in_sync_set(topic, image)
    after = with_leader_elected(image, with_move_completed(image, after, minimum, said), minimum)
    if after.leader_epoch > row.leader_epoch + 1:  # replicas left in both steps, but the epoch grows only by one
        after = with_leader(replace(after, leader_epoch=row.leader_epoch), after.leader)
    return next_row(row, after)


def cancelled(image: ClusterImage, topic: Topic, index: int) -> Row:
    """Cancel the ongoing move: the earlier replicas stay, and replicas that joined for the move leave at once."""
    row = topic.rows[index]
    after = with_replicas(image, row, row.replicas)
    return next_row(row, with_leader_elected(image, after, min_in_sync_set(topic, image)))


def rows_set(made: Mapping[tuple[str, int], Row]) -> tuple[RowsSet, ...]:
    """Records for rows by topic id and index: one record per topic, because each record copies the topic's rows."""
    by_topic: dict[str, list[tuple[int, Row]]] = {}
    for (topic_id, index), row in made.items():
        by_topic.setdefault(topic_id, []).append((index, row))
    return tuple(RowsSet(topic_id, tuple(rows)) for topic_id, rows in by_topic.items())


# ── of many partitions ────────────────────────────────────────────────────────────────────────────────────────────────
def _changed(
    image: ClusterImage, change: Callable[[str], _Change], *node_ids: int, only: str | None = None
) -> list[RowsSet]:
    """Rows after `change`, for all partitions that name one of `node_ids` (none: for all partitions)."""
    found, named = [], frozenset(node_ids)
    for topic in image.topics.values() if only is None else (image.topics[only],):
        of, changed, minimum = change(topic.topic_id), [], min_in_sync_set(topic, image)
        for index, row in enumerate(topic.rows):
            if named and named.isdisjoint(row.replicas) and named.isdisjoint(row.target):
                continue
            after = of(index, row, minimum)
            if after is not row:
                changed.append((index, after))
        if changed:
            found.append(RowsSet(topic.topic_id, tuple(changed)))
    return found
