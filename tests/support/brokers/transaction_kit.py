"""A broker with a coordinator of the test's own: producers within transactions, their markers, committed reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from broker.context import Call
from broker.error_codes import ErrorCode
from broker.handlers.transactions.markers import handle_write_txn_markers
from broker.transactions.interfaces import TransactionalPartition
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from broker.wire.primitives import ZERO_UUID
from logformat.record_batch import walk
from logformat.records import iter_records
from logformat.transaction_marker import marker_of
from tests.support.brokers.broker_kit import Life, batch_of, fetch_request, produce_request, values_of


@dataclass
class FakeVerifier:
    """`TransactionVerifier` that answers what the test says, when it says so."""

    answer: ErrorCode = ErrorCode.NONE
    asked: list[tuple[str, int, int, tuple[str, ...], bool]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TransactionalPartition],
        *,
        add: bool,
    ) -> Mapping[TransactionalPartition, ErrorCode]:
        names = tuple(f"{of.topic}-{of.partition}" for of in partitions)
        self.asked.append((transactional_id, producer_id, producer_epoch, names, add))
        if self.gate is not None:
            await self.gate.wait()
        return dict.fromkeys(partitions, self.answer)

    async def settled(self, transactional_id: str, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)


def with_transactions(life: Life) -> FakeVerifier:
    """Let the broker take transactional batches."""
    verifier = FakeVerifier()
    life.dispatcher.serve(replace(life.context, verifier=verifier))
    return verifier


def transactional(topic: str, producer_id: int, epoch: int, sequence: int, *values: bytes, index: int = 0) -> Any:
    batch = batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    request = produce_request(topic, batch, index=index)
    request.transactional_id = f"id-{producer_id}"
    return request


async def produce_in(
    life: Life, topic: str, producer_id: int, sequence: int, *values: bytes, epoch: int = 0, version: int = 11
) -> wire.ProduceResponsePartition:
    request = transactional(topic, producer_id, epoch, sequence, *values)
    response: wire.ProduceResponse = await life.call(ApiKey.PRODUCE, request, version)
    return response.responses[0].partition_responses[0]


async def end(
    life: Life,
    topic: str,
    producer_id: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator: int = 0,
    version: int = 0,
    topic_id: Any = ZERO_UUID,
) -> ErrorCode:
    """One marker, by WriteTxnMarkers; its error."""
    of = wire.WriteTxnMarkersRequestTopic(name=topic, partition_indexes=[0], topic_id=topic_id)
    marker = wire.WriteTxnMarkersRequestMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[of],
        coordinator_epoch=coordinator,
        transaction_version=version,
    )
    request = wire.WriteTxnMarkersRequest(markers=[marker])
    response = await handle_write_txn_markers(life.context, request, Call(2, life.peer, "coordinator"))
    return ErrorCode(response.markers[0].topics[0].partitions[0].error_code)


@dataclass
class Committed:
    """A read_committed fetch: the values that a client would show, its last stable offset, the aborted list."""

    values: list[bytes | None]
    last_stable_offset: int
    aborted: list[tuple[int, int]]


async def read_committed(life: Life, topic: str, offset: int = 0, **how: Any) -> Committed:
    """One fetch; aborted records are dropped as Kafka's consumer does, batch by batch."""
    request = fetch_request((topic, 0, offset), isolation_level=1, **{"max_wait_ms": 20_000, **how})
    part = (await life.call(ApiKey.FETCH, request)).responses[0].partitions[0]
    assert part.error_code == 0, part
    return Committed(
        shown(part),
        part.last_stable_offset,
        sorted((of.producer_id, of.first_offset) for of in part.aborted_transactions or ()),
    )


def shown(part: wire.FetchResponsePartition) -> list[bytes | None]:
    """Values of a fetched partition without control batches and aborted ones."""

    data = bytes(part.records or b"")
    coming = sorted(part.aborted_transactions or (), key=lambda of: of.first_offset)
    aborted: set[int] = set()
    found: list[bytes | None] = []
    for at, header in walk(data):
        while coming and coming[0].first_offset <= header.last_offset:
            aborted.add(coming.pop(0).producer_id)
        if header.is_control:
            marker = marker_of(data, at, header)
            if marker is not None and not marker.is_commit:
                aborted.discard(marker.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += [record.value for record in iter_records(data, at)]
    return found


__all__ = ["FakeVerifier", "end", "produce_in", "read_committed", "transactional", "values_of", "with_transactions"]
