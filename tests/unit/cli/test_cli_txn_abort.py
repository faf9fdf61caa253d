"""`thermocline txn abort` writes a marker only if no coordinator knows the transaction, and all of them answered."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.wire import messages as wire
from thermocline.cli.terminal.outcome import CommandFailed
from thermocline.cli.txn import command

PRODUCER = 7
HANGING = 40


@dataclass
class Cluster:
    """Two brokers. `leaders`: of the partitions of `__transaction_state`. `known`: what each coordinator lists; `led`:
    the partitions that each answers for, None for Apache Kafka's brokers, which do not say it. Broker 1 leads t-0, in
    which the producer's transaction is open from `first_offset` on."""

    leaders: list[int] = field(default_factory=lambda: [1, 2])
    known: dict[int, str] = field(default_factory=dict)
    led: dict[int, list[int]] | None = None
    first_offset: int = HANGING
    markers: int = 0
    has_topic: bool = True
    moves_to: list[int] | None = None
    """Leaders from the first listing on."""

    def client(self, node_id: int) -> _Client:
        return _Client(self, node_id)

    def metadata(self, topics: list[str]) -> wire.MetadataResponse:
        brokers = [wire.MetadataResponseBroker(node_id=node, host="h", port=node) for node in (1, 2)]
        found = []
        for name in topics:
            leaders = [1] if name == "t" else self.leaders
            unknown = name != "t" and not self.has_topic
            found.append(
                wire.MetadataResponseTopic(
                    name=name,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else ErrorCode.NONE,
                    partitions=[]
                    if unknown
                    else [
                        wire.MetadataResponsePartition(partition_index=index, leader_id=leader)
                        for index, leader in enumerate(leaders)
                    ],
                )
            )
        return wire.MetadataResponse(brokers=brokers, topics=found)


class _Client:
    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster, self._node_id = cluster, node_id

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None: ...

    def version(self, _: object) -> int:
        return 2

    def metadata(self, topics: list[str]) -> wire.MetadataResponse:
        return self._cluster.metadata(topics)

    def call(self, _: object, request: Any, response: type[Any], **__: Any) -> Any:
        cluster = self._cluster
        if isinstance(request, wire.ListTransactionsRequest):
            answer = wire.ListTransactionsResponse()
            if (state := cluster.known.get(self._node_id)) in request.state_filters:
                row = wire.ListTransactionsResponseState(
                    transactional_id="billing-0", producer_id=PRODUCER, transaction_state=state
                )
                answer.transaction_states.append(row)
            if cluster.led is not None and request.partition_index >= 0:
                answer.led_partitions = cluster.led.get(self._node_id, [])
            cluster.leaders = cluster.moves_to or cluster.leaders
            return answer
        if isinstance(request, wire.DescribeProducersRequest):
            open_now = wire.DescribeProducersResponseProducer(
                producer_id=PRODUCER, producer_epoch=3, current_txn_start_offset=cluster.first_offset
            )
            found = wire.DescribeProducersResponsePartition(active_producers=[open_now])
            return wire.DescribeProducersResponse(
                topics=[wire.DescribeProducersResponseTopic(name="t", partitions=[found])]
            )
        assert isinstance(request, wire.WriteTxnMarkersRequest)
        cluster.markers += 1
        rows = [wire.WriteTxnMarkersResponsePartition()]
        topics = [wire.WriteTxnMarkersResponseTopic(name="t", partitions=rows)]
        return wire.WriteTxnMarkersResponse(markers=[wire.WriteTxnMarkersResponseMarker(PRODUCER, topics)])


def abort(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, confirmed: Any = None) -> None:
    """`confirmed` is called while a person is asked; None: with --yes."""
    monkeypatch.setattr("thermocline.cli.clients.connections.connect", lambda *_: cluster.client(1))
    monkeypatch.setattr("thermocline.cli.clients.wire_client.WireClient", lambda _, port: cluster.client(port))
    monkeypatch.setattr(command, "can_ask", lambda: True)
    monkeypatch.setattr(command, "confirm", lambda *_: confirmed())
    arguments = argparse.Namespace(bootstrap_server="h:1", place=("t", 0), producer_id=PRODUCER, yes=confirmed is None)
    command.abort_transaction(arguments)


@pytest.mark.parametrize("led", [None, {1: [0], 2: [1]}])
def test_a_transaction_that_no_coordinator_knows_is_aborted(
    led: dict[int, list[int]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(led=led)
    abort(cluster, monkeypatch)
    assert cluster.markers == 1
    cluster = Cluster(has_topic=False)
    abort(cluster, monkeypatch)
    assert cluster.markers == 1, "no client has used a transactional id"


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(leaders=[1, -1]),
        Cluster(leaders=[1, 3]),
        Cluster(led={1: [0]}),
        Cluster(moves_to=[2, 1]),
    ],
    ids=["no leader", "its leader is away", "its leader cannot load it", "moved meanwhile"],
)
def test_nothing_is_aborted_before_every_coordinator_answered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a coordinator that did not answer may have committed the transaction. The abort marker then split
    it."""
    with pytest.raises(CommandFailed, match="__transaction_state"):
        abort(cluster, monkeypatch)
    assert not cluster.markers


def test_what_began_while_a_person_was_asked_is_not_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the answer took its time, and the marker ended another transaction than the one shown."""
    cluster = Cluster()

    def begun() -> None:
        cluster.known[2] = "Ongoing"

    with pytest.raises(CommandFailed, match="is Ongoing"):
        abort(cluster, monkeypatch, begun)
    cluster = Cluster()

    def another() -> None:
        cluster.first_offset = 60

    with pytest.raises(CommandFailed, match="another transaction"):
        abort(cluster, monkeypatch, another)
    assert not cluster.markers
