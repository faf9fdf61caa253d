"""`BrokerRpc` over the network: translates between its calls and Kafka's messages, in both directions.

Fields: docs/formats/broker-requests.md. An error is raised here as it was raised on the controller. Heartbeats have a
separate connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final, TypeVar
from uuid import UUID

from broker.config.times import ClusterTimes
from broker.controller.broker_rpc import (
    AnsweredAt,
    ProposalsRequest,
    SessionHeartbeat,
    SessionHeartbeatResponse,
    SessionRequest,
)
from broker.controller.decisions.fitness import Fitness
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.records import Endpoint, LogPlace
from broker.peers.connection import PeerConnection
from broker.replication.isr_policy import PartitionProposal
from broker.wire.apis import APIS, ApiKey
from broker.wire.message import Message
from broker.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    BrokerHeartbeatRequest,
    BrokerHeartbeatRequestLostLog,
    BrokerHeartbeatRequestUnfit,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestHeldLog,
    BrokerRegistrationRequestListener,
    BrokerRegistrationRequestLostLog,
    BrokerRegistrationResponse,
)
from logformat.errors import Retryable
from logformat.values import uuid_from_text, uuid_text

HEARTBEATS: Final = "heartbeats"
REQUESTS: Final = "requests"

R = TypeVar("R", bound=Message)


class RemoteController:
    """The controller on another broker. `to`: the connection to the controller for a purpose (`Links.to` of its node).
    Each method also raises ConnectionError and TimeoutError as `PeerConnection.ask`. The wait for a decision ends after
    one session timeout, because a controller that is silent for longer may be cut off. The request may still take
    effect, so the caller reads the image."""

    def __init__(self, to: Callable[[str], PeerConnection], times: ClusterTimes) -> None:
        self._to = to
        self._times = times

    async def register(self, asked: SessionRequest) -> int:
        answer = await self._ask(
            REQUESTS, registration_message(asked), BrokerRegistrationResponse, self._times.session_s
        )
        _raise(answer.error_code, answer.error_message)
        return answer.broker_epoch

    async def heartbeat(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        answer = await self._ask(HEARTBEATS, heartbeat_message(asked), BrokerHeartbeatResponse, self._times.answer_s)
        is_disputed = answer.error_code == ErrorCode.NOT_CONTROLLER and answer.boottime_ms > 0
        if not is_disputed:
            _raise(answer.error_code)
        return SessionHeartbeatResponse(
            answer.controller_epoch,
            root=answer.root,
            store_away=answer.is_store_away,
            lease_counter=answer.lease_counter,
            may_stop=answer.should_shut_down,
            is_disputed=is_disputed,
            boottime_ms=answer.boottime_ms,
        )

    async def alter_partition(self, asked: ProposalsRequest) -> tuple[ErrorCode, ...]:
        answer = await self._ask(REQUESTS, proposals_message(asked), AlterPartitionResponse, self._times.session_s)
        _raise(answer.error_code)
        codes = tuple(ErrorCode(row.error_code) for topic in answer.topics for row in topic.partitions)
        if len(codes) != len(asked.proposals):
            raise ConnectionError(f"the controller answered {len(codes)} of {len(asked.proposals)} proposals")
        return codes

    def closed(self, node_id: int, broker_epoch: int) -> None:
        """The controller notices a closed connection by itself."""

    async def _ask(self, purpose: str, request: Message, kind: type[R], timeout_s: float) -> R:
        key = _KEYS[type(request)]
        answer = await self._to(purpose).ask(request, APIS[key].version_max, timeout_s)
        assert isinstance(answer, kind)
        return answer


_KEYS: Final[dict[type[Message], ApiKey]] = {
    BrokerRegistrationRequest: ApiKey.BROKER_REGISTRATION,
    BrokerHeartbeatRequest: ApiKey.BROKER_HEARTBEAT,
    AlterPartitionRequest: ApiKey.ALTER_PARTITION,
}


def _raise(error_code: int, message: str | None = None) -> None:
    if error_code == ErrorCode.NONE:
        return
    if error_code == ErrorCode.KAFKA_STORAGE_ERROR:  # this code means `Retryable`
        raise Retryable(message or "the controller's bucket does not answer; ask again")
    raise ApiError(ErrorCode(error_code), message or "")


# ── registration ─────────────────────────────────────────────────────────────────────────────────────────────────────
def registration_message(asked: SessionRequest) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=asked.node_id,
        cluster_id=asked.cluster_id,
        incarnation_id=UUID(hex=asked.incarnation),
        listeners=[BrokerRegistrationRequestListener(one.name, one.host, one.port) for one in asked.listeners],
        rack=asked.rack,
        log_dirs=[UUID(bytes=uuid_from_text(asked.directory_id))],
        previous_broker_epoch=asked.previous_broker_epoch,
        boot_id=asked.boot_id,
        lost_logs=[
            BrokerRegistrationRequestLostLog(topic_id, indexes) for topic_id, indexes in _by_topic(asked.lost_logs)
        ],
        take_over=asked.take_over,
        held_logs=[
            BrokerRegistrationRequestHeldLog(topic_id, indexes) for topic_id, indexes in _by_topic(asked.held_logs)
        ],
        lease_counter=asked.lease_counter,
        wants_bump=asked.wants_bump,
    )


def registration_request(request: BrokerRegistrationRequest) -> SessionRequest:
    """The session request in a message. Raises ApiError INVALID_REQUEST."""
    if len(request.log_dirs) != 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a broker has one log directory, not {len(request.log_dirs)}")
    return SessionRequest(
        request.broker_id,
        request.cluster_id,
        request.incarnation_id.hex,
        uuid_text(request.log_dirs[0].bytes),
        request.boot_id,
        tuple(Endpoint(one.name, one.host, one.port) for one in request.listeners),
        rack=request.rack,
        previous_broker_epoch=request.previous_broker_epoch,
        lost_logs=_places(request.lost_logs),
        held_logs=_places(request.held_logs),
        take_over=request.take_over,
        lease_counter=request.lease_counter,
        wants_bump=request.wants_bump,
    )


# ── heartbeat ────────────────────────────────────────────────────────────────────────────────────────────────────────
def heartbeat_message(asked: SessionHeartbeat) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=asked.node_id,
        broker_epoch=asked.broker_epoch,
        current_metadata_offset=asked.position,
        want_fence=asked.fitness.unfit_all,
        want_shut_down=asked.wants_shutdown,
        lost_logs=[
            BrokerHeartbeatRequestLostLog(topic_id, indexes) for topic_id, indexes in _by_topic(asked.fitness.lost_logs)
        ],
        unfit=[BrokerHeartbeatRequestUnfit(topic_id, indexes) for topic_id, indexes in _by_topic(asked.fitness.unfit)],
        no_claim_ms=int(asked.no_claim_s * 1000),
        since_epoch=asked.since.controller_epoch,
        since_ms=asked.since.boottime_ms,
    )


def heartbeat_request(request: BrokerHeartbeatRequest) -> SessionHeartbeat:
    return SessionHeartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        Fitness(request.want_fence, _places(request.unfit), _places(request.lost_logs)),
        wants_shutdown=request.want_shut_down,
        no_claim_s=request.no_claim_ms / 1000,
        since=AnsweredAt(request.since_epoch, request.since_ms),
    )


def heartbeat_response(answer: SessionHeartbeatResponse) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        error_code=ErrorCode.NOT_CONTROLLER if answer.is_disputed else ErrorCode.NONE,
        is_caught_up=answer.root is None,
        is_fenced=False,
        should_shut_down=answer.may_stop,
        controller_epoch=answer.controller_epoch,
        root=answer.root,
        lease_counter=answer.lease_counter,
        is_store_away=answer.store_away,
        boottime_ms=answer.boottime_ms,
    )


# ── proposals ────────────────────────────────────────────────────────────────────────────────────────────────────────
_RECOVERED: Final = 0
_RECOVERING: Final = 1


def proposals_message(asked: ProposalsRequest) -> AlterPartitionRequest:
    return AlterPartitionRequest(
        broker_id=asked.node_id,
        broker_epoch=asked.broker_epoch,
        topics=[
            AlterPartitionRequestTopic(UUID(topic_id), [_proposal_row(one) for one in some])
            for topic_id, some in groupby(asked.proposals, lambda one: one.place[0])
        ],
    )


def _proposal_row(proposal: PartitionProposal) -> AlterPartitionRequestPartition:
    return AlterPartitionRequestPartition(
        partition_index=proposal.place[1],
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=[AlterPartitionRequestBrokerState(*member) for member in proposal.in_sync],
        leader_recovery_state=_RECOVERED if proposal.is_done else _RECOVERING,
        partition_epoch=proposal.partition_epoch,
    )


def proposals_request(request: AlterPartitionRequest) -> ProposalsRequest:
    return ProposalsRequest(
        request.broker_id,
        request.broker_epoch,
        tuple(
            PartitionProposal(
                (str(topic.topic_id), row.partition_index),
                row.leader_epoch,
                row.partition_epoch,
                tuple((member.broker_id, member.broker_epoch) for member in row.new_isr_with_epochs),
                is_done=row.leader_recovery_state == _RECOVERED,
            )
            for topic in request.topics
            for row in topic.partitions
        ),
    )


def proposals_response(request: AlterPartitionRequest, codes: Iterable[ErrorCode]) -> AlterPartitionResponse:
    """The response to proposals. `codes`: in the request's order."""
    left = iter(codes)
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopic(
                topic.topic_id,
                [
                    AlterPartitionResponsePartition(partition_index=row.partition_index, error_code=next(left))
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# ── logs by topic ────────────────────────────────────────────────────────────────────────────────────────────────────
def _by_topic(places: Iterable[LogPlace]) -> list[tuple[UUID, list[int]]]:
    found: dict[str, list[int]] = {}
    for topic_id, index in places:
        found.setdefault(topic_id, []).append(index)
    return [(UUID(topic_id), indexes) for topic_id, indexes in found.items()]


def _places(
    topics: Iterable[
        BrokerRegistrationRequestLostLog
        | BrokerRegistrationRequestHeldLog
        | BrokerHeartbeatRequestLostLog
        | BrokerHeartbeatRequestUnfit
    ],
) -> tuple[LogPlace, ...]:
    return tuple((str(topic.topic_id), index) for topic in topics for index in topic.partitions)
