"""Ask a fresh Apache Kafka the conversations about groups, and keep its answers as the golden file.

kafka start 29392    # bench/peers/kafka; group.initial.rebalance.delay.ms=0
python -m tests.support.record_groups 29392 tests/golden/groups_kafka_4_3_1.json
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from pathlib import Path
from typing import Any

from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import parse_response_header, request_frame
from broker.wire.generated.messages import CreateTopicsRequest, CreateTopicsRequestTopic
from broker.wire.message import Message
from tests.support.group_conversation import CONVERSATIONS, TOPIC, Talk


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


async def record(port: int) -> dict[str, Any]:
    broker = RemoteBroker(port)
    topic = CreateTopicsRequestTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    await broker.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    talk = Talk(broker)
    while True:  # the first question creates __consumer_offsets
        await asyncio.sleep(1)
        await CONVERSATIONS["find"](talk)
        if talk.log[0][1]["error_code"] == 0:
            break
        talk.log.clear()
    answers = {}
    for name, conversation in CONVERSATIONS.items():
        talk = Talk(broker)
        await asyncio.wait_for(conversation(talk), 60)
        answers[name] = talk.log
    return answers


if __name__ == "__main__":
    answers = asyncio.run(record(int(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
