"""What nobody may ask of a read-only broker, and how it says so.

Owns the one rule: whatever writes is refused, at once and for good, with an error that clients do not try again, and
words that say where to write. Always true: requests that a controller would decide are refused by `NoCommitQueue`, in
the words of each API; what would reach a partition, by the authorizer, before any handler. Must not know handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.controller.decisions.decision import Decider, T
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.net.dispatch import CloseConnection, Peer
from broker.security.authorizer import Authorizer
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from broker.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

WHY: Final = (
    "this broker only reads the bucket of another cluster (serve --read-only): send what writes to the brokers of that "
    "cluster"
)
OF_TOPICS: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OF_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_CODES: Final = {
    int(ApiKey.PRODUCE): OF_TOPICS,
    int(ApiKey.DELETE_RECORDS): OF_TOPICS,
    int(ApiKey.INIT_PRODUCER_ID): OF_CLUSTER,
}


class ReadOnlyAuthorizer(Authorizer):
    """As any other, and no writes."""

    def refusal(self, peer: Peer, api_key: int, request: Message) -> ErrorCode | None:
        code = _CODES.get(api_key)
        return super().refusal(peer, api_key, request) if code is None else code


class NoCommitQueue:
    """The office of no controller: it decides nothing, and asks nobody to."""

    epoch = -1
    image_bytes = 0

    async def decide(self, decider: Decider[T]) -> T:
        raise ApiError(OF_CLUSTER, WHY)


async def _produce(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    if request.acks == 0:
        raise CloseConnection(
            f"a produce without acknowledgement: {WHY}"
        )  # as Kafka: who waits for nothing learns it so
    return ProduceResponse(
        responses=[
            ProduceResponseTopic(
                name=topic.name,
                partition_responses=[
                    ProduceResponsePartition(index=data.index, error_code=code, base_offset=-1, error_message=WHY)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


async def _delete_records(request: DeleteRecordsRequest, code: ErrorCode) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponseTopic(
                name=topic.name,
                partitions=[
                    DeleteRecordsResponsePartition(
                        partition_index=wanted.partition_index, low_watermark=-1, error_code=code
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _init_producer_id(request: InitProducerIdRequest, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


REFUSALS: Final[dict[int, Callable[[Any, ErrorCode], Awaitable[Message]]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
}
"""Beside the dispatcher's."""
