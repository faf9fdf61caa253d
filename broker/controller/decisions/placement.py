"""Chooses the replicas of new partitions, or checks requested replicas. Pure.

The first replica leads and has a session. Only registered brokers are chosen, each once. Leaders are spread evenly over
the brokers in session: within the topic, then over all topics. Replicas are spread over fault domains (R15): racks, or
machines without a rack. More replicas than domains are allowed. A broker without a session is chosen only where those
with one are too few, as in Kafka: a topic that is created while a broker restarts keeps its replication factor. Errors
are in Kafka's words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import Final, TypeAlias

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from broker.metadata.records import FORGOTTEN, Node, Row

Replicas: TypeAlias = tuple[int, ...]  # node ids of one partition, its leader first

_WRONG = ErrorCode.INVALID_REPLICA_ASSIGNMENT
_COUNTED_MAX: Final = 2_000  # rows in which leaders are counted, newest topics first: 0.2 ms


def spread(image: ClusterImage, count: int, replication_factor: int, rows: Sequence[Row] = ()) -> list[Replicas]:
    """Replicas of `count` new partitions of a topic with `rows`. Raises ApiError INVALID_REPLICATION_FACTOR when there
    are too few brokers."""
    says = f"Unable to replicate the partition {replication_factor} time(s): "
    nodes = registered(image)
    if replication_factor > len(nodes):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{says}The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(nodes)} broker(s) are registered or some brokers have all their log directories cordoned.",
        )
    in_session = [node for node in nodes.values() if node.active]
    if not in_session:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{says}All brokers are currently fenced.")
    domains = {node.node_id: domain(node.rack, node.boot_id) for node in in_session}
    order = _from_the_idlest(_striped(domains), image, rows)
    found = [_replicas(order, domains, turn, min(replication_factor, len(order))) for turn in range(count)]
    if replication_factor <= len(order):
        return found
    fenced = sorted(nodes.keys() - domains.keys())
    domains |= {node_id: domain(nodes[node_id].rack, nodes[node_id].boot_id) for node_id in fenced}
    turns = [fenced[at:] + fenced[:at] for at in range(len(fenced))]
    return [
        _extended(replicas, turns[turn % len(fenced)], domains, replication_factor)
        for turn, replicas in enumerate(found)
    ]


def registered(image: ClusterImage) -> dict[int, Node]:
    """The brokers that may get replicas, by node id, in order. The placeholder of a rebuilt cluster is no broker, and a
    broker that was given up may never return. Neither gets more replicas, because a node with replicas cannot leave the
    cluster."""
    return {node_id: node for node_id, node in sorted(image.nodes.items()) if _may_hold(node)}


def _may_hold(node: Node) -> bool:
    return node.node_id != UNKNOWN_REPLICA and node.directory_id != FORGOTTEN


def preferences(domains: Mapping[int, str], count: int) -> list[Replicas]:
    """For each of `count` partitions, all nodes in order of preference. `domains`: the fault domain of each node."""
    order = _striped(domains)
    return [_replicas(order, domains, turn, len(order)) for turn in range(count)]


def domain(rack: str | None, boot_id: str) -> str:
    """The fault domain: the rack. Without a rack it is the machine since its last boot."""
    return f"rack {rack}" if rack is not None else f"boot {boot_id}"


def _striped(domains: Mapping[int, str]) -> list[int]:
    """Nodes ordered so that neighbours are in different domains, starting with the largest domains."""
    members: dict[str, list[int]] = {}
    for node_id in sorted(domains):
        members.setdefault(domains[node_id], []).append(node_id)
    rounds = zip_longest(*sorted(members.values(), key=len, reverse=True))
    return [node_id for each in rounds for node_id in each if node_id is not None]


def _from_the_idlest(order: list[int], image: ClusterImage, rows: Sequence[Row]) -> list[int]:
    """`order`, rotated so that the node that leads the fewest partitions of the topic is first. Among equal nodes, the
    node that leads the fewest partitions of all topics is first.
    """
    own = Counter(row.leader for row in rows)
    newest = chain.from_iterable(topic.rows for topic in reversed(image.topics.values()))
    all_led = Counter(row.leader for row in islice(newest, _COUNTED_MAX))
    first = min(range(len(order)), key=lambda at: (own[order[at]], all_led[order[at]], at))
    return order[first:] + order[:first]


def _replicas(order: Sequence[int], domains: Mapping[int, str], turn: int, count: int) -> Replicas:
    """Nodes of partition number `turn`: its leader, then nodes of other domains, then the rest. The followers shift by
    one with every round of leaders, so that the partitions of a failed broker get several new leaders.
    """
    around, at = divmod(turn, len(order))
    others = len(order) - 1
    follow = [order[(at + 1 + (around + further) % others) % len(order)] for further in range(others)]
    return _extended((order[at],), follow, domains, count)


def _extended(replicas: Replicas, nodes: Sequence[int], domains: Mapping[int, str], count: int) -> Replicas:
    """`replicas` with more of `nodes`, up to `count`: nodes of other domains first, then the rest."""
    chosen = list(replicas)
    for only_new_domains in (True, False):
        for node_id in nodes:
            if len(chosen) == count:
                return tuple(chosen)
            taken = {domains[each] for each in chosen} if only_new_domains else ()
            if node_id not in chosen and domains[node_id] not in taken:
                chosen.append(node_id)
    return tuple(chosen)


def assigned(image: ClusterImage, assignments: Sequence[tuple[int, Sequence[int]]]) -> list[Replicas]:
    """Replicas of a new topic by (partition, replicas) pairs. ApiError for an invalid assignment."""
    found: dict[int, Replicas] = {}
    replication_factor = None
    for index, node_ids in assignments:
        if index in found:
            raise ApiError(_WRONG, f"Found multiple manual partition assignments for partition {index}")
        found[index] = _checked(image, index, node_ids, replication_factor)
        replication_factor = len(node_ids)
    if found.keys() != set(range(len(found))):
        raise ApiError(_WRONG, "partitions should be a consecutive 0-based integer sequence")
    return [found[index] for index in range(len(found))]


def added(image: ClusterImage, assignments: Sequence[Sequence[int]], count: int, rows: Sequence[Row]) -> list[Replicas]:
    """Replicas of `count` new partitions of a topic with these rows. ApiError unless each partition has one assignment,
    with the topic's replication factor."""
    if len(assignments) != count:
        raise ApiError(
            _WRONG,
            f"Attempted to add {count} additional partition(s), but only {len(assignments)} assignment(s) were "
            "specified.",
        )
    factor = len(rows[0].target or rows[0].replicas)
    return [_checked(image, index, node_ids, factor) for index, node_ids in enumerate(assignments, start=len(rows))]


def _checked(image: ClusterImage, index: int, node_ids: Sequence[int], replication_factor: int | None) -> Replicas:
    check_assignment(image, node_ids)
    if replication_factor is not None and len(node_ids) != replication_factor:
        raise ApiError(
            _WRONG,
            f"The manual partition assignment includes a partition with {len(node_ids)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )
    if not any(image.nodes[node_id].active for node_id in node_ids):
        raise ApiError(
            _WRONG,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
    return tuple(node_ids)


def check_assignment(image: ClusterImage, node_ids: Sequence[int]) -> None:
    """ApiError for an empty list, a node that may not get replicas (`registered`), or a node named twice."""
    if not node_ids:
        raise ApiError(_WRONG, "The manual partition assignment includes an empty replica list.")
    last = None
    for node_id in sorted(node_ids):
        node = image.nodes.get(node_id)
        if node is None or not _may_hold(node):
            raise ApiError(
                _WRONG,
                f"The manual partition assignment includes broker {node_id}, but no such broker is registered.",
            )
        if node_id == last:
            raise ApiError(_WRONG, f"The manual partition assignment includes the broker {node_id} more than once.")
        last = node_id
