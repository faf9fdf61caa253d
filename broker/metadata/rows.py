"""One maker of rows: what becomes of partitions when something happens to them or to a broker (R4). Pure.

Owns what follows from every event: a session began or ended, its leader proposed another in-sync set, the minimum
changed, an election was asked for, others are to hold a partition, a log is gone, a node is given up, one replica is to
begin uncleanly. Always true: every row made has a partition epoch one above the row it follows, and follows it by the
steps of `row_steps`, but where a partition begins uncleanly; nodes a row names are registered. Each event is taken with
the image in which its session or config stands already. Must not know who asks, nor how rows are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.minimum import effective_min, min_in_sync_set
from broker.metadata.records import NO_LEADER, LogPlace, Row, RowsSet
from broker.metadata.row_steps import (
    Said,
    arrived,
    assigned_to,
    in_order,
    is_alone,
    led_by,
    led_from,
    log_gone,
    next_row,
    settled,
    without_member,
)

_Change: TypeAlias = Callable[[int, Row, int], Row]
"""From a partition's index, its row and min.insync.replicas to the row after it, or the same."""

_Choice: TypeAlias = Callable[[LogPlace, Row, Sequence[int]], int]
"""The leader of a partition, among its in-sync replicas with a session in the order of assignment; NO_LEADER: nobody.
The leader there is: no change."""


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def new_rows(image: ClusterImage, replicas: Iterable[tuple[int, ...]]) -> tuple[Row, ...]:
    """Rows of partitions that did not exist, by the replicas of each: in sync are those that have a session, and the
    first of them leads."""
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
    """`node_id` registered, which ended its session before: what it led it leads on, in a new leader epoch.

    From another directory nothing that was acknowledged is there, nor is it of `lost_logs` (by topic id and index): it
    leaves those in-sync sets, below the minimum too (R16, R18). A partition that nobody else holds begins uncleanly.
    """

    def change(topic_id: str) -> _Change:
        def of(index: int, row: Row, minimum: int) -> Row:
            is_lost = (topic_id, index) in lost_logs
            if (is_other_directory and node_id in row.in_sync) or is_lost:
                return log_gone(image, row, node_id, minimum, is_lost=is_lost)
            return settled(image, row, minimum, begins_again=node_id)

        return of

    return _changed(image, change, node_id)


def lost(image: ClusterImage, node_id: int, places: Collection[tuple[str, int]]) -> list[RowsSet]:
    """Logs of `node_id`, by topic id and index, are gone or damaged while it runs: it leaves those in-sync sets, below
    the minimum too, in a new leader epoch whether it was in the set or not (R16, R18).

    Where nobody else has all of it, everything stays as it is: what is left there is more than the others have, a
    person decides."""

    def change(topic_id: str) -> _Change:
        def of(index: int, row: Row, minimum: int) -> Row:
            if (topic_id, index) not in places or row.in_sync == (node_id,) or is_alone(row, node_id):
                return row
            return log_gone(image, row, node_id, minimum, is_lost=True)

        return of

    return _changed(image, change, node_id)


def forgotten(image: ClusterImage, node_id: int) -> list[RowsSet]:
    """What lies on `node_id`, which has no session any more, counts for nothing: it leaves every in-sync set, below the
    minimum too. A set that is empty then has no promise left to keep: its partition begins uncleanly somewhere."""

    def of(_: int, row: Row, minimum: int) -> Row:
        return without_member(image, row, node_id, minimum) if node_id in row.in_sync else row

    return _changed(image, lambda _: of, node_id)


def sessions_ended(image: ClusterImage, node_ids: Collection[int]) -> list[RowsSet]:
    """These have no session any more, by silence or by leaving: what they led an in-sync replica with a session leads,
    or nobody; the rest of them leave in-sync sets down to the minimum."""
    return _changed(image, lambda _: lambda _, row, minimum: settled(image, row, minimum), *node_ids)


def handed_over(
    image: ClusterImage,
    node_ids: Collection[int],
    chosen: _Choice,
    failed: Callable[[LogPlace], Collection[int]] = lambda _: (),
) -> list[RowsSet]:
    """What one of `node_ids` leads, or nobody does, whoever is `chosen` leads, or nobody. Those of whose log of a
    partition is said that it `failed` report nothing any more: they leave its set down to the minimum, everybody else
    stays."""
    found = []
    for topic in image.topics.values():
        changed = []
        for index, row in enumerate(topic.rows):
            place = topic.topic_id, index
            after = row
            if row.leader in node_ids or row.leader == NO_LEADER:
                leader = chosen(place, row, led_from(image, row))
                after = row if leader == row.leader else led_by(row, leader)
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
    """Another `min.insync.replicas` of one topic, or (None) of all: members without session, which only the minimum
    kept, go with the commit that lowers it (D7)."""
    return _changed(image, lambda _: lambda _, row, minimum: settled(image, row, minimum), only=topic_id)


def proposed(
    image: ClusterImage,
    topic: Topic,
    index: int,
    in_sync: tuple[int, ...],
    *,
    is_done: bool,
    said: Said | None = None,
) -> Row:
    """The leader's proposal, which was found right, is the set; a move may be over with it. A row also where nothing
    else changed: so a leader gets rid of a proposal whose outcome it does not know (R17)."""
    row = topic.rows[index]
    done = is_done and not row.clean
    wanted = replace(
        row,
        in_sync=in_order(row, in_sync),
        clean=row.clean or done,
        served_epoch=row.leader_epoch if done else row.served_epoch,
    )
    minimum = min_in_sync_set(topic, image)
    return next_row(row, settled(image, arrived(image, wanted, minimum, said), minimum))


def ended(image: ClusterImage, topic: Topic, index: int, said: Said | None = None) -> Row | None:
    """The move under way is over, by something else than a proposal: a session that began, a log that is fit again;
    None: it is not."""
    row, minimum = topic.rows[index], min_in_sync_set(topic, image)
    after = arrived(image, row, minimum, said)
    return None if after is row else next_row(row, settled(image, after, minimum))


def begun_uncleanly(image: ClusterImage, topic: Topic, index: int, leader: int) -> Row:
    """`leader`, an assigned replica with a session, begins alone and without all that was acknowledged; it serves when
    it reports that its start is done (`proposed`, R20)."""
    row = topic.rows[index]
    assert leader in (*row.replicas, *row.target) and image.nodes[leader].active, (leader, row)
    epoch = row.leader_epoch + 1
    return next_row(
        row,
        replace(row, leader=leader, leader_epoch=epoch, in_sync=(leader,), unclean_epoch=epoch, clean=False),
    )


def elected(image: ClusterImage, topic: Topic, index: int) -> Row | None:
    """The preferred replica, the first assigned, leads, where it is in sync and has a session; None: no change."""
    row = topic.rows[index]
    preferred = row.assigned[0]
    if row.leader == preferred or preferred not in led_from(image, row):
        return None
    return next_row(row, led_by(row, preferred))


def reassigned(
    image: ClusterImage, topic: Topic, index: int, target: tuple[int, ...], said: Said | None = None
) -> Row | None:
    """`target`, the one to lead first, is to hold the partition alone: those who join copy it, and when all of it are
    in sync the others go (KIP-455); None: no change. The same nodes in another order are at their goal. A move under
    way goes on from what it began with; who joined for it and is to hold nothing now is out at once."""
    row = topic.rows[index]
    is_there = set(target) == set(row.replicas)
    after = assigned_to(image, row, target) if is_there else assigned_to(image, row, row.replicas, target)
    if after == row:
        return None
    minimum = min_in_sync_set(topic, image)
    after = settled(image, arrived(image, after, minimum, said), minimum)
    if after.leader_epoch > row.leader_epoch + 1:  # some left, and it is at its goal, so that more did
        after = led_by(replace(after, leader_epoch=row.leader_epoch), after.leader)
    return next_row(row, after)


def cancelled(image: ClusterImage, topic: Topic, index: int) -> Row:
    """The move under way is off: who held the partition before does, who joined for it is out at once."""
    row = topic.rows[index]
    after = assigned_to(image, row, row.replicas)
    return next_row(row, settled(image, after, min_in_sync_set(topic, image)))


def rows_set(made: Mapping[tuple[str, int], Row]) -> tuple[RowsSet, ...]:
    """The records of rows, which stand by topic id and index: one a topic, as each one copies the topic's rows."""
    by_topic: dict[str, list[tuple[int, Row]]] = {}
    for (topic_id, index), row in made.items():
        by_topic.setdefault(topic_id, []).append((index, row))
    return tuple(RowsSet(topic_id, tuple(rows)) for topic_id, rows in by_topic.items())


# ── of many partitions ────────────────────────────────────────────────────────────────────────────────────────────────
def _changed(
    image: ClusterImage, change: Callable[[str], _Change], *node_ids: int, only: str | None = None
) -> list[RowsSet]:
    """Rows after `change`, of all partitions that name one of `node_ids` (none: of all)."""
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
