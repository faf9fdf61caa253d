"""`thermocline txn`: lists and describes transactions, and aborts a transaction that no coordinator knows (KIP-664).

Stock Python clients have no such requests. The commands work with Apache Kafka too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from thermocline.cli.terminal.arguments import add_bootstrap, add_json, checked, filled, natural
from thermocline.cli.terminal.confirm import can_ask, confirm
from thermocline.cli.terminal.outcome import CommandFailed, Exit, no_partition
from thermocline.cli.terminal.output import json_line, plain, table

if TYPE_CHECKING:
    from broker.wire.messages import DescribeProducersResponseProducer
    from thermocline.cli.clients.wire_client import WireClient
    from thermocline.cli.terminal.arguments import Parser, Subparsers

_STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
_TRANSACTION_KEY: Final = 1
_STATE_TOPIC: Final = "__transaction_state"
_WHERE_IDS_ARE: Final = (
    "the condition transaction_overdue (`thermocline cluster status`) names the producer id of a hanging transaction, "
    "and `kafka-transactions.sh describe-producers` lists the producer ids of a partition"
)


def register(nouns: Subparsers[Parser]) -> None:
    verbs = nouns.add_parser(
        "txn",
        help="list, describe, abort transactions",
        example="thermocline txn list --state Ongoing",
    ).add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser(
        "list",
        help="transactional ids and the state of their transactions",
        example="thermocline txn list\nthermocline txn list --state Ongoing --longer-than 60 --json",
    )
    listing.add_argument(
        "--state", choices=_STATES, action="append", default=[], help="only transactions in this state; repeatable"
    )
    listing.add_argument(
        "--longer-than",
        type=natural,
        metavar="SECONDS",
        help="only ongoing transactions that began at least this many seconds ago",
    )
    add_json(listing)
    add_bootstrap(listing)
    listing.set_defaults(run=list_transactions)
    describe = verbs.add_parser(
        "describe",
        help="one transactional id: producer, state, partitions",
        example="thermocline txn describe billing-0",
    )
    describe.add_argument("transactional_id", type=filled, metavar="ID")
    add_json(describe)
    add_bootstrap(describe)
    describe.set_defaults(run=describe_transaction)
    abort = verbs.add_parser(
        "abort",
        help="end a transaction that hangs in a partition",
        description="Write an abort marker for a producer's open transaction that hangs in one partition: no "
        "coordinator knows it, so `thermocline txn list` does not show it. The condition transaction_overdue "
        "(`thermocline cluster status`) and `kafka-transactions.sh describe-producers` show its producer id. "
        "Refused while a coordinator knows the transaction.",
        example="thermocline txn abort orders-3 --producer-id 4000 --yes",
    )
    abort.add_argument("place", type=checked(parse_place), metavar="TOPIC-PARTITION")
    abort.add_argument("--producer-id", type=checked(parse_producer_id), required=True, metavar="N")
    abort.add_argument("--yes", action="store_true", help="abort, do not ask")
    add_bootstrap(abort)
    abort.set_defaults(run=abort_transaction)


def parse_place(text: str) -> tuple[str, int]:
    """Raises ValueError."""
    found = re.fullmatch(r"(.+)-([0-9]{1,9})", text, re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a partition; write orders-3")
    return found[1], int(found[2])


def parse_producer_id(text: str) -> int:
    """An int64, not negative. Raises ValueError."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) >= 1 << 63:
        raise ValueError(f"{text!r} is not a producer id (a number); {_WHERE_IDS_ARE}")
    return int(text)


@dataclass(frozen=True, slots=True)
class TransactionRow:
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


def _brokers(bootstrap: str) -> Iterator[tuple[int, WireClient]]:
    """A connection to each broker in turn. Raises CommandFailed when a broker does not serve transactions."""
    from broker.wire.apis import ApiKey
    from thermocline.cli.clients.connections import connect
    from thermocline.cli.clients.wire_client import WireClient

    with connect(bootstrap) as client:
        brokers = client.metadata([]).brokers
    for broker in sorted(brokers, key=lambda one: one.node_id):
        with WireClient(broker.host, broker.port) as client:
            if client.version(ApiKey.LIST_TRANSACTIONS) < 0:
                raise CommandFailed(f"broker {broker.node_id} serves no transactions")
            yield broker.node_id, client


class Listing(NamedTuple):
    """`led`: partitions of `__transaction_state` for which the brokers answered; empty from Apache Kafka's brokers."""

    rows: list[TransactionRow]
    led: frozenset[int]


def listed(bootstrap: str, states: list[str], producer_ids: list[int], longer_than_s: int | None = None) -> Listing:
    """Transactions of all brokers, by id. Raises CommandFailed while a coordinator is loading, because an incomplete
    list would look complete."""
    from broker.error_codes import ErrorCode
    from broker.wire.apis import ApiKey
    from broker.wire.messages import ListTransactionsRequest, ListTransactionsResponse

    request = ListTransactionsRequest(
        state_filters=states,
        producer_id_filters=producer_ids,
        duration_filter=-1 if longer_than_s is None else longer_than_s * 1_000,
        partition_index=0,  # asks Thermocline's brokers for `led_partitions`
    )
    rows: list[TransactionRow] = []
    led: set[int] = set()
    for node_id, client in _brokers(bootstrap):
        answer = client.call(ApiKey.LIST_TRANSACTIONS, request, ListTransactionsResponse)
        if answer.error_code != ErrorCode.NONE:
            raise CommandFailed(f"listing transactions of broker {node_id}: {_name(answer.error_code)}; try again")
        led.update(answer.led_partitions)
        rows += [
            TransactionRow(row.transactional_id, row.producer_id, row.transaction_state, node_id)
            for row in answer.transaction_states
        ]
    return Listing(sorted(rows, key=lambda row: row.transactional_id), frozenset(led))


def _coordinators(bootstrap: str) -> dict[int, tuple[int, int]]:
    """Leader and leader epoch of each partition of `__transaction_state`; empty if there is no such topic. Raises
    CommandFailed if a partition has no leader that answers."""
    from broker.error_codes import ErrorCode
    from thermocline.cli.clients.connections import connect

    with connect(bootstrap) as client:
        metadata = client.metadata([_STATE_TOPIC])
    (found,) = metadata.topics
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return {}
    if found.error_code != ErrorCode.NONE:
        raise CommandFailed(f"the coordinators of {_STATE_TOPIC}: {_name(found.error_code)}; try again")
    nodes = {broker.node_id for broker in metadata.brokers}
    away = sorted(row.partition_index for row in found.partitions if row.leader_id not in nodes)
    if away:
        raise _unanswered(away)
    return {row.partition_index: (row.leader_id, row.leader_epoch) for row in found.partitions}


def _unanswered(partitions: Sequence[int]) -> CommandFailed:
    return CommandFailed(
        f"{len(partitions)} coordinators do not answer, {_STATE_TOPIC}-{partitions[0]} among them: one of them may "
        "know the transaction; see `thermocline cluster status`, and try again"
    )


def _check_unknown(bootstrap: str, producer_id: int) -> None:
    """Raises CommandFailed if a coordinator knows an open transaction of the producer, or if one did not answer."""
    before = _coordinators(bootstrap)
    found = listed(bootstrap, ["Ongoing", "PrepareCommit", "PrepareAbort"], [producer_id])
    if found.rows:
        raise CommandFailed(_known(found.rows[0]))
    after = _coordinators(bootstrap)
    moved = sorted(index for index in after if after[index] != before.get(index))
    unanswered = moved or (sorted(after.keys() - found.led) if found.led else [])
    if unanswered:
        raise _unanswered(unanswered)


def list_transactions(arguments: argparse.Namespace) -> int:
    rows = listed(arguments.bootstrap_server, arguments.state, [], arguments.longer_than).rows
    if arguments.json:
        for row in rows:
            print(
                json_line(
                    {
                        "transactional_id": row.transactional_id,
                        "producer_id": row.producer_id,
                        "state": row.state,
                        "coordinator": row.coordinator,
                    }
                )
            )
    else:
        lines = [(row.transactional_id, str(row.producer_id), row.state, str(row.coordinator)) for row in rows]
        print(table(("id", "producer id", "state", "coordinator"), lines, right=("producer id", "coordinator")))
    return Exit.DONE


def describe_transaction(arguments: argparse.Namespace) -> int:
    from broker.error_codes import ErrorCode
    from broker.wire.apis import ApiKey
    from broker.wire.messages import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
    )
    from thermocline.cli.clients.connections import connect
    from thermocline.cli.clients.wire_client import WireClient

    name = arguments.transactional_id
    with connect(arguments.bootstrap_server) as client:
        find = FindCoordinatorRequest(key=name, key_type=_TRANSACTION_KEY, coordinator_keys=[name])
        answer = client.call(ApiKey.FIND_COORDINATOR, find, FindCoordinatorResponse)
    place = answer.coordinators[0] if answer.coordinators else answer
    if place.error_code != ErrorCode.NONE:
        raise CommandFailed(f"the coordinator of {name}: {_name(place.error_code)}; try again")
    with WireClient(place.host, place.port) as client:
        request = DescribeTransactionsRequest(transactional_ids=[name])
        (found,) = client.call(ApiKey.DESCRIBE_TRANSACTIONS, request, DescribeTransactionsResponse).transaction_states
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise CommandFailed(f"there is no transactional id {name}; see `thermocline txn list`")
    if found.error_code != ErrorCode.NONE:
        raise CommandFailed(f"describing {name}: {_name(found.error_code)}; try again")
    places = [f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions]
    row = {
        "transactional_id": name,
        "coordinator": place.node_id,
        "state": found.transaction_state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.transaction_timeout_ms,
        "start_ms": found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
        "partitions": " ".join(places),
    }
    if arguments.json:
        print(json_line(row))
    else:
        print(table(("", name), [(key, plain(value)) for key, value in list(row.items())[1:]]))
    return Exit.DONE


def abort_transaction(arguments: argparse.Namespace) -> int:
    topic, partition = arguments.place
    producer_id = arguments.producer_id
    bootstrap = arguments.bootstrap_server
    _check_unknown(bootstrap, producer_id)
    from thermocline.cli.clients.wire_client import WireClient

    host, port = _leader_of(bootstrap, topic, partition)
    with WireClient(host, port) as client:
        found = _open_producer(client, topic, partition, producer_id)
    what = (
        f"abort the transaction of producer {producer_id}, epoch {found.producer_epoch}, in {topic}-{partition}, "
        f"open since offset {found.current_txn_start_offset}"
    )
    if not arguments.yes:
        if not can_ask():
            raise CommandFailed(f"to {what}: give --yes", Exit.USAGE)
        confirm(f"{what}? Type the topic's name:", topic)
    # The producer may have begun a transaction meanwhile. Then the marker would end a part of that transaction.
    _check_unknown(bootstrap, producer_id)
    with WireClient(host, port) as client:
        again = _open_producer(client, topic, partition, producer_id)
        if (again.producer_epoch, again.current_txn_start_offset) != (
            found.producer_epoch,
            found.current_txn_start_offset,
        ):
            raise CommandFailed(
                f"producer {producer_id} has another transaction open in {topic}-{partition} by now, since offset "
                f"{again.current_txn_start_offset}; nothing was changed"
            )
        _write_abort(client, topic, partition, found)
    print(f"aborted the transaction of producer {producer_id} in {topic}-{partition}")
    return Exit.DONE


def _known(row: TransactionRow) -> str:
    """Explains why a transaction known to a coordinator is not aborted, and how to end it sooner."""
    ends = (
        "it ends by itself, at its time-out at the latest. To end it now, start a producer with that transactional "
        "id: its init_transactions aborts it"
        if row.state == "Ongoing"
        else "it is decided, and its markers are sent until every partition has one"
    )
    return (
        f"producer {row.producer_id} has the transactional id {row.transactional_id}, which is {row.state} "
        f"at broker {row.coordinator}: {ends}; see `thermocline txn describe {row.transactional_id}`"
    )


def _leader_of(bootstrap: str, topic: str, partition: int) -> tuple[str, int]:
    from broker.error_codes import ErrorCode
    from thermocline.cli.clients.connections import connect

    with connect(bootstrap) as client:
        metadata = client.metadata([topic])
    (found,) = metadata.topics
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        from thermocline.cli.clients.connection_properties import no_topic

        raise no_topic(topic)
    leaders = {row.partition_index: row.leader_id for row in found.partitions}
    if partition not in leaders:
        raise no_partition(topic, partition, len(leaders))
    at = next((broker for broker in metadata.brokers if broker.node_id == leaders[partition]), None)
    if at is None:
        raise CommandFailed(f"{topic}-{partition} has no leader now; see `thermocline cluster status`")
    return at.host, at.port


def _open_producer(
    client: WireClient, topic: str, partition: int, producer_id: int
) -> DescribeProducersResponseProducer:
    from broker.error_codes import ErrorCode
    from broker.wire.apis import ApiKey
    from broker.wire.messages import (
        DescribeProducersRequest,
        DescribeProducersRequestTopic,
        DescribeProducersResponse,
    )

    asked = DescribeProducersRequest(topics=[DescribeProducersRequestTopic(name=topic, partition_indexes=[partition])])
    row = client.call(ApiKey.DESCRIBE_PRODUCERS, asked, DescribeProducersResponse).topics[0].partitions[0]
    if row.error_code != ErrorCode.NONE:
        raise CommandFailed(f"producers of {topic}-{partition}: {_name(row.error_code)}; try again")
    for found in row.active_producers:
        if found.producer_id == producer_id and found.current_txn_start_offset >= 0:
            return found
    raise CommandFailed(f"producer {producer_id} has no open transaction in {topic}-{partition}; {_WHERE_IDS_ARE}")


def _write_abort(client: WireClient, topic: str, partition: int, found: DescribeProducersResponseProducer) -> None:
    from broker.error_codes import ErrorCode
    from broker.wire.apis import ApiKey
    from broker.wire.messages import (
        WriteTxnMarkersRequest,
        WriteTxnMarkersRequestMarker,
        WriteTxnMarkersRequestTopic,
        WriteTxnMarkersResponse,
    )

    marker = WriteTxnMarkersRequestMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        transaction_result=False,
        topics=[WriteTxnMarkersRequestTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(found.coordinator_epoch, 0),
    )
    answer = client.call(
        ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, version_max=1
    )
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code != ErrorCode.NONE:
        raise CommandFailed(f"the abort marker for {topic}-{partition} was not written: {_name(code)}")


def _name(code: int) -> str:
    from broker.error_codes import error_name

    return error_name(code)
