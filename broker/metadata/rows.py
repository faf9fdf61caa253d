"""One maker of rows: what becomes of partitions when something happens to a node. Pure.

Owns how a row follows another. Always true: every row made has a partition epoch one above the row it follows; a leader
that changes, or begins again, has a leader epoch one above; nodes a row names are registered. Must not know who asks,
nor how rows are committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, Row, RowsSet


def new_rows(image: ClusterImage, replicas: Iterable[tuple[int, ...]]) -> tuple[Row, ...]:
    """Rows of partitions that did not exist, by the replicas of each: in sync are those that have a session, and the
    first of them leads."""
    return tuple(_new_row(image, assigned) for assigned in replicas)


def _new_row(image: ClusterImage, assigned: tuple[int, ...]) -> Row:
    in_sync = tuple(node_id for node_id in assigned if image.nodes[node_id].active)
    return Row(assigned, in_sync[0] if in_sync else NO_LEADER, 0, 0, in_sync, 0)


def registered(image: ClusterImage, node_id: int, *, is_other_directory: bool) -> list[RowsSet]:
    """`node_id` began a new session: everything that it leads, or that nobody leads while it is the one in-sync
    replica, goes on in a new leader epoch.

    From another directory nothing that was acknowledged is there: each such epoch is marked as begun uncleanly.
    """
    found = []
    for topic in image.topics.values():
        changed = tuple(
            (index, _begun_again(row, node_id, is_other_directory=is_other_directory))
            for index, row in enumerate(topic.rows)
            if _is_led_by(row, node_id)
        )
        if changed:
            found.append(RowsSet(topic.topic_id, changed))
    return found


def _is_led_by(row: Row, node_id: int) -> bool:
    return row.leader == node_id or (row.leader == NO_LEADER and row.in_sync == (node_id,))


def _begun_again(row: Row, node_id: int, *, is_other_directory: bool) -> Row:
    epoch = row.leader_epoch + 1
    return replace(
        row,
        leader=node_id,
        leader_epoch=epoch,
        partition_epoch=row.partition_epoch + 1,
        served_epoch=epoch,
        unclean_epoch=epoch if is_other_directory else row.unclean_epoch,
    )
