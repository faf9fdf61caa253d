"""What clients and admins ask about transactions, one method a request: names are the conversation's, answers are kept.

Always true: `again=True` asks until the answer has no error that a moment changes, so a conversation that only needs
the effect does not depend on how fast a broker is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from broker.wire.primitives import ZERO_UUID
from logformat.records import Record, encode_batch
from tests.support.conversations.transaction_talk import NO_PRODUCER, TIMESTAMP_MS, Producer, Talk

Place = tuple[str, int]
PRODUCE_VERSIONS = range(3, 13)
"""Kafka has 13 too, which names topics by their ids; it is not served here."""
_COMPLETE_TIMEOUT_S = 30.0
_TOPIC_IDS_SINCE = 13  # Fetch
_GROUPS_SINCE = 8  # OffsetFetch
_GROUP_TOPIC_IDS_SINCE = 10


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    indexes: dict[str, list[int]] = {}
    for topic, index in places:
        indexes.setdefault(topic, []).append(index)
    return indexes


class TransactionTalk(Talk):
    """The requests."""

    async def _ask(self, label: str, api: ApiKey, version: int, request: Message, again: bool) -> Any:
        ask = self.until if again else self.ask
        return await ask(label, api, version, request)

    # ---- producers -------------------------------------------------------------------------------------------------

    async def init(
        self,
        label: str,
        tid: str | None,
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
        producer: Producer = NO_PRODUCER,
        again: bool = False,
    ) -> Producer:
        """The id and epoch of the answer, of a refusal too."""
        named = None if tid is None else self.name(tid)
        request = wire.InitProducerIdRequest(named, timeout_ms, producer.id, producer.epoch)
        found = await self._ask(label, ApiKey.INIT_PRODUCER_ID, version, request, again)
        return Producer(found.producer_id, found.producer_epoch)

    async def begun(self, tid: str, *, version: int = 5, timeout_ms: int = 60_000) -> Producer:
        """A coordinator and a producer, ready to begin."""
        await self.begin(tid)
        return await self.init(f"{tid} begins", tid, version=version, timeout_ms=timeout_ms, again=True)

    async def add(
        self, label: str, tid: str, producer: Producer, *places: Place, version: int = 3, again: bool = False
    ) -> Any:
        topics = [wire.AddPartitionsToTxnRequestTopic(self.name(of), at) for of, at in by_topic(places).items()]
        request = wire.AddPartitionsToTxnRequest([], self.name(tid), producer.id, producer.epoch, topics)
        return await self._ask(label, ApiKey.ADD_PARTITIONS_TO_TXN, version, request, again)

    async def add_all(
        self, label: str, *wanted: tuple[str, Producer, bool, Sequence[Place]], version: int = 5, again: bool = False
    ) -> Any:
        """As brokers ask: (transactional id, producer, only verify, partitions)."""
        transactions = [
            wire.AddPartitionsToTxnRequestTransaction(
                self.name(tid),
                producer.id,
                producer.epoch,
                verify,
                [
                    wire.AddPartitionsToTxnRequestTransactionTopic(self.name(of), at)
                    for of, at in by_topic(places).items()
                ],
            )
            for tid, producer, verify, places in wanted
        ]
        request = wire.AddPartitionsToTxnRequest(transactions)
        return await self._ask(label, ApiKey.ADD_PARTITIONS_TO_TXN, version, request, again)

    async def end(
        self, label: str, tid: str, producer: Producer, *, commit: bool = True, version: int = 5, again: bool = False
    ) -> Producer:
        """The producer of the next transaction: from version 5 on the answer has it."""
        request = wire.EndTxnRequest(self.name(tid), producer.id, producer.epoch, commit)
        found = await self._ask(label, ApiKey.END_TXN, version, request, again)
        return Producer(found.producer_id, found.producer_epoch) if found.producer_id >= 0 else producer

    async def ended(self, tid: str, producer: Producer, *, commit: bool = True, version: int = 5) -> Producer:
        """Decided, and all markers written."""
        following = await self.end(f"{tid} ends", tid, producer, commit=commit, version=version, again=True)
        await self.completed(tid)
        return following

    async def completed(self, tid: str) -> None:
        """Until no marker is missing."""
        request = wire.DescribeTransactionsRequest([self.name(tid)])
        async with asyncio.timeout(_COMPLETE_TIMEOUT_S):
            while True:
                found = await self.quietly(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
                if found.transaction_states[0].transaction_state in ("CompleteCommit", "CompleteAbort"):
                    return
                await asyncio.sleep(0.05)

    async def produce(
        self,
        label: str,
        tid: str | None,
        producer: Producer,
        sequence: int,
        *places: Place,
        values: Sequence[bytes] = (b"v",),
        version: int = 12,
        acks: int = -1,
        again: bool = False,
        **how: Any,
    ) -> Any:
        """One batch to each place, of version 12 in a transaction that it joins by that."""
        records = [Record(at, TIMESTAMP_MS, None, value) for at, value in enumerate(values)]
        batch = encode_batch(
            records,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            **{"transactional": True, **how},
        )
        topics = [
            wire.ProduceRequestTopic(
                self.name(of), [wire.ProduceRequestPartition(index, memoryview(batch)) for index in indexes]
            )
            for of, indexes in by_topic(places).items()
        ]
        request = wire.ProduceRequest(None if tid is None else self.name(tid), acks, 10_000, topics)
        return await self._ask(label, ApiKey.PRODUCE, version, request, again)

    # ---- offsets ---------------------------------------------------------------------------------------------------

    async def add_offsets(
        self, label: str, tid: str, producer: Producer, group: str, *, version: int = 4, again: bool = False
    ) -> Any:
        request = wire.AddOffsetsToTxnRequest(self.name(tid), producer.id, producer.epoch, self.name(group))
        return await self._ask(label, ApiKey.ADD_OFFSETS_TO_TXN, version, request, again)

    async def commit_offsets(
        self,
        label: str,
        tid: str,
        producer: Producer,
        group: str,
        offset: int,
        *places: Place,
        version: int = 5,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
        metadata: str | None = "",
        again: bool = False,
    ) -> Any:
        """TxnOffsetCommit: the same offset for each place."""
        topics = [
            wire.TxnOffsetCommitRequestTopic(
                self.name(of), [wire.TxnOffsetCommitRequestPartition(at, offset, -1, metadata) for at in indexes]
            )
            for of, indexes in by_topic(places).items()
        ]
        request = wire.TxnOffsetCommitRequest(
            self.name(tid), self.name(group), producer.id, producer.epoch, generation, member, instance, topics
        )
        return await self._ask(label, ApiKey.TXN_OFFSET_COMMIT, version, request, again)

    async def offsets(
        self, label: str, group: str, *places: Place, version: int = 9, stable: bool = True, everything: bool = False
    ) -> Any:
        """OffsetFetch."""
        asked = by_topic(places)
        if version < _GROUPS_SINCE:
            old = None if everything else [wire.OffsetFetchRequestTopic(self.name(of), at) for of, at in asked.items()]
            request = wire.OffsetFetchRequest(self.name(group), old, [], stable)
        else:
            named = version < _GROUP_TOPIC_IDS_SINCE
            topics = [
                wire.OffsetFetchRequestGroupTopic(
                    self.name(of) if named else "", ZERO_UUID if named else self.topic_ids[of], at
                )
                for of, at in asked.items()
            ]
            of_group = wire.OffsetFetchRequestGroup(self.name(group), None, -1, None if everything else topics)
            request = wire.OffsetFetchRequest("", [], [of_group], stable)
        return await self.ask(label, ApiKey.OFFSET_FETCH, version, request)

    # ---- markers and readers ---------------------------------------------------------------------------------------

    async def mark(
        self,
        label: str,
        producer: Producer,
        *places: Place,
        commit: bool = True,
        coordinator: int = 0,
        transaction_version: int = 0,
        version: int = 2,
    ) -> Any:
        """WriteTxnMarkers with one marker."""
        topics = [wire.WriteTxnMarkersRequestTopic(self.name(of), at) for of, at in by_topic(places).items()]
        marker = wire.WriteTxnMarkersRequestMarker(
            producer.id, producer.epoch, commit, topics, coordinator, transaction_version
        )
        request = wire.WriteTxnMarkersRequest([marker])
        return await self.ask(label, ApiKey.WRITE_TXN_MARKERS, version, request)

    async def fetch(
        self, label: str, topic: str, index: int = 0, offset: int = 0, *, version: int = 12, committed: bool = True
    ) -> Any:
        """All that the reader may see from an offset on, as of now."""
        part = wire.FetchRequestPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        asked = wire.FetchRequestTopic(partitions=[part])
        if version < _TOPIC_IDS_SINCE:
            asked.topic = self.name(topic)
        else:
            asked.topic_id = self.topic_ids[topic]
        request = wire.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1 if committed else 0,
            session_epoch=-1,
            topics=[asked],
        )
        return await self.ask(label, ApiKey.FETCH, version, request)

    # ---- admins ----------------------------------------------------------------------------------------------------

    async def describe(self, label: str, *tids: str) -> Any:
        request = wire.DescribeTransactionsRequest([self.name(tid) for tid in tids])
        return await self.ask(label, ApiKey.DESCRIBE_TRANSACTIONS, 0, request)

    async def list(
        self,
        label: str,
        *,
        states: Sequence[str] = (),
        ids: Sequence[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
        version: int = 2,
    ) -> Any:
        request = wire.ListTransactionsRequest(list(states), list(ids), duration_ms, pattern)
        return await self.ask(label, ApiKey.LIST_TRANSACTIONS, version, request)

    async def producers(self, label: str, *places: Place) -> Any:
        topics = [wire.DescribeProducersRequestTopic(self.name(of), at) for of, at in by_topic(places).items()]
        return await self.ask(label, ApiKey.DESCRIBE_PRODUCERS, 0, wire.DescribeProducersRequest(topics))

    async def find(self, label: str, *keys: str, kind: int = 1, version: int = 6) -> Any:
        if version < 4:
            request = wire.FindCoordinatorRequest(self.name(keys[0]), kind, [])
        else:
            request = wire.FindCoordinatorRequest("", kind, [self.name(key) for key in keys])
        return await self.ask(label, ApiKey.FIND_COORDINATOR, version, request)

    async def latest(self, label: str, topic: str, index: int = 0, *, version: int = 7, committed: bool = True) -> Any:
        """ListOffsets: the end that a reader may reach."""
        request = self.end_of(topic, index)
        request.isolation_level = 1 if committed else 0
        return await self.ask(label, ApiKey.LIST_OFFSETS, version, request)
