"""Reads the state of a cluster: asks every broker in parallel and takes the newest image. Also reads sizes for plans of
moves.

One broker that answers is enough; the reports of the others are then unknown. An HTTP response names its broker, and
counts as the answer of that broker. A cluster without our HTTP port (Apache Kafka) is described by Metadata alone; its
hot bytes are the logs on its leaders' disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from broker.config.network.addresses import show_address
from broker.observe.cluster_status import BrokerRow, ClusterStatus, PartitionRow
from broker.wire.messages import MetadataResponse, MetadataResponseBroker
from thermocline.cli.clients.connections import ask_json, connect, get_json, http_of
from thermocline.cli.clients.http_client import HttpAddress
from thermocline.cli.clients.statuses import BrokerStatus, PartitionTierStatus
from thermocline.cli.clients.wire_client import BrokerUnreachable, WireClient
from thermocline.cli.cluster.client import Name, Reassignment, under_way
from thermocline.cli.cluster.moves.copying import Copying
from thermocline.cli.cluster.moves.plan import Assignment, Place
from thermocline.cli.cluster.status import Cluster, ClusterState

_ANSWER_S: Final = 3.0  # timeout of one broker; brokers are asked in parallel
_ASKED_MAX: Final = 16  # at once
_STATUS_S: Final = 10.0  # 10 000 partitions take some 100 ms


@dataclass(frozen=True, slots=True)
class _Answer:
    """One broker's response. `silent`: the reason why there is none; `http`: the broker's HTTP address; `own`: the
    status that this address returned; `token_refused`: the address refused the token; `hidden`: this user may not know
    the address.
    """

    node: int
    silent: str | None = None
    http: HttpAddress | None = None
    own: BrokerStatus | None = None
    token_refused: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Bytes:
    """Sizes of a partition, None if unknown: bytes that a new replica copies, and bytes in the bucket."""

    hot: int | None = None
    cold: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The cluster's state, and the values of a plan made from it."""

    seen: ClusterState
    places: Sequence[Place]
    partitions: Sequence[Assignment]

    def broker(self, node: int) -> BrokerRow | None:
        return next((row for row in self.seen.brokers if row.node == node), None)


class ClusterReader:
    """Reads one cluster repeatedly. If the brokers of `bootstrap` do not answer, the brokers of an earlier read are
    asked."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._known: list[str] = []
        self._http: dict[int, HttpAddress] = {}  # HTTP addresses by node, as of the last read

    def connect(self, timeout_s: float = 10.0) -> WireClient:
        """Connect to the first broker that answers. Raises BrokerUnreachable when no broker answers."""
        return connect(",".join((self._bootstrap, *self._known)), timeout_s)

    def read(self) -> ClusterState:
        """The cluster now, without sizes. Raises BrokerUnreachable when no broker answers."""
        with self.connect(_ANSWER_S) as client:
            metadata = client.metadata()
        self._known = [show_address(broker.host, broker.port) for broker in metadata.brokers]
        if not metadata.brokers:
            return _as_metadata_has_it(metadata, {})
        with ThreadPoolExecutor(min(len(metadata.brokers), _ASKED_MAX)) as asking:
            answers = list(asking.map(_ask, metadata.brokers))
        silent = {one.node: one.silent for one in answers if one.silent is not None}
        self._http = {one.node: one.http for one in answers if one.http is not None}
        image = _newest_image(answers)
        if image is None:
            seen = _with_own(_as_metadata_has_it(metadata, silent), answers)
            seen = replace(seen, without_http=_without_http([one for one in answers if one.http is not None]))
        else:
            seen = _as_image_has_it(image, answers, silent)
        return replace(
            seen,
            hidden=frozenset(one.node for one in answers if one.hidden),
            token_refused=frozenset(one.node for one in answers if one.token_refused),
        )

    def read_with_sizes(self) -> View:
        """The cluster now, with sizes. Raises BrokerUnreachable when no broker answers."""
        seen = self.read()
        moving: Mapping[Name, Reassignment] = {}
        if seen.cluster.version is None:  # read by Metadata, whose replicas include joining and leaving ones
            with self.connect() as client:
                moving = under_way(client)
        sizes = self.bytes_of(seen, seen.partitions)
        held = [_held(row, moving.get(name := (row.topic, row.partition)), sizes[name]) for row in seen.partitions]
        return View(seen, [Place(row.node, domain_of(row), row.active) for row in seen.brokers], held)

    def copies(self, seen: ClusterState) -> list[Copying]:
        """Replicas that are being copied: new replicas, and returned replicas that are not in sync yet. Asks brokers
        only if there are any.
        """
        active = {row.node for row in seen.brokers if row.active}
        found = [
            (row, node)
            for row in seen.partitions
            if row.leader is not None
            for node in dict.fromkeys((*(row.target or ()), *row.replicas))
            if node in active and node not in row.in_sync
        ]
        if not found:
            return []
        sizes = self.bytes_of(seen, [row for row, _ in found])
        wanted: dict[int, list[Name]] = {}
        for row, node in found:
            wanted.setdefault(node, []).append((row.topic, row.partition))
        copied = copied_bytes(seen.brokers, wanted)
        lacking = {(name, late.node): late.bytes for name, of in seen.late().items() for late in of}
        copies = []
        for row, node in found:
            name = row.topic, row.partition
            hot = sizes[name].hot
            done, lacks = copied.get((name, node)), lacking.get((name, node))
            if hot is not None and lacks is not None:
                done = max(hot - lacks, 0)  # the replica's log may have older bytes too
            copies.append(
                Copying(
                    *name,
                    node,
                    done if done is None or hot is None else min(done, hot),
                    hot,
                    sizes[name].cold,
                    node not in row.replicas,
                )
            )
        return copies

    def bytes_of(self, seen: ClusterState, rows: Iterable[PartitionRow]) -> dict[Name, Bytes]:
        """Sizes of these partitions, as their leaders report. Blocking; sends one request per broker."""
        of_leader: dict[int | None, list[Name]] = {}
        for row in rows:
            of_leader.setdefault(row.leader, []).append((row.topic, row.partition))
        found = {name: Bytes() for names in of_leader.values() for name in names}
        asked = [one for one in seen.brokers if of_leader.get(one.node) and one.node not in seen.silent]
        if asked:
            with ThreadPoolExecutor(min(len(asked), _ASKED_MAX)) as asking:
                for one, answer in zip(asked, asking.map(lambda one: self._of_leader(seen, one), asked), strict=True):
                    found |= {name: answer[name] for name in of_leader[one.node] if name in answer}
        return found

    def _of_leader(self, seen: ClusterState, broker: BrokerRow) -> dict[Name, Bytes]:
        address = self._http.get(broker.node)
        if address is not None:
            status = get_json(address, "/status", list[PartitionTierStatus], _STATUS_S) or []
            return {(one.topic, one.partition): Bytes(one.hot_bytes, one.cold_bytes) for one in status}
        if seen.cluster.version is not None:
            return {}  # our broker; only its HTTP port tells how many of its bytes are in the bucket
        try:
            with WireClient(broker.host, broker.port) as client:
                return {name: Bytes(size) for name, size in client.log_sizes().items()}
        except BrokerUnreachable:
            return {}


def _ask(broker: MetadataResponseBroker) -> _Answer:
    try:
        with WireClient(broker.host, broker.port, _ANSWER_S) as client:
            address = http_of(client, broker.node_id)
            if address is None and not client.may_read_configs(broker.node_id):
                return _Answer(broker.node_id, hidden=True)
    except BrokerUnreachable as failed:
        return _Answer(broker.node_id, failed.why or str(failed))
    if address is None:
        return _Answer(broker.node_id)
    own, is_refused = ask_json(address, "/broker", BrokerStatus, _ANSWER_S)
    # A loopback address of a broker on another machine may belong to another broker here.
    is_its = own is not None and own.node_id == broker.node_id
    return _Answer(broker.node_id, None, address, own if is_its else None, is_refused)


def _without_http(answers: Iterable[_Answer]) -> frozenset[int]:
    """Brokers that answer, but not on their HTTP port."""
    return frozenset(
        one.node for one in answers if one.silent is None and one.own is None and not (one.token_refused or one.hidden)
    )


def _newest_image(answers: list[_Answer]) -> ClusterStatus | None:
    """The newest image of all brokers, because a broker that is cut off has an old image."""
    newest = [one for one in answers if one.own is not None and one.own.cluster is not None and one.http is not None]
    for answer in sorted(newest, key=_how_new, reverse=True):
        assert answer.http is not None
        if (image := get_json(answer.http, "/cluster", ClusterStatus, _ANSWER_S)) is not None:
            return image
    return None


def _how_new(answer: _Answer) -> tuple[int, int]:
    assert answer.own is not None and answer.own.cluster is not None
    return answer.own.cluster.version, answer.own.cluster.controller_epoch or -1


def _as_image_has_it(image: ClusterStatus, answers: list[_Answer], silent: dict[int, str]) -> ClusterState:
    own = {one.node: one.own for one in answers if one.own is not None}
    standings = {node: status.cluster for node, status in own.items() if status.cluster is not None}
    # Each broker reports the time since it first saw this controller. The controller's own time, since its claim, is
    # the longest.
    known_for = [one.controller_for_ms for one in standings.values() if one.controller_epoch == image.controller_epoch]
    cluster = Cluster(
        image.cluster_id,
        image.controller,
        image.controller_epoch,
        max(known_for, default=image.controller_for_ms),
        image.version,
    )
    return ClusterState(
        cluster,
        image.brokers,
        image.partitions,
        silent,
        standings,
        {node: status.conditions for node, status in own.items()},
        _without_http(answers),
    )


def _with_own(seen: ClusterState, answers: list[_Answer]) -> ClusterState:
    """Mark read-only brokers. A cluster of read-only brokers has no controller, even if Metadata names one."""
    own = {one.node: one.own for one in answers if one.own is not None}
    read_only = {node: status.read_only for node, status in own.items() if status.read_only is not None}
    if not read_only:
        return seen
    conditions = {node: status.conditions for node, status in own.items()}
    return replace(seen, cluster=replace(seen.cluster, controller=None), conditions=conditions, read_only=read_only)


def _as_metadata_has_it(metadata: MetadataResponse, silent: dict[int, str]) -> ClusterState:
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    partitions = []
    for topic in sorted(metadata.topics, key=lambda each: each.name or ""):
        for found in sorted(topic.partitions, key=lambda each: each.partition_index):
            leaders[found.leader_id] += 1
            replicas.update(found.replica_nodes)
            partitions.append(
                PartitionRow(
                    topic.name or "",
                    found.partition_index,
                    found.leader_id if found.leader_id >= 0 else None,
                    found.leader_epoch if found.leader_epoch >= 0 else None,
                    tuple(found.replica_nodes),
                    tuple(found.isr_nodes),
                    under_replicated=len(found.isr_nodes) < len(found.replica_nodes),
                    offline=found.leader_id < 0,
                )
            )
    brokers = [
        BrokerRow(
            one.node_id, one.host, one.port, one.rack, leaders=leaders[one.node_id], replicas=replicas[one.node_id]
        )
        for one in sorted(metadata.brokers, key=lambda each: each.node_id)
    ]
    controller = metadata.controller_id if metadata.controller_id >= 0 else None
    return ClusterState(Cluster(metadata.cluster_id, controller), brokers, partitions, silent)


def copied_bytes(brokers: Iterable[BrokerRow], wanted: Mapping[int, Sequence[Name]]) -> dict[tuple[Name, int], int]:
    """Log sizes of these partitions on these brokers. A broker that does not answer is left out."""

    def ask(broker: BrokerRow) -> dict[tuple[Name, int], int]:
        try:
            with WireClient(broker.host, broker.port) as client:
                return {(name, broker.node): size for name, size in client.log_sizes(wanted[broker.node]).items()}
        except BrokerUnreachable:
            return {}

    asked = [row for row in brokers if wanted.get(row.node)]
    if not asked:
        return {}
    with ThreadPoolExecutor(min(len(asked), _ASKED_MAX)) as asking:
        return {name: size for answer in asking.map(ask, asked) for name, size in answer.items()}


def domain_of(broker: BrokerRow) -> str:
    """The broker's fault domain (R15): its rack, otherwise its machine, otherwise itself."""
    if broker.rack is not None:
        return f"rack {broker.rack}"
    return f"boot {broker.machine}" if broker.machine else f"node {broker.node}"


def _held(row: PartitionRow, moving: Reassignment | None, size: Bytes) -> Assignment:
    replicas, target = row.replicas, row.target or ()
    if moving is not None:
        replicas, target = moving.before, moving.target
    return Assignment(row.topic, row.partition, replicas, target, not row.offline, size.hot, size.cold)
