"""Asks any broker about transactions, and writes down the answers so that two brokers can be compared field by field.

Owns how an answer is made comparable. Producer ids that a broker gave are named in the order they appear; so are times
within the conversation; the broker's own address has words. Topics, groups and transactional ids carry the
conversation's name, so that lists leave out others. Every other field is kept as it came, throttle times too. Always
true: nothing here knows who answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import msgspec

from broker.error_codes import ErrorCode
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from broker.wire.primitives import ZERO_UUID
from logformat.record_batch import walk
from logformat.records import iter_records
from logformat.transaction_marker import marker_of

JSON = dict[str, Any]
TIMESTAMP_MS = 1_750_000_000_000
STRANGER = 1 << 50
"""A producer id that no broker gave."""
TURN_S = 0.003
"""Between two requests: so two times that a broker takes are two."""
_AGAIN_S = 0.05
_SETTLE_TIMEOUT_S = 20.0
SOON = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""Answers that a moment changes: `until` asks again."""


class Broker(Protocol):
    """The broker that is asked."""

    def now_ms(self) -> int:
        """Its wall clock, to the accuracy of `_CLOCKS_MS`."""
        ...

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message: ...

    async def settle(self) -> None:
        """Until a change of topics has reached everyone that answers."""
        ...

    held_node: int
    """The broker whose partitions `hold` keeps from taking markers."""

    async def hold(self) -> None: ...

    async def release(self) -> None: ...


_CLOCKS_MS = 1_000
_ADDRESS = ("node_id", "host", "port")


@dataclass(frozen=True, slots=True)
class Producer:
    """What a client has of InitProducerId."""

    id: int
    epoch: int

    def at(self, epoch: int) -> Producer:
        return Producer(self.id, epoch)


NO_PRODUCER = Producer(-1, -1)


class Talk:
    """One conversation."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.prefix = name.replace("_", "-")
        self.log: list[tuple[str, JSON]] = []
        self.topic_ids: dict[str, UUID] = {}
        self._producers: dict[int, str] = {}
        self._times: dict[int, str] = {}
        self._began_ms = broker.now_ms()
        self._address: dict[str, Any] = {}

    def name(self, of: str) -> str:
        return f"{self.prefix}-{of}" if of else of

    # ---- asking ----------------------------------------------------------------------------------------------------

    async def quietly(self, api: ApiKey, version: int, request: Message) -> Any:
        """Ask without a word in the log."""
        await asyncio.sleep(TURN_S)
        return await self.broker.ask(api, version, request)

    async def ask(self, label: str, api: ApiKey, version: int, request: Message) -> Any:
        response = await self.quietly(api, version, request)
        self.write(label, api, version, response)
        return response

    async def until(self, label: str, api: ApiKey, version: int, request: Message) -> Any:
        """Ask until the answer has no error that a moment changes; that answer is written down."""
        response = await self._settled(api, version, request)
        self.write(label, api, version, response)
        return response

    def write(self, label: str, api: ApiKey, version: int, response: Message) -> None:
        if api in (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN):
            given: Any = response
            if given.producer_id >= 0:
                self._producers.setdefault(given.producer_id, f"producer {len(self._producers) + 1}")
        if isinstance(response, wire.ListTransactionsResponse):
            mine = [row for row in response.transaction_states if row.transactional_id.startswith(self.prefix)]
            response.transaction_states = mine
        if isinstance(response, wire.DescribeTransactionsResponse):
            for topic in (topic for row in response.transaction_states for topic in row.topics):
                topic.topic_id = ZERO_UUID  # a tagged field of ours, that Kafka does not have
        answer = self._comparable(plain(response))
        self.log.append((label, {"api": api.name, "version": version, "answer": answer}))

    # ---- making answers comparable ---------------------------------------------------------------------------------

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("port", -1) > 0:
                at = {key: f"its {key}" for key in _ADDRESS if value[key] == self._address[key]}
                value = {**value, **at}
            return {key: self._named(key, part) for key, part in value.items()}
        if not isinstance(value, list):
            return value
        # Clients find rows by their names; Kafka's order of topics and partitions is that of its hash tables.
        return sorted((self._comparable(part) for part in value), key=_order_of)

    def _named(self, key: str, part: Any) -> Any:
        if key == "error_message":
            return "a text" if part else part  # each broker says it in words of its own
        if key == "topic_id":
            return next((f"id of {name}" for name, one in self.topic_ids.items() if str(one) == part), part)
        if key == "producer_id":
            return self._producers.get(part, part)
        if key in ("transaction_start_time_ms", "last_timestamp", "log_append_time_ms"):
            return self._time(part)
        return self._comparable(part)

    def _time(self, at_ms: int) -> Any:
        if not self._began_ms - _CLOCKS_MS <= at_ms <= self.broker.now_ms() + _CLOCKS_MS:
            return at_ms
        return self._times.setdefault(at_ms, f"time {len(self._times) + 1}")

    # ---- around ----------------------------------------------------------------------------------------------------

    async def meet(self) -> None:
        """Learn its address."""
        found = await self.quietly(ApiKey.METADATA, 9, wire.MetadataRequest(topics=[]))
        node = min(found.brokers, key=lambda row: row.node_id)
        self._address = {key: getattr(node, key) for key in _ADDRESS}

    async def begin(self, *tids: str, groups: Sequence[str] = ()) -> None:
        """Coordinators for these ids, without a word in the log."""
        for tid in tids:
            await self._settled(ApiKey.FIND_COORDINATOR, 4, wire.FindCoordinatorRequest("", 1, [self.name(tid)]))
            await self._settled(ApiKey.DESCRIBE_TRANSACTIONS, 0, wire.DescribeTransactionsRequest([self.name(tid)]))
        for group in groups:
            await self._settled(ApiKey.FIND_COORDINATOR, 4, wire.FindCoordinatorRequest("", 0, [self.name(group)]))
            everything = wire.OffsetFetchRequestGroup(self.name(group), None, -1, None)
            await self._settled(ApiKey.OFFSET_FETCH, 9, wire.OffsetFetchRequest("", [], [everything]))

    async def create(self, topic: str, partitions: int = 1, *, nodes: Sequence[int] = ()) -> None:
        """Each partition on the broker that is asked, unless `nodes` says otherwise."""
        where = nodes or [self._address["node_id"]] * partitions
        # One segment, whatever the times of records and markers: a fetch returns what is in one.
        configs = {"retention.ms": "-1", "segment.ms": str(1 << 62)}
        asked = wire.CreateTopicsRequestTopic(
            name=self.name(topic),
            num_partitions=-1,
            replication_factor=-1,
            assignments=[wire.CreateTopicsRequestAssignment(at, [node]) for at, node in enumerate(where)],
            configs=[wire.CreateTopicsRequestConfig(name, value) for name, value in configs.items()],
        )
        request = wire.CreateTopicsRequest(topics=[asked], timeout_ms=10_000)
        answer = await self.quietly(ApiKey.CREATE_TOPICS, 7, request)
        assert answer.topics[0].error_code == 0, answer
        self.topic_ids[topic] = answer.topics[0].topic_id
        await self.broker.settle()
        for at, node in enumerate(where):
            if node == self._address["node_id"]:
                await self._settled(ApiKey.LIST_OFFSETS, 7, self.end_of(topic, at))

    def end_of(self, topic: str, index: int) -> wire.ListOffsetsRequest:
        latest = wire.ListOffsetsRequestPartition(index, timestamp=-1)
        return wire.ListOffsetsRequest(replica_id=-1, topics=[wire.ListOffsetsRequestTopic(self.name(topic), [latest])])

    async def _settled(self, api: ApiKey, version: int, request: Message) -> Any:
        """Ask until the answer has no error that a moment changes."""
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            while SOON & set(errors_of(response := await self.quietly(api, version, request))):
                await asyncio.sleep(_AGAIN_S)
        return response

    async def create_held(self, topic: str) -> None:
        """A topic whose markers `hold` keeps back."""
        await self.create(topic, nodes=[self.broker.held_node])

    async def hold(self) -> None:
        await self.broker.hold()

    async def release(self) -> None:
        await self.broker.release()


_ROW_NAMES = ("name", "topic", "transactional_id", "index", "partition_index")


def _order_of(row: Any) -> tuple[Any, ...]:
    """Of rows with a name, of numbers and words; what else is in lists keeps its order."""
    if isinstance(row, int | str):
        return (row,)
    if isinstance(row, dict) and "last_sequence" in row:
        return (str(row["producer_id"]),)
    return next(((row[key],) for key in _ROW_NAMES if key in row), ()) if isinstance(row, dict) else ()


def plain(value: Any) -> Any:
    """A message as JSON; records as what their batches say."""
    if isinstance(value, Message):
        return {key: plain(getattr(value, key)) for key in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, memoryview | bytes | bytearray):
        return batches(bytes(value))
    return msgspec.to_builtins(value)


def batches(data: bytes) -> list[JSON]:
    """All of a batch that a reader of transactions sees. A marker's time and the leader epochs are a broker's own."""
    found = []
    for at, header in walk(data):
        marker = marker_of(data, at, header)
        row: JSON = {
            "offsets": [header.base_offset, header.last_offset],
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "is_transactional": header.is_transactional,
        }
        if marker is not None:
            row["marker"] = "commit" if marker.is_commit else "abort"
        else:
            row["values"] = [
                bytes(record.value or b"").decode() for record in iter_records(data[at : at + header.size])
            ]
        found.append(row)
    return found


def errors_of(answer: Any) -> list[int]:
    """All error codes in a response, or in what it was written down as."""
    value = plain(answer) if isinstance(answer, Message) else answer
    if isinstance(value, dict):
        own = [part for key, part in value.items() if key.endswith("error_code")]
        return own + [code for part in value.values() for code in errors_of(part)]
    return [code for part in value for code in errors_of(part)] if isinstance(value, list) else []
