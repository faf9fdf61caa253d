"""Findings: problems of a cluster with their remedies, as sentences made from one image.

There are no findings if every broker has a session and every partition has its leader and replicas. docs/operations.md
has a section on each name. `thermocline cluster status` shows all findings. As a condition, each finding is reported by
one broker (cluster_summary). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from broker.config.network.addresses import parse_address
from broker.metadata.rebuilt import UNKNOWN_REPLICA
from broker.observe.cluster_status import BrokerRow, PartitionRow

SHOWN_MAX: Final = 3
_REASONS_MAX: Final = 4  # findings about partitions without a leader; all further partitions share one finding


class Finding(msgspec.Struct, frozen=True):
    name: str
    what: str
    do: str


NO_LEADER: Final = "no_leader"
RECOVERING: Final = "recovering"
BELOW_MIN: Final = "below_min"
UNDER_REPLICATED: Final = "under_replicated"
BROKER_AWAY: Final = "broker_away"
OF_IMAGE: Final = frozenset((NO_LEADER, RECOVERING, BELOW_MIN, UNDER_REPLICATED, BROKER_AWAY))
"""Findings from the image, the same on every broker."""


def partition_findings(partitions: Iterable[PartitionRow], brokers: Iterable[BrokerRow]) -> Iterator[Finding]:
    """Findings about partitions, worst first; `brokers`: all brokers of the cluster."""
    lacking = [one for one in partitions if one.offline or one.starting or one.under_replicated]
    active = {one.node for one in brokers if one.active}
    yield from _leaderless([one for one in lacking if one.offline], active)
    if starting := [one for one in lacking if one.starting and not one.offline]:
        yield Finding(
            RECOVERING,
            f"{_named(starting)}: the leader may lack acknowledged records; it serves when it has compared its log "
            "with the bucket",
            "wait; if it lasts, check the bucket and the log of the leader",
        )
    served = [one for one in lacking if not one.offline]
    if below := [one for one in served if one.below_min]:
        yield Finding(
            BELOW_MIN,
            f"{_named(below)}: fewer in-sync replicas than min.insync.replicas, so writes with acks=all are refused",
            _back(active, below),
        )
    if under := [one for one in served if one.under_replicated and not one.below_min]:
        yield Finding(
            UNDER_REPLICATED, f"{_named(under)}: fewer in-sync replicas than assigned ones", _back(active, under)
        )


def broker_findings(brokers: Iterable[BrokerRow]) -> Iterator[Finding]:
    """Findings about brokers without a session."""
    for one in brokers:
        if not one.active:
            at = f" ({one.host}:{one.port})" if one.host else ""
            if one.node == UNKNOWN_REPLICA:
                what = "cluster.json was rebuilt from the manifests: nothing is deleted from the bucket"
                do = "check that everything is there, then: thermocline cluster rebuild --done"
            elif one.given_up:
                what = f"broker {one.node}{at} was given up, and replicas are still assigned to it"
                do = (
                    "start a broker under its node id, on any directory, and it copies the replicas; or move the "
                    f"replicas to other brokers: thermocline cluster drain {one.node}"
                )
            else:
                what = f"broker {one.node}{at} has no session"
                do = (
                    "start it again on its data directory, or on an empty one when its disk is lost; if the broker "
                    f"never returns: thermocline cluster forget {one.node}"
                )
            yield Finding(BROKER_AWAY, what, do)


def link_findings(brokers: Iterable[BrokerRow]) -> Iterator[Finding]:
    """Findings about brokers on several machines that know each other by loopback addresses."""
    active = [one for one in brokers if one.active and one.machine]
    if len({one.machine for one in active}) < 2:
        return
    local = [one.node for one in active if one.brokers_at and parse_address(one.brokers_at, "brokers_at").loopback]
    if local:
        yield Finding(
            "loopback_only",
            f"{named_brokers(local)} can be reached by brokers of the same machine only, but the cluster has brokers "
            "on other machines",
            "give each --internal with an address that the others reach (and --insecure, on a trusted network)",
        )


def shared_domains(partitions: Iterable[PartitionRow], brokers: Iterable[BrokerRow]) -> Iterator[str]:
    """Remarks on partitions whose replicas are all in one rack, or all on one machine (R15)."""
    domain = {one.node: _domain(one) for one in brokers}
    alone: dict[tuple[str, str], list[PartitionRow]] = {}
    for one in partitions:
        found = {domain.get(node, ("", "")) for node in one.replicas}
        if len(one.replicas) > 1 and len(found) == 1 and (shared := found.pop()) != ("", ""):
            alone.setdefault(shared, []).append(one)
    for (kind, name), together in sorted(alone.items()):
        where = f"rack {name}" if kind == "rack" else "one machine"
        yield f"{_named(together)}: all replicas are on {where}, and are lost with it"


def misplaced_leaders(partitions: Iterable[PartitionRow], brokers: Iterable[BrokerRow]) -> Iterator[str]:
    """Remarks on partitions whose first replica runs again and could lead, but does not."""
    active = {one.node for one in brokers if one.active}
    moved = [
        one
        for one in partitions
        if one.leader is not None
        and not one.target
        and one.leader != one.replicas[0]
        and one.replicas[0] in one.in_sync
        and one.replicas[0] in active
    ]
    if moved:
        yield (
            f"{_named(moved)}: not led by the first replica, which could lead; the controller elects it within "
            "leader.imbalance.check.interval.seconds, unless auto.leader.rebalance.enable is false; to elect "
            "it now: kafka-leader-election.sh --election-type preferred --all-topic-partitions"
        )


def _domain(broker: BrokerRow) -> tuple[str, str]:
    return ("rack", broker.rack) if broker.rack else ("machine", broker.machine) if broker.machine else ("", "")


def _leaderless(offline: Sequence[PartitionRow], active: Collection[int]) -> Iterator[Finding]:
    """A finding for each reason, such as a set of missing brokers."""
    by_reason: dict[tuple[str, str], list[PartitionRow]] = {}
    for one in offline:
        by_reason.setdefault(_reason(one, active), []).append(one)
    reasons = sorted(by_reason.items(), key=lambda each: -len(each[1]))
    for (why, do), partitions in reasons[:_REASONS_MAX]:
        yield Finding(NO_LEADER, f"{_named(partitions)}: no leader, so neither written nor read: {why}", do)
    if rest := [one for _, partitions in reasons[_REASONS_MAX:] for one in partitions]:
        yield Finding(
            NO_LEADER,
            f"{_named(rest)}: no leader, for similar reasons",
            "repair the partitions above first; --json lists all",
        )


def _reason(partition: PartitionRow, active: Collection[int]) -> tuple[str, str]:
    """The reason why the partition has no leader, and the remedy."""
    if UNKNOWN_REPLICA in partition.replicas:
        return (
            "its replicas are unknown, because cluster.json was rebuilt",
            "start every broker that has its directory, then: thermocline cluster restore",
        )
    if not partition.in_sync:
        away = sorted(set(partition.replicas) - set(active))
        do = f"start {named_brokers(away)} again" if away else "wait for half a minute"
        return (
            "every replica with all acknowledged records lost its log",
            f"{do}: when all replicas have reported, the one with most records leads; if a broker never "
            "returns, give it up: thermocline cluster forget NODE",
        )
    away = sorted(set(partition.in_sync) - set(active))
    if away:
        one_of = "one of " if len(away) > 1 else ""
        return (
            f"only {named_brokers(sorted(partition.in_sync))} hold{'s' * (len(partition.in_sync) == 1)} all "
            f"acknowledged records, and {_are_away(away)}",
            f"start {one_of}{named_brokers(away)} again, on the same data directory",
        )
    return (
        f"{named_brokers(sorted(partition.in_sync))} hold{'s' * (len(partition.in_sync) == 1)} all acknowledged "
        "records, and cannot lead",
        "look there for the conditions log_offline and disk_full, and read its log; restart it when the disk works",
    )


def _are_away(nodes: Sequence[int]) -> str:
    return "it is away" if len(nodes) == 1 else f"{', '.join(map(str, nodes))} are away"


def _back(active: Collection[int], partitions: Sequence[PartitionRow]) -> str:
    missing = sorted({node for one in partitions for node in one.replicas} - set(active))
    if not missing:
        return "wait until the replicas that lag have caught up; when it lasts, look at the logs of their brokers"
    return f"start {named_brokers(missing)} again, on the same data directory: the records written meanwhile are copied"


def _named(partitions: Sequence[PartitionRow]) -> str:
    names = ", ".join(f"{one.topic}-{one.partition}" for one in partitions[:SHOWN_MAX])
    return names + (f" and {len(partitions) - SHOWN_MAX} more" if len(partitions) > SHOWN_MAX else "")


def named_brokers(nodes: Sequence[int]) -> str:
    """`broker 1`, `brokers 1, 2`."""
    return f"broker{'s' * (len(nodes) != 1)} {', '.join(str(node) for node in nodes)}"
