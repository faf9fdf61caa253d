"""What consumers of a rack are told by three brokers, leader and followers (KIP-392), for two clusters to be compared.

Owns what is asked, and how an answer is made comparable. Always true: nodes 1, 2, 3 stand in racks r1, r2, r3; node 1
leads everything, in its first leader epoch. Must not know who answers.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol
from uuid import UUID

from broker.wire.apis import ApiKey
from broker.wire.generated import messages as m
from broker.wire.message import Message
from logformat.record_batch import walk
from logformat.records import Record, encode_batch

JSON = dict[str, Any]
TOPIC = "near"
ALONE = "alone"
WAIT_MS = 600
TIMESTAMP_MS = 1_750_000_000_000
LEADER, FOLLOWER, OTHER = 1, 2, 3


class Cluster(Protocol):
    """Who is asked."""

    async def ask(self, node_id: int, api: ApiKey, version: int, request: Message) -> Message: ...
    async def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        ...

    async def go_on(self, node_id: int) -> None:
        """SIGCONT."""
        ...


class Talk:
    """Asks, and writes down the answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._session = 0
        self.epoch = 0  # the leader's, of TOPIC
        self.log: list[tuple[str, JSON]] = []

    async def create(self, name: str, replicas: list[int]) -> None:
        assigned = m.CreateTopicsRequestAssignment(partition_index=0, broker_ids=replicas)
        configs = [
            m.CreateTopicsRequestConfig(name="retention.ms", value="-1"),
            m.CreateTopicsRequestConfig(name="min.insync.replicas", value="1"),
        ]
        topic = m.CreateTopicsRequestTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=[assigned], configs=configs
        )
        request = m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        answer: Any = await self._cluster.ask(LEADER, ApiKey.CREATE_TOPICS, 6, request)
        assert answer.topics[0].error_code == 0, answer
        await self._until_led(name, len(replicas))

    async def _until_led(self, name: str, in_sync: int) -> None:
        """Every broker says so."""
        for node_id in (LEADER, FOLLOWER, OTHER):
            while True:
                request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)])
                answer: Any = await self._cluster.ask(node_id, ApiKey.METADATA, 9, request)
                (topic,) = answer.topics
                if topic.partitions and topic.partitions[0].leader_id == LEADER:
                    assert len(topic.partitions[0].isr_nodes) == in_sync, topic
                    self.epoch = topic.partitions[0].leader_epoch
                    break
                await asyncio.sleep(0.1)

    async def produce(self, name: str, acks: int = -1) -> None:
        batch = encode_batch([Record(0, TIMESTAMP_MS, None, b"v" * 100)])
        data = m.ProduceRequestPartition(index=0, records=memoryview(batch))
        topic = m.ProduceRequestTopic(name=name, partition_data=[data])
        request = m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic])
        answer: Any = await self._cluster.ask(LEADER, ApiKey.PRODUCE, 9, request)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    async def delete_records(self, name: str, offset: int) -> None:
        cut = m.DeleteRecordsRequestPartition(partition_index=0, offset=offset)
        topic = m.DeleteRecordsRequestTopic(name=name, partitions=[cut])
        request = m.DeleteRecordsRequest(topics=[topic], timeout_ms=5_000)
        answer: Any = await self._cluster.ask(LEADER, ApiKey.DELETE_RECORDS, 2, request)
        assert answer.topics[0].partitions[0].error_code == 0, answer

    async def settled(self, node_id: int, high_watermark: int, start: int = 0) -> None:
        """Until a follower knows what is committed, and where the log starts."""
        while True:
            answer = await self._fetch(node_id, [(TOPIC, high_watermark, {})], "", 0, 1, 12, -1, 0)
            part = answer.responses[0].partitions[0]
            if (part.high_watermark, part.log_start_offset) == (high_watermark, start):
                return
            await asyncio.sleep(0.1)

    async def fetch(
        self,
        label: str,
        node_id: int,
        *wanted: tuple[str, int] | tuple[str, int, JSON],
        rack: str = "",
        wait_ms: int = 0,
        min_bytes: int = 1,
        version: int = 12,
        session_epoch: int = -1,
        isolation: int = 0,
    ) -> None:
        """`wanted`: (topic, offset[, more fields]). A wait over half its time is noted."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = [(name, offset, (*more, {})[0]) for name, offset, *more in wanted]
        answer = await self._fetch(node_id, asked, rack, wait_ms, min_bytes, version, session_epoch, isolation)
        if session_epoch == 0:
            self._session = answer.session_id
        told: JSON = {
            "error": answer.error_code,
            "topics": [[topic.topic, [_partition(part) for part in topic.partitions]] for topic in answer.responses],
        }
        if wait_ms > 0 and loop.time() - began > wait_ms / 2000:
            told["waited"] = True
        self.log.append((f"v{version} node {node_id} rack {rack or 'none'}: {label}", told))

    async def _fetch(
        self,
        node_id: int,
        wanted: list[tuple[str, int, JSON]],
        rack: str,
        wait_ms: int,
        min_bytes: int,
        version: int,
        session_epoch: int,
        isolation: int,
    ) -> Any:
        topics = [
            m.FetchRequestTopic(
                topic=name,
                topic_id=UUID(int=0),
                partitions=[
                    m.FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **more)
                ],
            )
            for name, offset, more in wanted
        ]
        request = m.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=isolation,
            session_id=self._session if session_epoch > 0 else 0,
            session_epoch=session_epoch,
            topics=topics,
            rack_id=rack,
        )
        return await self._cluster.ask(node_id, ApiKey.FETCH, version, request)

    async def list_offset(self, label: str, node_id: int, sentinel: int, replica_id: int = -1) -> None:
        wanted = m.ListOffsetsRequestPartition(partition_index=0, timestamp=sentinel)
        topic = m.ListOffsetsRequestTopic(name=TOPIC, partitions=[wanted])
        request = m.ListOffsetsRequest(replica_id=replica_id, topics=[topic], timeout_ms=3_000)
        answer: Any = await self._cluster.ask(node_id, ApiKey.LIST_OFFSETS, 7, request)
        part = answer.topics[0].partitions[0]
        self.log.append((f"node {node_id}: {label}", {"error": part.error_code, "offset": part.offset}))

    async def epoch_end(self, label: str, node_id: int) -> None:
        wanted = m.OffsetForLeaderEpochRequestPartition(
            partition=0, current_leader_epoch=self.epoch, leader_epoch=self.epoch
        )
        topic = m.OffsetForLeaderEpochRequestTopic(topic=TOPIC, partitions=[wanted])
        request = m.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
        answer: Any = await self._cluster.ask(node_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
        part = answer.topics[0].partitions[0]
        self.log.append((f"node {node_id}: {label}", {"error": part.error_code, "end": part.end_offset}))

    async def pause(self, node_id: int) -> None:
        await self._cluster.pause(node_id)

    async def go_on(self, node_id: int) -> None:
        await self._cluster.go_on(node_id)


def _partition(part: m.FetchResponsePartition) -> JSON:
    records: Any = part.records
    found: JSON = {
        "error": part.error_code,
        "offsets": [part.high_watermark, part.last_stable_offset, part.log_start_offset],
        "batches": None if records is None else [header.base_offset for _, header in walk(bytes(records))],
        "aborted": None if part.aborted_transactions is None else len(part.aborted_transactions),
        "preferred": part.preferred_read_replica,
    }
    if part.diverging_epoch is not None:
        found["diverging"] = part.diverging_epoch.end_offset
    return found


async def conversation(t: Talk) -> None:
    """Five records; the first two deleted; one more that node 3 does not have."""
    await t.create(TOPIC, [LEADER, FOLLOWER, OTHER])
    await t.create(ALONE, [LEADER])
    for _ in range(5):
        await t.produce(TOPIC)
    await t.produce(ALONE)
    for node_id in (LEADER, FOLLOWER, OTHER):
        await t.settled(node_id, 5)
    await _leader(t)
    await _follower(t)
    await t.delete_records(TOPIC, 2)
    for node_id in (FOLLOWER, OTHER):
        await t.settled(node_id, 5, 2)
    for node_id, rack in ((LEADER, "r2"), (FOLLOWER, "r2")):
        for offset in (1, 2):
            await t.fetch(f"at {offset} of [2, 5)", node_id, (TOPIC, offset), rack=rack)
    await t.pause(OTHER)
    await t.produce(TOPIC, acks=1)
    await _behind(t)
    await t.go_on(OTHER)


async def _leader(t: Talk) -> None:
    for rack in ("", "r1", "r2", "r3", "nowhere"):
        await t.fetch("at 0", LEADER, (TOPIC, 0), rack=rack)
    for offset in (4, 5, 6, -1):
        await t.fetch(f"at {offset} of 5", LEADER, (TOPIC, offset), rack="r2")
    await t.fetch("at once", LEADER, (TOPIC, 5), rack="r2", wait_ms=WAIT_MS, min_bytes=1000)
    await t.fetch("beyond, waits for nothing", LEADER, (TOPIC, 6), rack="r2", wait_ms=WAIT_MS)
    await t.fetch("read committed", LEADER, (TOPIC, 0), rack="r2", isolation=1)
    for version in (10, 11):
        await t.fetch("at 0", LEADER, (TOPIC, 0), rack="r2" if version > 10 else "", version=version)
    await t.fetch("one replica", LEADER, (ALONE, 0), rack="r2")
    await t.fetch("beside another", LEADER, (ALONE, 0), (TOPIC, 0), rack="r2", wait_ms=WAIT_MS, min_bytes=1000)
    for named, more in (("the", 0), ("a newer", 1)):
        await t.fetch(f"{named} leader epoch", LEADER, (TOPIC, 0, {"current_leader_epoch": t.epoch + more}), rack="r2")
    await t.fetch("session", LEADER, (TOPIC, 0), rack="r2", session_epoch=0)
    await t.fetch("again", LEADER, rack="r2", session_epoch=1)
    await t.fetch("another rack", LEADER, rack="r3", session_epoch=2)
    await t.fetch("no rack", LEADER, rack="", session_epoch=3)


async def _follower(t: Talk) -> None:
    for version in (10, 11, 12):
        await t.fetch("at 0", FOLLOWER, (TOPIC, 0), version=version)
    for rack in ("r1", "r2", "r3"):
        await t.fetch("at 0", FOLLOWER, (TOPIC, 0), rack=rack)
    for offset in (4, 6, -1):
        await t.fetch(f"at {offset} of 5", FOLLOWER, (TOPIC, offset), wait_ms=WAIT_MS)
    await t.fetch("at its end", FOLLOWER, (TOPIC, 5), wait_ms=WAIT_MS)
    await t.fetch("not held", FOLLOWER, (ALONE, 0), rack="r2", wait_ms=WAIT_MS)
    await t.fetch("the leader epoch", FOLLOWER, (TOPIC, 0, {"current_leader_epoch": t.epoch}))
    await t.fetch("a newer leader epoch", FOLLOWER, (TOPIC, 0, {"current_leader_epoch": t.epoch + 1}))
    await t.fetch("last fetched epoch", FOLLOWER, (TOPIC, 5, {"last_fetched_epoch": t.epoch}))
    await t.fetch("an unknown last fetched epoch", FOLLOWER, (TOPIC, 5, {"last_fetched_epoch": t.epoch + 1}))
    await t.fetch("read committed", FOLLOWER, (TOPIC, 0), isolation=1)
    await t.fetch("session", FOLLOWER, (TOPIC, 4), session_epoch=0)
    await t.fetch("goes on", FOLLOWER, (TOPIC, 5), session_epoch=1, wait_ms=WAIT_MS)
    for sentinel, name in ((-1, "latest"), (-2, "earliest"), (TIMESTAMP_MS, "by time")):
        await t.list_offset(f"{name} of a consumer", FOLLOWER, sentinel)
        await t.list_offset(f"{name} of who looks at replicas", FOLLOWER, sentinel, -2)
    await t.epoch_end("end of the epoch", FOLLOWER)


async def _behind(t: Talk) -> None:
    """Node 3 has 5 of 6, so 5 are committed; node 2 has all."""
    for node_id in (LEADER, FOLLOWER):
        await t.settled(node_id, 5, 2)
    for offset in (5, 6):
        await t.fetch(f"at {offset} of 5 there, 6 here", LEADER, (TOPIC, offset), rack="r3")
        await t.fetch(f"at {offset} of 6", LEADER, (TOPIC, offset), rack="r2")
        await t.fetch(f"at {offset} of 6, not committed", FOLLOWER, (TOPIC, offset))
        await t.fetch(f"at {offset} of 6, not committed, and waits", FOLLOWER, (TOPIC, offset), wait_ms=WAIT_MS)
    await t.fetch("at 7 of 6, not committed", FOLLOWER, (TOPIC, 7))
