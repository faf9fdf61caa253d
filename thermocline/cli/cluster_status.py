"""What `cluster status` prints: rows of brokers and partitions, as JSON lines and as a picture for people.

Owns the names of the JSON fields (a contract, cli.md) and the layout. Pure. Must not know how brokers are asked, nor
what is wrong when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import msgspec

from broker.config.units import show_duration
from thermocline.cli.output import json_line, plain, table
from thermocline.cli.tier_status import Condition

_PARTITIONS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Cluster:
    """Epoch and version None: not known. `controller_for_ms`: at least so long, as the broker that was asked knows."""

    cluster_id: str | None
    controller: int | None
    controller_epoch: int | None = None
    controller_for_ms: int | None = None
    version: int | None = None


class Broker(msgspec.Struct, frozen=True):
    """A broker; `store_reachable` None: it did not say."""

    node: int
    host: str
    port: int
    rack: str | None = None
    active: bool = True
    broker_epoch: int | None = None
    store_reachable: bool | None = None
    leaders: int = 0
    replicas: int = 0
    brokers_at: str = ""
    machine: str = ""


class Partition(msgspec.Struct, frozen=True):
    """A partition; None: not known."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    target: tuple[int, ...] | None = None
    under_replicated: bool = False
    below_min: bool | None = None
    offline: bool = False
    starting: bool | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a cluster. `silent`: brokers in session that did not answer, and why; `conditions`: what those that
    did say is not as it should be, by node."""

    cluster: Cluster
    brokers: Sequence[Broker]
    partitions: Sequence[Partition]
    silent: Mapping[int, str] = field(default_factory=dict)
    conditions: Mapping[int, Sequence[Condition]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and what to do."""

    what: str
    do: str


_BROKER_FIELDS = ("node", "host", "port", "rack", "active", "broker_epoch", "store_reachable", "leaders", "replicas")


def json_lines(seen: Seen, found: Sequence[Finding]) -> list[str]:
    """An object a line; `kind` says of what."""
    active = sum(broker.active for broker in seen.brokers)
    lines = [json_line({"kind": "cluster", **asdict(seen.cluster), "brokers_active": active})]
    for broker in seen.brokers:
        shown = msgspec.structs.asdict(broker)
        lines.append(json_line({"kind": "broker", **{name: shown[name] for name in _BROKER_FIELDS}}))
    lines += [json_line({"kind": "partition", **msgspec.structs.asdict(partition)}) for partition in seen.partitions]
    lines += [json_line({"kind": "finding", **asdict(one)}) for one in found]
    return lines


def picture(seen: Seen, found: Sequence[Finding]) -> list[str]:
    """Who decides; the brokers; partitions that lack something; what to do."""
    lines = [_headline(seen), "", _brokers(seen)]
    lacking = [one for one in seen.partitions if _state(one)]
    if lacking:
        lines += ["", _partitions(lacking[:_PARTITIONS_SHOWN_MAX])]
        if (more := len(lacking) - _PARTITIONS_SHOWN_MAX) > 0:
            lines.append(f"and {more} more (--json has all)")
    lines.append("")
    lines += [f"{one.what}\n  -> {one.do}" for one in found] or ["nothing is wrong"]
    return lines


def _headline(seen: Seen) -> str:
    cluster, count = seen.cluster, len(seen.partitions)
    words = f"controller: {'not known' if cluster.controller is None else f'broker {cluster.controller}'}"
    if cluster.controller_epoch is not None:
        words += f" (epoch {cluster.controller_epoch}"
        if cluster.controller_for_ms is not None:
            words += f", for {show_duration(cluster.controller_for_ms // 1000 * 1000)} at least"
        words += ")"
    version = "" if cluster.version is None else f"; version {cluster.version}"
    return f"cluster {plain(cluster.cluster_id)}; {words}{version}; {count} partition{'s' * (count != 1)}"


def _brokers(seen: Seen) -> str:
    header = ("broker", "address", "rack", "state", "epoch", "bucket", "leads", "holds")
    rows = [
        (
            str(one.node),
            f"{one.host}:{one.port}",
            plain(one.rack),
            "silent" if one.node in seen.silent else "active" if one.active else "away",
            plain(one.broker_epoch),
            {None: "-", True: "reached", False: "away"}[one.store_reachable],
            str(one.leaders),
            str(one.replicas),
        )
        for one in seen.brokers
    ]
    return table(header, rows, right=("broker", "epoch", "leads", "holds"))


def _partitions(lacking: Sequence[Partition]) -> str:
    header = ("topic", "part", "leader", "epoch", "replicas", "in sync", "state")
    rows = [
        (
            one.topic,
            str(one.partition),
            plain(one.leader),
            plain(one.leader_epoch),
            _nodes(one.replicas),
            _nodes(one.in_sync),
            ", ".join(_state(one)),
        )
        for one in lacking
    ]
    return table(header, rows, right=("part", "leader", "epoch"))


def _nodes(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes) or "-"


def _state(partition: Partition) -> list[str]:
    """What it lacks, worst first."""
    words = (
        (partition.offline, "offline"),
        (partition.starting, "starting"),
        (partition.below_min, "below min"),
        (partition.under_replicated, "under-replicated"),
    )
    return [word for holds, word in words if holds]
