"""Asking for what `cluster status` shows: every broker for itself, at once, and the newest image of theirs.

Owns the connections of one look. Always true: one broker that answers is enough; what the others do not say is not
known, and that they do not answer is said; what a port answers counts for the broker that it names. A cluster without
our HTTP port (Apache Kafka) is shown as Metadata has it.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from broker.config.addresses import show_address
from broker.observe.cluster_status import BrokerRow, ClusterStatus, PartitionRow
from broker.wire.messages import MetadataResponse, MetadataResponseBroker
from thermocline.cli.clients.connections import connect, http_of, said
from thermocline.cli.clients.statuses import BrokerStatus
from thermocline.cli.clients.wire_client import BrokerUnreachable, WireClient
from thermocline.cli.cluster.status import Cluster, Seen

_ANSWER_S: Final = 3.0  # of each broker: those that are stopped keep the picture waiting no longer, together
_ASKED_MAX: Final = 16  # at once


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one broker said. `silent`: why nothing; `http`: where its HTTP port is, as it says; `own`: what that said
    of it."""

    node: int
    silent: str | None = None
    http: tuple[str, int] | None = None
    own: BrokerStatus | None = None


class ClusterSource:
    """Repeated looks at the same cluster: brokers that were seen once are asked when those of `bootstrap` are away."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._known: list[str] = []
        self.http: dict[int, tuple[str, int]] = {}
        """Where brokers' HTTP ports are, of those that said so at the last look."""

    def connect(self, timeout_s: float = _ANSWER_S) -> WireClient:
        """To the first broker that answers. BrokerUnreachable when none does."""
        return connect(",".join((self._bootstrap, *self._known)), timeout_s)

    def read(self) -> Seen:
        """The cluster now. BrokerUnreachable when no address answers."""
        with self.connect() as client:
            metadata = client.metadata()
        self._known = [show_address(broker.host, broker.port) for broker in metadata.brokers]
        if not metadata.brokers:
            return _as_metadata_has_it(metadata, {})
        with ThreadPoolExecutor(min(len(metadata.brokers), _ASKED_MAX)) as asking:
            answers = list(asking.map(_ask, metadata.brokers))
        silent = {one.node: one.silent for one in answers if one.silent is not None}
        self.http = {one.node: one.http for one in answers if one.http is not None}
        image = _newest_image(answers)
        if image is None:
            return _with_own(_as_metadata_has_it(metadata, silent), answers)
        return _as_image_has_it(image, answers, silent)


def _ask(broker: MetadataResponseBroker) -> _Answer:
    try:
        with WireClient(broker.host, broker.port, _ANSWER_S) as client:
            address = http_of(client, broker.node_id)
    except BrokerUnreachable as failed:
        return _Answer(broker.node_id, failed.why or str(failed))
    own = None if address is None else said(address, "/broker", BrokerStatus, _ANSWER_S)
    # Loopback's address, said by a broker of another machine, is where another one listens here.
    return _Answer(broker.node_id, None, address, own if own is not None and own.node_id == broker.node_id else None)


def _newest_image(answers: list[_Answer]) -> ClusterStatus | None:
    """Of whoever obeys the newest: one that is cut off shows the cluster as it was."""
    newest = [one for one in answers if one.own is not None and one.own.cluster is not None and one.http is not None]
    for answer in sorted(newest, key=_how_new, reverse=True):
        assert answer.http is not None
        if (image := said(answer.http, "/cluster", ClusterStatus, _ANSWER_S)) is not None:
            return image
    return None


def _how_new(answer: _Answer) -> tuple[int, int]:
    assert answer.own is not None and answer.own.cluster is not None
    return answer.own.cluster.version, answer.own.cluster.controller_epoch or -1


def _as_image_has_it(image: ClusterStatus, answers: list[_Answer], silent: dict[int, str]) -> Seen:
    own = {one.node: one.own for one in answers if one.own is not None}
    standings = {node: status.cluster for node, status in own.items() if status.cluster is not None}
    # Each has known the controller since it obeyed it; the controller itself, since it claimed.
    known_for = [one.controller_for_ms for one in standings.values() if one.controller_epoch == image.controller_epoch]
    cluster = Cluster(
        image.cluster_id,
        image.controller,
        image.controller_epoch,
        max(known_for, default=image.controller_for_ms),
        image.version,
    )
    return Seen(
        cluster,
        image.brokers,
        image.partitions,
        silent,
        standings,
        {node: status.conditions for node, status in own.items()},
        frozenset(one.node for one in answers if one.silent is None and one.own is None),
    )


def _with_own(seen: Seen, answers: list[_Answer]) -> Seen:
    """A read-only broker says what it is: it decides nothing, whatever Metadata has to name as the controller."""
    own = {one.node: one.own for one in answers if one.own is not None}
    read_only = {node: status.read_only for node, status in own.items() if status.read_only is not None}
    if not read_only:
        return seen
    conditions = {node: status.conditions for node, status in own.items()}
    return replace(seen, cluster=replace(seen.cluster, controller=None), conditions=conditions, read_only=read_only)


def _as_metadata_has_it(metadata: MetadataResponse, silent: dict[int, str]) -> Seen:
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
    return Seen(Cluster(metadata.cluster_id, controller), brokers, partitions, silent)
