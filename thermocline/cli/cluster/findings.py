"""Findings about a cluster, worst first: those of its image, and those that are visible only from outside. Pure.

The view from outside shows brokers that do not answer and brokers with an old image. Findings of the image have the
broker's own words (broker.observe.cluster_findings). Each finding ends with the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.config.units import show_duration
from broker.observe.cluster_findings import (
    OF_IMAGE,
    Finding,
    broker_findings,
    link_findings,
    misplaced_leaders,
    partition_findings,
    shared_domains,
)
from broker.observe.conditions import SILENCE_WARN_MS
from thermocline.cli.clients.connections import NEEDS_DESCRIBE_CONFIGS, token_refused
from thermocline.cli.cluster.status import STORE_AWAY, ClusterState

THROTTLE_IDLE_MS: Final = 3_600_000


def findings(seen: ClusterState) -> list[Finding]:
    return [
        *partition_findings(seen.partitions, seen.brokers),
        *_of_controller(seen),
        *broker_findings(seen.brokers),
        *_of_brokers(seen),
        *link_findings(seen.brokers),
    ]


def notes(seen: ClusterState) -> list[str]:
    found = [
        *shared_domains(seen.partitions, seen.brokers),
        *misplaced_leaders(seen.partitions, seen.brokers),
    ]
    found += (
        f"broker {node} is {description}; this command does not ask the cluster's own brokers"
        for node, description in seen.read_only.items()
    )
    for node, standing in sorted(seen.standings.items()):
        if strays := standing.strays:
            more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
            found.append(
                f"broker {node}: {strays[0]}{more} on its disk: logs that the cluster does not assign to it; nothing "
                "reads them, and they are deleted a week after they were first seen"
            )
    found += _forgotten_throttle(seen)
    if unasked := seen.unasked():
        nodes = ", ".join(map(str, unasked))
        found.append(
            f"the HTTP port of broker {nodes} cannot be reached from here, so its conditions and lags are not known "
            "(--http; by default it listens on loopback only)"
        )
    if seen.token_refused:
        found.append(token_refused("conditions", seen.token_refused))
    if seen.hidden:
        nodes = ", ".join(map(str, sorted(seen.hidden)))
        found.append(
            f"the conditions, lags and controller's view of broker {nodes} are not known: {NEEDS_DESCRIBE_CONFIGS}, "
            "and the token of the HTTP port; topics that this user may not describe are not shown"
        )
    return found


def _forgotten_throttle(seen: ClusterState) -> list[str]:
    """The finding about a throttle that may be forgotten, by the report of the broker that has watched longest."""
    longest = max(seen.standings.values(), key=lambda standing: standing.throttled_idle_ms, default=None)
    if longest is None or longest.throttled_idle_ms < THROTTLE_IDLE_MS:
        return []
    return [
        f"replication is throttled ({longest.throttled}), and nothing has moved for "
        f"{show_duration(longest.throttled_idle_ms // 60_000 * 60_000)}: replicas that fall behind cannot catch up "
        "faster; remove the throttle with kafka-reassign-partitions.sh --verify, or kafka-configs.sh --alter "
        "--delete-config"
    ]


def _of_controller(seen: ClusterState) -> Iterator[Finding]:
    cluster = seen.cluster
    in_session = {one.node for one in seen.brokers if one.active}
    if seen.read_only or (cluster.controller is not None and cluster.controller in in_session):
        return
    who = (
        "no broker is the controller"
        if cluster.controller is None
        else f"the controller, broker {cluster.controller}, has no session"
    )
    yield Finding(
        "no_controller",
        f"{who}: topics cannot be changed, and no leaders are elected",
        "wait for half a minute: a broker that reaches the bucket takes over; when none does, check the bucket",
    )


def _of_brokers(seen: ClusterState) -> Iterator[Finding]:
    active = {one.node for one in seen.brokers if one.active}
    for node, why in sorted(seen.silent.items()):
        if node in active:
            lasting = " (it is the controller: another takes over within half a minute)"
            yield Finding(
                "broker_silent",
                f"broker {node} has a session and does not answer here: {why}",
                "check its process, and the address it advertises (--advertise)"
                + lasting * (node == seen.cluster.controller),
            )
    newest = max((one.version for one in seen.standings.values()), default=0)
    for node, standing in sorted(seen.standings.items()):
        if standing.version < newest and standing.heartbeat_age_ms > SILENCE_WARN_MS:
            yield Finding(
                "behind_cluster",
                f"broker {node} has applied version {standing.version}, but the newest is {newest}",
                "look again; when it lasts, check its connection to the controller (--internal) and to the bucket",
            )
    held: dict[str, list[tuple[int, str]]] = {}
    for node, conditions in sorted(seen.conditions.items()):
        for condition in conditions:
            held.setdefault(condition.name, []).append((node, condition.says))
    for name, reports in held.items():
        if name in OF_IMAGE:
            continue
        (first, says), *others = reports
        who = f"broker {first}"
        if others:
            who += f" (and {', '.join(str(node) for node, _ in others)})"
        do = f"see {name} in docs/operations.md"
        if name == STORE_AWAY and len(active) > 1:
            do += "; nothing is decided until the bucket answers, so restart no broker meanwhile"
        yield Finding(name, f"{who}: {name}: {says}", do)
