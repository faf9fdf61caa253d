"""Requests that change a cluster: reassignments (KIP-455), preferred leader elections (KIP-460), unregistration.

Any broker may be asked, also a broker of Apache Kafka. A refusal of one partition is reported for that partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from broker.error_codes import ErrorCode
from broker.metadata.records import NO_EPOCH
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from thermocline.cli.clients.wire_client import WireClient, by_topic
from thermocline.cli.terminal.outcome import CommandFailed

Name: TypeAlias = tuple[str, int]
"""(topic, partition)."""

_PREFERRED: Final = 0
MOVES_MAX: Final = 1_000
"""Partitions in one request: below the controller's limit for one commit."""
_WHOLE: Final = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
_TIMEOUT_MS: Final = 8_000  # below the client's own timeout


class Reassignment(NamedTuple):
    """A reassignment in progress. `target`: replicas afterwards; `before`: replicas when it began."""

    target: tuple[int, ...]
    before: tuple[int, ...]


class MoveRefusal(NamedTuple):
    """The refusal of one partition. `for_now`: the request may be repeated later."""

    why: str
    for_now: bool


class RetryLater(CommandFailed):
    """No controller can decide at the moment; retry."""


def alter(client: WireClient, wanted: Mapping[Name, Sequence[int] | None]) -> dict[Name, MoveRefusal]:
    """Start reassignments to these replicas. None cancels a reassignment. Returns the refusals. Raises CommandFailed
    when all are refused.
    """
    topics = [
        AlterPartitionReassignmentsRequestTopic(
            name,
            [AlterPartitionReassignmentsRequestPartition(index, _listed(wanted[name, index])) for index in indexes],
        )
        for name, indexes in by_topic(wanted).items()
    ]
    answer = client.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=topics),
        AlterPartitionReassignmentsResponse,
    )
    _check(answer.error_code, answer.error_message, "the cluster does not move partitions now")
    return {
        (topic.name, each.partition_index): _refusal(each.error_code, each.error_message)
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code not in _WHOLE
    }


def _listed(nodes: Sequence[int] | None) -> list[int] | None:
    return None if nodes is None else list(nodes)


def under_way(client: WireClient) -> dict[Name, Reassignment]:
    """All partitions with a reassignment in progress."""
    answer = client.call(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ListPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=None),
        ListPartitionReassignmentsResponse,
    )
    _check(answer.error_code, answer.error_message, "moves in progress cannot be listed now")
    return {
        (topic.name, each.partition_index): Reassignment(
            tuple(node for node in each.replicas if node not in each.removing_replicas),
            tuple(node for node in each.replicas if node not in each.adding_replicas),
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def elect_preferred(client: WireClient, names: Iterable[Name]) -> dict[Name, MoveRefusal]:
    """Elect the first replica if it is in sync. Returns the refusals."""
    topics = [ElectLeadersRequestTopic(name, indexes) for name, indexes in by_topic(names).items()]
    request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=topics, timeout_ms=_TIMEOUT_MS)
    answer = client.call(ApiKey.ELECT_LEADERS, request, ElectLeadersResponse)
    _check(answer.error_code, "", "leaders are not elected now")
    return {
        (topic.topic, each.partition_id): _refusal(each.error_code, each.error_message)
        for topic in answer.replica_election_results
        for each in topic.partition_result
        if each.error_code not in _WHOLE
    }


def unregister(client: WireClient, node: int, *, is_given_up: bool = False, broker_epoch: int | None = None) -> None:
    """Remove a broker without session from the cluster. With `is_given_up` (`cluster forget`) the broker may have
    replicas, but is not removed if it had a session after the session of `broker_epoch` (None: unknown). A broker that
    is not registered is not an error.
    """
    epoch = NO_EPOCH if broker_epoch is None else broker_epoch
    request = UnregisterBrokerRequest(broker_id=node, is_given_up=is_given_up, broker_epoch=epoch)
    answer = client.call(ApiKey.UNREGISTER_BROKER, request, UnregisterBrokerResponse)
    if answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED:
        return
    what = "given up" if is_given_up else "taken out of the cluster"
    _check(answer.error_code, answer.error_message, f"broker {node} was not {what}")


def _check(code: int, message: str | None, what: str) -> None:
    if code not in _WHOLE:
        why, for_now = _refusal(code, message)
        raise (RetryLater if for_now else CommandFailed)(f"{what}: {why}")


def _refusal(code: int, message: str | None) -> MoveRefusal:
    known = ErrorCode(code) if code in ErrorCode._value2member_map_ else None
    return MoveRefusal(
        message or (f"error {code}" if known is None else known.name), known is not None and known.retriable
    )
