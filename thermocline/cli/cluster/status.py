"""Output of `cluster status`: JSON lines, and text for people. Pure.

The names of the JSON fields are a contract (cli.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import msgspec

from broker.config.units import show_duration
from broker.observe.cluster_findings import Finding
from broker.observe.cluster_status import BrokerRow, PartitionRow
from broker.observe.standing import InCluster, LateReplica, ReadOnly, ShownCondition
from thermocline.cli.cluster.moves.copying import Copying
from thermocline.cli.terminal.output import Cell, json_line, plain, table
from thermocline.units import show_size

_PARTITIONS_SHOWN_MAX: Final = 20
_LATE_SHOWN_MS: Final = 2_000  # a shorter lag is normal
STORE_AWAY: Final = "store_unreachable"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Epoch and version are None if unknown. `controller_for_ms`: time since the controller's claim, or since a broker
    first saw this controller.
    """

    cluster_id: str | None
    controller: int | None
    controller_epoch: int | None = None
    controller_for_ms: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of a cluster at one moment.

    These fields are by node. `silent`: the reason why it did not answer; `standings` and `conditions`: its own report
    of its place in the cluster and of its conditions; `without_http`: it answers, but not on its HTTP port;
    `token_refused`: its HTTP port refused this command's token; `hidden`: it answers, and this user may not know its
    HTTP port; `read_only`: it belongs to no cluster and reads the bucket of one. `copies`: replicas that are being
    copied.
    """

    cluster: Cluster
    brokers: Sequence[BrokerRow]
    partitions: Sequence[PartitionRow]
    silent: Mapping[int, str] = field(default_factory=dict)
    standings: Mapping[int, InCluster] = field(default_factory=dict)
    conditions: Mapping[int, Sequence[ShownCondition]] = field(default_factory=dict)
    without_http: frozenset[int] = frozenset()
    token_refused: frozenset[int] = frozenset()
    hidden: frozenset[int] = frozenset()
    read_only: Mapping[int, ReadOnly] = field(default_factory=dict)
    copies: Sequence[Copying] = ()

    def store_reachable(self, node: int) -> bool | None:
        """Whether the node reaches the store; None if unknown."""
        held = self.conditions.get(node)
        return None if held is None else all(one.name != STORE_AWAY for one in held)

    def unasked(self) -> list[int]:
        """Brokers with a session whose HTTP port cannot be reached."""
        return [one.node for one in self.brokers if one.active and one.node in self.without_http]

    def late(self) -> dict[tuple[str, int], list[LateReplica]]:
        """Replicas that lag, by partition, as their leaders report."""
        found: dict[tuple[str, int], list[LateReplica]] = {}
        for standing in self.standings.values():
            for late in standing.late:
                found.setdefault((late.topic, late.partition), []).append(late)
        return found


def json_lines(seen: ClusterState, found: Sequence[Finding], noted: Sequence[str]) -> list[str]:
    active = sum(broker.active for broker in seen.brokers)
    lines = [json_line({"kind": "cluster", **asdict(seen.cluster), "brokers_active": active})]
    lines += [json_line(_broker_fields(seen, broker)) for broker in seen.brokers]
    late = seen.late()
    copies: dict[tuple[str, int], list[Copying]] = {}
    for copy in seen.copies:
        copies.setdefault((copy.topic, copy.partition), []).append(copy)
    for partition in seen.partitions:
        behind = late.get((partition.topic, partition.partition), [])
        is_known = partition.leader in seen.standings
        fields = [{"node": one.node, "records": one.records, "bytes": one.bytes, "ms": one.ms} for one in behind]
        shown = msgspec.structs.asdict(partition)
        copied = [copy.fields() for copy in copies.get((partition.topic, partition.partition), [])]
        late_ones = fields if is_known else None
        lines.append(json_line({"kind": "partition", **shown, "late": late_ones, "copies": copied}))
    lines += [json_line({"kind": "finding", **msgspec.structs.asdict(one)}) for one in found]
    lines += [json_line({"kind": "note", "what": one}) for one in noted]
    return lines


def _broker_fields(seen: ClusterState, broker: BrokerRow) -> dict[str, Cell]:
    standing, held = seen.standings.get(broker.node), seen.conditions.get(broker.node)
    has_http = broker.node not in seen.without_http | seen.token_refused
    return {
        "kind": "broker",
        "node": broker.node,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "active": broker.active,
        "broker_epoch": broker.broker_epoch,
        "store_reachable": seen.store_reachable(broker.node),
        "leaders": broker.leaders,
        "replicas": broker.replicas,
        "answers": broker.node not in seen.silent and broker.active if has_http else None,
        "version": None if standing is None else standing.version,
        "heartbeat_age_ms": None if standing is None else standing.heartbeat_age_ms,
        "conditions": None if held is None else [one.name for one in held],
    }


def picture(
    seen: ClusterState, found: Sequence[Finding], noted: Sequence[str], copying: Sequence[str] = ()
) -> list[str]:
    """Text for people: controller, brokers, copies in progress (`copying`), findings, partitions with a problem,
    notes.
    """
    lines = [_headline(seen), "", _brokers(seen)]
    if copying:
        lines += ["", *copying]
    late = seen.late()
    lacking = [
        one for one in seen.partitions if _state(one) or _late(late.get((one.topic, one.partition), [])) is not None
    ]
    lines.append("")
    lines += [f"{one.what}\n  -> {one.do}" for one in found] or _all_well(seen)
    if lacking:
        lines += ["", _partitions(lacking[:_PARTITIONS_SHOWN_MAX], late)]
        if (more := len(lacking) - _PARTITIONS_SHOWN_MAX) > 0:
            lines.append(f"and {more} more (--json has all)")
    if noted:
        lines += ["", *(f"note: {one}" for one in noted)]
    return lines


def _all_well(seen: ClusterState) -> list[str]:
    """The line for no findings. It does not include brokers that could not be asked, because they may have
    conditions."""
    if seen.token_refused:
        return ["it is not known whether something is wrong: see the note"]
    if seen.hidden:
        return ["nothing is wrong in what this user may see"]
    return ["nothing is wrong in what could be read" if seen.unasked() else "nothing is wrong"]


def unreachable(why: Exception, *, as_json: bool) -> list[str]:
    finding = Finding("unreachable", str(why), "start the brokers, or give -b an address of one that runs")
    shown = f"{finding.what}\n  -> {finding.do}"
    return [json_line({"kind": "finding", **msgspec.structs.asdict(finding)}) if as_json else shown]


def _headline(seen: ClusterState) -> str:
    cluster, count = seen.cluster, len(seen.partitions)
    if seen.read_only:
        return f"cluster {plain(cluster.cluster_id)}, read only; {count} partition{'s' * (count != 1)}"
    words = f"controller: {'not known' if cluster.controller is None else f'broker {cluster.controller}'}"
    if cluster.controller_epoch is not None:
        words += f" (epoch {cluster.controller_epoch}"
        if cluster.controller_for_ms is not None:
            at_least = "" if cluster.controller in seen.standings else " at least"
            words += f", for {show_duration(cluster.controller_for_ms // 1000 * 1000)}{at_least}"
        words += ")"
    version = "" if cluster.version is None else f"; version {cluster.version}"
    return f"cluster {plain(cluster.cluster_id)}; {words}{version}; {count} partition{'s' * (count != 1)}"


def _brokers(seen: ClusterState) -> str:
    header = ("broker", "address", "rack", "state", "epoch", "bucket", "heard", "leads", "holds")
    rows = [
        (
            str(one.node),
            f"{one.host}:{one.port}",
            plain(one.rack),
            _broker_state(seen, one),
            plain(one.broker_epoch),
            {None: "-", True: "reached", False: "away"}[seen.store_reachable(one.node)],
            _heard(seen.standings.get(one.node)),
            str(one.leaders),
            str(one.replicas),
        )
        for one in seen.brokers
    ]
    return table(header, rows, right=("broker", "epoch", "leads", "holds"))


def _broker_state(seen: ClusterState, broker: BrokerRow) -> str:
    if not broker.active:
        return "given up" if broker.given_up else "away"
    return "silent" if broker.node in seen.silent else "active"


def _heard(standing: InCluster | None) -> str:
    """Time since the controller's last answer. A parked heartbeat is answered within 1.5 s, so any time below 4 s is
    shown as "now".
    """
    if standing is None:
        return "-"
    seconds = standing.heartbeat_age_ms // 1000
    return "now" if seconds < 4 else f"{show_duration(seconds * 1000)} ago"


def _partitions(lacking: Sequence[PartitionRow], late: Mapping[tuple[str, int], list[LateReplica]]) -> str:
    header = ("topic", "part", "leader", "epoch", "replicas", "in sync", "state", "late replicas")
    rows = [
        (
            one.topic,
            str(one.partition),
            plain(one.leader),
            plain(one.leader_epoch),
            _nodes(one.replicas) + (f" → {_nodes(one.target)}" if one.target else ""),
            _nodes(one.in_sync),
            ", ".join(_state(one)) or "-",
            _late(late.get((one.topic, one.partition), [])) or "-",
        )
        for one in lacking
    ]
    return table(header, rows, right=("part", "leader", "epoch"))


def _late(behind: Sequence[LateReplica]) -> str | None:
    """Replicas that lag for longer than a fetch takes, as one cell."""
    shown = [one for one in behind if one.ms >= _LATE_SHOWN_MS]
    return "; ".join(_late_one(one) for one in shown) or None


def _late_one(one: LateReplica) -> str:
    lasting = show_duration(one.ms // 1000 * 1000)
    if one.records is None or one.bytes is None:
        return f"{one.node}: no fetch for {lasting}"
    return f"{one.node}: {one.records} records, {show_size(one.bytes)}, for {lasting}"


def _nodes(nodes: Sequence[int]) -> str:
    return ",".join(str(node) for node in nodes) or "-"


def _state(partition: PartitionRow) -> list[str]:
    """Problems of the partition, worst first."""
    words = (
        (partition.offline, "offline"),
        (partition.starting, "starting"),
        (partition.below_min, "below min"),
        (partition.under_replicated, "under-replicated"),
    )
    return [word for holds, word in words if holds]
