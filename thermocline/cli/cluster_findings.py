"""What is wrong with a cluster, and what to do: from one look at it, in sentences.

Owns the words and their order, worst first. Always true: a cluster in which every broker answers and every partition
has its leader and its replicas has no finding; each finding ends with what a person can do. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.config.addresses import parse_address
from thermocline.cli.cluster_status import Broker, Finding, Partition, Seen

SHOWN_MAX: Final = 3


def findings(seen: Seen) -> list[Finding]:
    """What holds now."""
    return [*_of_partitions(seen), *_of_brokers(seen), *_of_links(seen.brokers)]


def _of_partitions(seen: Seen) -> Iterator[Finding]:
    away = {one.node for one in seen.brokers if not one.active} | seen.silent.keys()
    if offline := [one for one in seen.partitions if one.offline]:
        awaited = sorted({node for one in offline for node in one.in_sync or one.replicas} & away)
        who = f"start {_brokers(awaited)} again" if awaited else "look at the log of the controller"
        yield Finding(
            f"{_named(offline)}: no leader, so neither written nor read",
            f"{who}: one of those that hold all that was acknowledged has to come back",
        )
    if starting := [one for one in seen.partitions if one.starting]:
        yield Finding(
            f"{_named(starting)}: begun by a leader that may lack acknowledged records, and not done yet",
            "wait; when it lasts, look at the log of the leader",
        )
    if below := [one for one in seen.partitions if one.below_min and not one.offline]:
        yield Finding(
            f"{_named(below)}: below min.insync.replicas, so writes with acks=all are refused",
            _back(away, below),
        )
    under = [one for one in seen.partitions if one.under_replicated and not one.offline and not one.below_min]
    if under:
        yield Finding(f"{_named(under)}: fewer in-sync replicas than assigned ones", _back(away, under))


def _back(away: set[int], partitions: Sequence[Partition]) -> str:
    missing = sorted({node for one in partitions for node in one.replicas} & away)
    if not missing:
        return "wait until the replicas that lag have caught up; when it lasts, look at the logs of their brokers"
    return f"start {_brokers(missing)} again, on the same data directory: what was written meanwhile is copied"


def _of_brokers(seen: Seen) -> Iterator[Finding]:
    cluster = seen.cluster
    in_session = {one.node for one in seen.brokers if one.active}
    if cluster.controller is None or cluster.controller not in in_session:
        who = "nobody" if cluster.controller is None else f"broker {cluster.controller}, which has no session,"
        yield Finding(
            f"{who} is the controller: topics cannot be changed, and nobody is elected",
            "wait for half a minute: any broker takes over that reaches the bucket; when none does, check the bucket",
        )
    for one in seen.brokers:
        if not one.active:
            yield Finding(
                f"broker {one.node} ({one.host}:{one.port}) has no session",
                "start it again on its data directory, or on an empty one when its disk is lost",
            )
    for node, why in sorted(seen.silent.items()):
        yield Finding(
            f"broker {node} has a session and does not answer here: {why}",
            "check its process, and the address it advertises (--advertise)",
        )
    for node, held in sorted(seen.conditions.items()):
        for condition in held:
            yield Finding(
                f"broker {node}: {condition.name}: {condition.says}",
                f"see {condition.name} in docs/operations.md",
            )


def _of_links(brokers: Sequence[Broker]) -> Iterator[Finding]:
    """Brokers of several machines that tell each other loopback's addresses."""
    active = [one for one in brokers if one.active and one.machine]
    if len({one.machine for one in active}) < 2:
        return
    local = [one.node for one in active if one.brokers_at and parse_address(one.brokers_at, "brokers_at").loopback]
    if local:
        yield Finding(
            f"{_brokers(local)} can be reached by brokers of the same machine only, and there are others",
            "give each --internal with an address that the others reach (and --insecure, on a trusted network)",
        )


def _named(partitions: Sequence[Partition]) -> str:
    names = ", ".join(f"{one.topic}-{one.partition}" for one in partitions[:SHOWN_MAX])
    more = f" and {len(partitions) - SHOWN_MAX} more" if len(partitions) > SHOWN_MAX else ""
    return f"{names}{more}"


def _brokers(nodes: Sequence[int]) -> str:
    return f"broker{'s' * (len(nodes) != 1)} {', '.join(str(node) for node in nodes)}"
