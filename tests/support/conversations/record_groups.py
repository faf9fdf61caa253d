"""Ask a fresh Apache Kafka the conversations about groups, and keep its answers as the golden files.

kafka start 29392    # bench/peers/kafka; group.initial.rebalance.delay.ms=0
python -m tests.support.conversations.record_groups 29392 tests/golden
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import parse_response_header, request_frame
from broker.wire.generated.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    HeartbeatRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from broker.wire.message import Message
from tests.support.conversations.group_admin_conversation import ADMIN_CONVERSATIONS
from tests.support.conversations.group_conversation import CONVERSATIONS, TOPIC, Conversations, Talk
from tests.support.conversations.group_topic_id_conversation import TOPIC_ID_CONVERSATIONS

GOLDEN_FILES = {
    "groups_kafka_4_3_1.json": CONVERSATIONS,
    "group_admin_kafka_4_3_1.json": ADMIN_CONVERSATIONS,
    "group_topic_ids_kafka_4_3_1.json": TOPIC_ID_CONVERSATIONS,
}


class RemoteBroker:
    """A connection a request, so that a parked one is in nobody's way."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for part in request_frame(api, version, 1, "client", encode_request(api, version, request)):
                assert isinstance(part, bytes | bytearray | memoryview)
                writer.write(part)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            frame = memoryview(await reader.readexactly(size))
            _, offset = parse_response_header(frame, api, version)
            return decode_response(api, version, frame[offset:])
        finally:
            writer.close()

    async def settle(self) -> None:
        await asyncio.sleep(0.3)


async def prepare(broker: RemoteBroker) -> None:
    """The topic of the conversations, and `__consumer_offsets`, which the first question creates."""
    topic = CreateTopicsRequestTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    await broker.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    talk = Talk(broker)
    while True:
        await asyncio.sleep(1)
        await CONVERSATIONS["find"](talk)
        if talk.log[0][1]["error_code"] == 0:
            break
        talk.log.clear()
    for number in range(300):  # somewhere in every partition: its coordinator begins later than the topic
        beat = HeartbeatRequest(group_id=f"warm {number}", member_id="nobody", generation_id=1)
        while (await broker.ask(ApiKey.HEARTBEAT, 4, beat)).error_code != ErrorCode.UNKNOWN_MEMBER_ID:  # type: ignore[attr-defined]
            await asyncio.sleep(0.1)


async def topic_id_of(broker: RemoteBroker) -> UUID:
    answer: Any = await broker.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
    return answer.topics[0].topic_id


async def record(broker: RemoteBroker, conversations: Conversations) -> dict[str, Any]:
    answers = {}
    for name, conversation in conversations.items():
        talk = Talk(broker, await topic_id_of(broker))
        await asyncio.wait_for(conversation(talk), 60)
        answers[name] = talk.log
    return answers


async def record_all(port: int, directory: Path) -> None:
    broker = RemoteBroker(port)
    await prepare(broker)
    for name, conversations in GOLDEN_FILES.items():
        answers = await record(broker, conversations)
        (directory / name).write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(record_all(int(sys.argv[1]), Path(sys.argv[2])))
