"""The same requests, the same answers: our coordinator against what Apache Kafka 4.3.1 answered.

`tests/golden/group*_kafka_4_3_1.json` hold Kafka's answers (recorded with `python -m
tests.support.conversations.record_groups` against the peer, `group.initial.rebalance.delay.ms=0`). Each answer here
went through the codec of its version.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from broker.config.groups import GroupConfig
from broker.groups.coordinator import GroupCoordinator
from broker.handlers.groups import admin as group_admin
from broker.handlers.groups import members as handlers
from broker.handlers.groups import offsets as group_offsets
from broker.handlers.groups.members import ClientInfo
from broker.handlers.metadata.cluster_view import BrokerAt
from broker.metadata.image import TopicFacts
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_request, decode_response, encode_request, encode_response
from broker.wire.message import Message
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support import repository
from tests.support.conversations.group_conversation import TOPIC, Talk
from tests.support.conversations.record_groups import GOLDEN_FILES
from tests.support.fast_loop import FastClock, run_fast
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog

GOLDEN = {
    name: answers
    for file in GOLDEN_FILES
    for name, answers in json.loads((repository.GOLDEN / file).read_text()).items()
}
CONVERSATIONS = {name: talk for conversations in GOLDEN_FILES.values() for name, talk in conversations.items()}
TOPIC_ID = UUID(int=7)

ROOMS = (handlers, group_admin, group_offsets)

# Where we mean to answer otherwise: (conversation, label) → why.
DIFFERENT = {
    ("find", "find an unknown kind"): "our message says what is wrong",
    ("admin_refusals", "describe twice"): "members are told once; a frame may repeat a name a thousand times",
}


class OurBroker:
    """The handlers, reached through the codec."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message:
        body = memoryview(b"".join(bytes(part) for part in encode_request(api, version, request)))
        asked: Any = decode_request(api, version, body)
        client = ClientInfo("client", "127.0.0.1")
        if api is ApiKey.FIND_COORDINATOR:
            nodes = {1: BrokerAt(1, "localhost", 9092, None)}
            response: Message = await handlers.handle_find_coordinator(self._coordinator, asked, version, nodes.get)
        else:
            name = f"handle_{api.name.lower()}"
            (handle,) = (getattr(room, name) for room in ROOMS if name in vars(room))
            response = await handle(self._coordinator, asked, version, client)
        answer = memoryview(b"".join(bytes(part) for part in encode_response(api, version, response)))  # type: ignore[arg-type]
        return decode_response(api, version, answer)

    async def settle(self) -> None:
        await asyncio.sleep(0.3)


async def converse(name: str) -> list[tuple[str, Any]]:
    tasks = Tasks()
    offsets = MemoryOffsetsLog()
    coordinator = GroupCoordinator(
        offsets,
        FastClock(),
        SeededRng(1),
        GroupConfig(initial_rebalance_delay_ms=0),
        tasks,
        topics=lambda topic: TopicFacts(TOPIC_ID, 1) if topic == TOPIC else None,
        names={TOPIC_ID: TOPIC}.get,
        in_session=lambda: True,
        is_complete=lambda: True,
    )
    for index in range(offsets.partitions):
        coordinator.log.lead(offsets.shard_log(index))
    coordinator.start()
    await coordinator.log.wait_loaded()
    talk = Talk(OurBroker(coordinator), TOPIC_ID)
    await CONVERSATIONS[name](talk)
    await coordinator.close()
    await tasks.close()
    return talk.log


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_answers_are_those_of_kafka(name: str) -> None:
    """Every field of every answer, but throttle times, addresses and the differences listed above."""
    ours = run_fast(converse(name))
    theirs = [(label, answer) for label, answer in GOLDEN[name]]
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    for (label, answer), (_, expected) in zip(ours, theirs, strict=True):
        if (name, label) not in DIFFERENT:
            assert json.loads(json.dumps(answer)) == expected, label
