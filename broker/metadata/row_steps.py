"""Steps from one partition row to the next: election, changes of the in-sync set, end of a reassignment. Pure.

- The leader is an in-sync replica with a session, the first in the order of assignment.
- The leader epoch grows by one when the leader changes or starts again. The epoch also grows when a node leaves
  `replicas` and `target`, so that no report of the node is valid after its log is deleted (R16).
- No replica leaves the in-sync set below the effective minimum, unless its log is gone.
- A reassignment completes when all joining replicas are in sync, have sessions and report no bad log. The new set must
  have at least the minimum, or the complete target if the replication factor shrinks (ADR 19), and one member must be
  fit to lead (R19).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, Row


class PartitionFitness(NamedTuple):
    """Reports of nodes about one partition: logs that are `sound`, logs that `failed` or are lost, and nodes that are
    `unfit` to lead any partition. The state of other logs is unknown."""

    sound: frozenset[int]
    failed: frozenset[int]
    unfit: frozenset[int]


def with_leader_elected(image: ClusterImage, row: Row, minimum: int, *, begins_again: int = NO_LEADER) -> Row:
    """The last step of every event: elect a leader if possible, then remove members without a session down to `minimum`
    (min.insync.replicas, or all replicas). `begins_again`: this node leads its partitions in a new epoch. Returns the
    same object if nothing changes."""
    after = row
    candidates = led_from(image, after)
    if after.leader not in candidates:
        leader = candidates[0] if candidates else NO_LEADER
        if leader != after.leader:
            after = with_leader(after, leader)
    elif after.leader == begins_again and after.leader_epoch == row.leader_epoch:
        after = with_leader(after, after.leader)
    least = min(minimum, len(after.replicas))
    in_sync = after.in_sync if after.leader == NO_LEADER else _shrunk(image, after.in_sync, least)
    if after is row and in_sync is row.in_sync:
        return row
    return replace(after, in_sync=in_sync, partition_epoch=row.partition_epoch + 1)


def with_move_completed(image: ClusterImage, row: Row, minimum: int, said: PartitionFitness | None) -> Row:
    """Complete a move: remove the leaving replicas. Returns `row` itself while the move is incomplete, or without a
    move. An unclean start must be complete first, because its missing records are unknown. The reports in `said` (None:
    all logs are sound) are checked too, because the logs of leaving replicas are deleted. A replica with a failed log
    sends no reports. An unfit replica does not take leadership from a fit replica."""
    there = [node_id for node_id in row.target if node_id in row.in_sync and image.nodes[node_id].active]
    if said is not None:
        there = [node_id for node_id in there if node_id in said.sound]
    is_short = len(there) < (len(row.target) if len(row.adding) < len(row.removing) else min(minimum, len(row.target)))
    if is_short or not row.target or not row.clean or not set(row.adding).issubset(there):
        return row
    if said is not None and row.leader not in there and said.unfit.issuperset(there):
        return row
    fit = there if said is None else [node_id for node_id in there if node_id not in said.unfit]
    return with_replicas(image, row, row.target, fit=fit or there)


def with_replicas(
    image: ClusterImage, row: Row, replicas: tuple[int, ...], target: tuple[int, ...] = (), fit: Collection[int] = ()
) -> Row:
    """Assign these replicas; other replicas leave the in-sync set. If the leader is not assigned any more, a replica of
    `fit` leads, or none."""
    after = replace(row, replicas=replicas, target=target)
    named = {*replicas, *target}
    after = replace(after, in_sync=in_order(after, named.intersection(row.in_sync)))
    if named.issuperset((*row.replicas, *row.target)):
        return after
    candidates = led_from(image, after)
    others = [node_id for node_id in candidates if node_id in fit] or candidates
    leader = row.leader if row.leader in candidates else next(iter(others), NO_LEADER)
    return with_leader(after, leader)


def with_log_lost(image: ClusterImage, row: Row, node_id: int, minimum: int, *, is_lost: bool) -> Row:
    """The log of `node_id` is gone. If no other replica is assigned, the node begins to lead again without the
    acknowledged records (R20 at replication factor 1). Otherwise the node leaves the set. `is_lost` raises the leader
    epoch, so that no report about the lost log counts (R16)."""
    if is_alone(row, node_id):
        epoch = row.leader_epoch + 1
        return next_row(row, replace(with_leader(row, node_id), in_sync=(node_id,), unclean_epoch=epoch))
    after = without_member(image, row, node_id, minimum)
    if is_lost and after.leader_epoch == row.leader_epoch:
        after = with_leader(after, after.leader)
    return next_row(row, after)


def without_member(image: ClusterImage, row: Row, node_id: int, minimum: int) -> Row:
    """Remove `node_id` from the set, even below the minimum."""
    without = replace(row, in_sync=tuple(member for member in row.in_sync if member != node_id))
    return next_row(row, with_leader_elected(image, without, minimum))


def is_alone(row: Row, node_id: int) -> bool:
    """Whether no other node is assigned the partition, now or after the ongoing move."""
    return {*row.replicas, *row.target} == {node_id}


def holds_alone(row: Row, node_id: int) -> bool:
    """Whether no other node holds the partition; nodes that a move adds have not joined. If so, no other replica has
    the records that are missing here, and the node starts as the only replica (C30)."""
    return row.replicas == row.in_sync == (node_id,)


def next_row(row: Row, after: Row) -> Row:
    return replace(after, partition_epoch=row.partition_epoch + 1)


def with_leader(row: Row, leader: int) -> Row:
    epoch = row.leader_epoch + 1
    served = row.served_epoch if leader == NO_LEADER or not row.clean else epoch
    return replace(row, leader=leader, leader_epoch=epoch, served_epoch=served)


def led_from(image: ClusterImage, row: Row) -> list[int]:
    """Replicas that may lead: in sync, with a session, in the order of assignment."""
    nodes = image.nodes
    return [node_id for node_id in row.assigned if node_id in row.in_sync and nodes[node_id].active]


def _shrunk(image: ClusterImage, in_sync: tuple[int, ...], least: int) -> tuple[int, ...]:
    """The set without members whose session ended, down to `least` members; members with the oldest sessions leave
    first. Returns the same object if no member leaves."""
    nodes = image.nodes
    ended = [node_id for node_id in in_sync if not nodes[node_id].active]
    if not ended or len(in_sync) <= least:
        return in_sync
    if len(ended) > 1:
        ended.sort(key=lambda node_id: nodes[node_id].broker_epoch)
    going = ended[: len(in_sync) - least]
    return tuple(node_id for node_id in in_sync if node_id not in going)


def in_order(row: Row, in_sync: Iterable[int]) -> tuple[int, ...]:
    """The set in the form of rows: in the order of assignment."""
    members = set(in_sync)
    return tuple(dict.fromkeys(node_id for node_id in (*row.replicas, *row.target) if node_id in members))
