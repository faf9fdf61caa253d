"""A small Kafka client over the simulated network and the real codec.

Owns connections, correlation ids and records. Always true: a request is answered by its own response or fails with
`Disconnected` / `TimeoutError`, which say nothing about its effect. Must not know what a call means for the history.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire import codec, framing
from broker.wire.apis import APIS, ApiKey
from broker.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from logformat.record_batch import BatchHeader, walk
from tests.sim.world.net import SimNet

VERSIONS = {key: api.version_max for key, api in APIS.items()} | {
    ApiKey.FETCH: 12,  # the last that names topics
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # the last of clients
}
EARLIEST, LATEST = -2, -1
OF_GROUP, OF_TRANSACTION = 0, 1
"""Kinds of coordinators."""
READ_COMMITTED = 1
FETCH_BY_ID = 13


class Disconnected(Exception):
    """The connection is gone; whether the request took effect is unknown."""


class ServerError(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int, what: str) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{what}: {self.code.name}")


class Fetched(NamedTuple):
    """One partition of a fetch answer: whole batches as (header, bytes), and what it says of the log."""

    error: int
    high_watermark: int
    log_start_offset: int
    batches: list[tuple[BatchHeader, bytes]]
    preferred: int = -1  # the replica to read from instead (KIP-392)
    last_stable: int = -1
    aborted: tuple[tuple[int, int], ...] = ()  # (producer id, first offset), where read_committed was asked for


class Connection(asyncio.BufferedProtocol):
    """One connection; requests are pipelined and answered in order."""

    def __init__(self) -> None:
        self._buffer = bytearray(64 << 10)
        self._data = bytearray()
        self._waiting: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self._correlation = 0
        self.transport: Any = None
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        data = self._data
        data += self._buffer[:nbytes]
        while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "big")):
            frame = memoryview(bytes(data[4 : 4 + size]))
            del data[: 4 + size]
            key, version, correlation, future = self._waiting.popleft()
            answered, start = framing.parse_response_header(frame, key, version)
            assert answered == correlation, f"answer {answered} to request {correlation}"
            if not future.done():
                future.set_result(codec.decode_response(key, version, frame[start:]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for *_, future in self._waiting:
            if not future.done():
                future.set_exception(Disconnected("connection lost"))
                future.exception()
        self._waiting.clear()

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def send(
        self, key: ApiKey, message: Any, *, answered: bool = True, version: int | None = None
    ) -> asyncio.Future[Any]:
        """Send a request; the future is its response."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost:
            future.set_exception(Disconnected("connection lost"))
            future.exception()
            return future
        version = VERSIONS[key] if version is None else version
        self._correlation += 1
        body = codec.encode_request(key, version, message)
        parts = framing.request_frame(key, version, self._correlation, "sim", body)
        if answered:
            self._waiting.append((key, version, self._correlation, future))
        self.transport.write(b"".join(parts))  # type: ignore[arg-type]
        return future

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Client:
    """Calls to whichever broker `address` names; reconnects by itself."""

    def __init__(self, net: SimNet, address: Callable[[], tuple[str, int]], timeout_s: float = 5.0) -> None:
        self._net = net
        self._address = address
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self.connected_to: tuple[str, int] = ("", 0)

    async def connection(self) -> Connection:
        wanted = self._address()
        known = self._connection
        if known is not None and not known.lost and wanted == self.connected_to:
            return known
        if known is not None:
            known.close()
        made = Connection()
        try:
            await self._net.connect(*wanted, made, self._timeout_s)
        except ConnectionRefusedError as refused:
            raise Disconnected(str(refused)) from refused
        self._connection, self.connected_to = made, wanted
        return made

    def refused(self, code: int) -> None:
        """A broker answered with this error: who talks to one of several may have asked the wrong one."""

    def drop(self) -> None:
        """Forget the connection: an answer that comes too late must not be taken for another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def call(
        self, key: ApiKey, message: Any, timeout_s: float | None = None, *, version: int | None = None
    ) -> Any:
        """One request and its response. Disconnected or TimeoutError: its effect is unknown."""
        connection = await self.connection()
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                return await connection.send(key, message, version=version)
        except TimeoutError:
            self.drop()
            raise

    def _check(self, code: int, what: str) -> None:
        if code != ErrorCode.NONE:
            self.refused(code)
            raise ServerError(code, what)

    # --- calls ---
    async def init_producer_id(self) -> tuple[int, int]:
        answer = await self.call(
            ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        )
        self._check(answer.error_code, "InitProducerId")
        return answer.producer_id, answer.producer_epoch

    async def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        topic = CreateTopicsRequestTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[CreateTopicsRequestConfig(name=key, value=value) for key, value in configs.items()],
        )
        answer = await self.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 12.0)
        self._check(answer.topics[0].error_code, f"create {name}")

    async def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=name)], timeout_ms=10_000)
        answer = await self.call(ApiKey.DELETE_TOPICS, request, 12.0)
        self._check(answer.responses[0].error_code, f"delete {name}")

    async def set_config(self, topic: str, name: str, value: str) -> None:
        await self.set_configs(topic, {name: value})

    async def set_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        changes = [
            IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
            for name, value in configs.items()
        ]
        resource = IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=topic, configs=changes)
        answer = await self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]))
        self._check(answer.responses[0].error_code, f"set {', '.join(configs)}")

    async def create_partitions(self, topic: str, count: int) -> None:
        """So many in all."""
        wanted = CreatePartitionsRequestTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000)
        answer = await self.call(ApiKey.CREATE_PARTITIONS, request, 12.0)
        self._check(answer.results[0].error_code, f"create partitions of {topic}")

    async def elect_preferred(self, topic: str, partition: int) -> None:
        wanted = ElectLeadersRequestTopic(topic=topic, partitions=[partition])
        request = ElectLeadersRequest(election_type=0, topic_partitions=[wanted], timeout_ms=10_000)
        answer = await self.call(ApiKey.ELECT_LEADERS, request, 12.0)
        self._check(answer.error_code, f"elect the leader of {topic}-{partition}")
        for found in answer.replica_election_results:
            self._check(found.partition_result[0].error_code, f"elect the leader of {topic}-{partition}")

    async def reassign(self, topic: str, partition: int, replicas: list[int] | None) -> None:
        """None: the move that is under way is off."""
        wanted = AlterPartitionReassignmentsRequestPartition(partition, replicas)
        topics = [AlterPartitionReassignmentsRequestTopic(topic, [wanted])]
        request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=10_000)
        answer = await self.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, 12.0)
        self._check(answer.error_code, f"move {topic}-{partition}")
        self._check(answer.responses[0].partitions[0].error_code, f"move {topic}-{partition}")

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        wanted = DeleteRecordsRequestPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequestTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
        )
        answer = (await self.call(ApiKey.DELETE_RECORDS, request, 12.0)).topics[0].partitions[0]
        self._check(answer.error_code, "DeleteRecords")
        return int(answer.low_watermark)

    async def list_offset(self, topic: str, partition: int, sentinel: int, *, isolation: int = 0) -> int:
        wanted = ListOffsetsRequestPartition(partition_index=partition, timestamp=sentinel)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsRequestTopic(name=topic, partitions=[wanted])],
            timeout_ms=3_000,
        )
        answer = (await self.call(ApiKey.LIST_OFFSETS, request)).topics[0].partitions[0]
        self._check(answer.error_code, "ListOffsets")
        return int(answer.offset)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        bytes_max: int,
        wait_ms: int = 500,
        rack: str = "",
        leader_epoch: int = -1,
        isolation: int = 0,
        topic_id: UUID | None = None,
    ) -> Fetched:
        """`topic_id`: which topic of this name is meant; None: whichever has it."""
        wanted = FetchRequestPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=bytes_max,
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=isolation,
            topics=[FetchRequestTopic(topic=topic, topic_id=topic_id or UUID(int=0), partitions=[wanted])],
            rack_id=rack,
        )
        answer = await self.call(ApiKey.FETCH, request, version=None if topic_id is None else FETCH_BY_ID)
        self._check(answer.error_code, "Fetch")
        found = answer.responses[0].partitions[0]
        data = bytes(found.records or b"")
        batches = [(header, data[at : at + header.size]) for at, header in walk(data)]
        ends = found.high_watermark, found.log_start_offset
        aborted = tuple((one.producer_id, one.first_offset) for one in found.aborted_transactions or ())
        preferred, last_stable = found.preferred_read_replica, found.last_stable_offset
        return Fetched(found.error_code, *ends, batches, preferred, last_stable, aborted)

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        wanted = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata or None
        )
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[wanted])]
        )
        answer = await self.call(ApiKey.OFFSET_COMMIT, request)
        self._check(answer.topics[0].partitions[0].error_code, "OffsetCommit")

    async def committed_offset(self, group: str, topic: str, partition: int, *, require_stable: bool = False) -> int:
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=require_stable,
        )
        answer = await self.call(ApiKey.OFFSET_FETCH, request, version=7 if require_stable else None)
        self._check(answer.error_code, "OffsetFetch")
        found = answer.topics[0].partitions[0]
        self._check(found.error_code, "OffsetFetch")
        return int(found.committed_offset)

    async def find_coordinator(self, key: str, kind: int = OF_GROUP) -> None:
        answer = await self.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key=key, key_type=kind))
        self._check(answer.error_code, "FindCoordinator")


def produce_request(
    topic: str,
    partition: int,
    batch: bytes,
    acks: int = -1,
    timeout_ms: int = 4_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    data = ProduceRequestPartition(index=partition, records=memoryview(batch))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequestTopic(name=topic, partition_data=[data])],
    )
