"""How a row follows another, whatever happened: who leads then, who stays in sync, when a move is over. Pure.

Owns the steps that events of `rows` are made of. Always true: who leads is an in-sync replica with a session, the
first in the order of assignment; a leader that changes, or begins again, has a leader epoch one above, and so has a row
that takes a node out of `replicas` and `target`, whoever leads (R16): no report of that node outlives its log; nobody
leaves an in-sync set below the effective minimum, unless his log is gone; a move is over when all who join are in sync,
have sessions and say nothing bad of their logs, with as many as have to acknowledge, or with all of the target where
there are to be fewer (ADR 19), and one of them is fit to lead (R19). Must not know which event it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from broker.metadata.image import ClusterImage
from broker.metadata.records import NO_LEADER, Row


class Said(NamedTuple):
    """What nodes say of one partition: whose log of it is `sound`, whose `failed` or is lost (of others it is not known
    yet), and who is `unfit` to lead anything."""

    sound: frozenset[int]
    failed: frozenset[int]
    unfit: frozenset[int]


def settled(image: ClusterImage, row: Row, minimum: int, *, begins_again: int = NO_LEADER) -> Row:
    """What every event ends with: a leader if there can be one, then members without session out, down to `minimum`
    (min.insync.replicas, or all replicas). `begins_again`: what this node leads it leads in a new epoch. The same
    object where nothing changes."""
    after = row
    candidates = led_from(image, after)
    if after.leader not in candidates:
        leader = candidates[0] if candidates else NO_LEADER
        if leader != after.leader:
            after = led_by(after, leader)
    elif after.leader == begins_again and after.leader_epoch == row.leader_epoch:
        after = led_by(after, after.leader)
    least = min(minimum, len(after.replicas))
    in_sync = after.in_sync if after.leader == NO_LEADER else _shrunk(image, after.in_sync, least)
    if after is row and in_sync is row.in_sync:
        return row
    return replace(after, in_sync=in_sync, partition_epoch=row.partition_epoch + 1)


def arrived(image: ClusterImage, row: Row, minimum: int, said: Said | None) -> Row:
    """Without those that a move was to take out, once it is over; the same object while it is not, or none is under
    way. A start that is not done comes first: what it lacks is not known yet. `said` (None: all are well) decides with
    it, for who goes takes his log along: a log that failed reports nothing any more, whatever the set says, and who is
    unfit gets no leadership that a fit one has."""
    there = [node_id for node_id in row.target if node_id in row.in_sync and image.nodes[node_id].active]
    if said is not None:
        there = [node_id for node_id in there if node_id in said.sound]
    is_short = len(there) < (len(row.target) if len(row.adding) < len(row.removing) else min(minimum, len(row.target)))
    if is_short or not row.target or not row.clean or not set(row.adding).issubset(there):
        return row
    if said is not None and row.leader not in there and said.unfit.issuperset(there):
        return row
    fit = there if said is None else [node_id for node_id in there if node_id not in said.unfit]
    return assigned_to(image, row, row.target, fit=fit or there)


def assigned_to(
    image: ClusterImage, row: Row, replicas: tuple[int, ...], target: tuple[int, ...] = (), fit: Collection[int] = ()
) -> Row:
    """These are to hold it: who is none of them is out of the set, and who leads is one of them, one of `fit` where
    another has to, or nobody."""
    after = replace(row, replicas=replicas, target=target)
    named = {*replicas, *target}
    after = replace(after, in_sync=in_order(after, named.intersection(row.in_sync)))
    if named.issuperset((*row.replicas, *row.target)):
        return after
    candidates = led_from(image, after)
    others = [node_id for node_id in candidates if node_id in fit] or candidates
    leader = row.leader if row.leader in candidates else next(iter(others), NO_LEADER)
    return led_by(after, leader)


def log_gone(image: ClusterImage, row: Row, node_id: int, minimum: int, *, is_lost: bool) -> Row:
    """What `node_id` held of this partition is gone. Nobody else holds it: it begins again there, without all that was
    acknowledged (R20 at replication factor 1). Else it is out of the set; a lost log raises the leader epoch, so that
    no report of it outlives it (R16)."""
    if is_alone(row, node_id):
        epoch = row.leader_epoch + 1
        return next_row(row, replace(led_by(row, node_id), in_sync=(node_id,), unclean_epoch=epoch))
    after = without_member(image, row, node_id, minimum)
    if is_lost and after.leader_epoch == row.leader_epoch:
        after = led_by(after, after.leader)
    return next_row(row, after)


def without_member(image: ClusterImage, row: Row, node_id: int, minimum: int) -> Row:
    """`node_id` is out of the set, whatever the minimum."""
    without = replace(row, in_sync=tuple(member for member in row.in_sync if member != node_id))
    return next_row(row, settled(image, without, minimum))


def is_alone(row: Row, node_id: int) -> bool:
    """Whether nobody else is assigned the partition, nor will be by a move that is under way."""
    return {*row.replicas, *row.target} == {node_id}


def holds_alone(row: Row, node_id: int) -> bool:
    """Whether nobody else holds the partition: those who are to, by a move, joined nothing yet. What is lacking here is
    nowhere then, and it begins as where nobody else is assigned it (C30)."""
    return row.replicas == row.in_sync == (node_id,)


def next_row(row: Row, after: Row) -> Row:
    return replace(after, partition_epoch=row.partition_epoch + 1)


def led_by(row: Row, leader: int) -> Row:
    epoch = row.leader_epoch + 1
    served = row.served_epoch if leader == NO_LEADER or not row.clean else epoch
    return replace(row, leader=leader, leader_epoch=epoch, served_epoch=served)


def led_from(image: ClusterImage, row: Row) -> list[int]:
    """Who may lead: in sync, with a session, in the order of assignment."""
    nodes = image.nodes
    return [node_id for node_id in row.assigned if node_id in row.in_sync and nodes[node_id].active]


def _shrunk(image: ClusterImage, in_sync: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Without members whose session ended, the oldest sessions first, as far as `least` lets them go; the same object
    where nobody goes."""
    nodes = image.nodes
    ended = [node_id for node_id in in_sync if not nodes[node_id].active]
    if not ended or len(in_sync) <= least:
        return in_sync
    if len(ended) > 1:
        ended.sort(key=lambda node_id: nodes[node_id].broker_epoch)
    going = ended[: len(in_sync) - least]
    return tuple(node_id for node_id in in_sync if node_id not in going)


def in_order(row: Row, in_sync: Iterable[int]) -> tuple[int, ...]:
    """A set as rows write it: in the order of assignment."""
    members = set(in_sync)
    return tuple(dict.fromkeys(node_id for node_id in (*row.replicas, *row.target) if node_id in members))
