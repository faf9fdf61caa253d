"""What consumers of a rack are told: three brokers of ours against what three of Apache Kafka 4.3.1 answered.

`tests/golden/nearest_kafka_4_3_1.json` holds Kafka's answers (`python -m tests.support.conversations.record_nearest`).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from tests.support import repository
from tests.support.brokers.house import House
from tests.support.conversations.nearest_conversation import Talk, conversation
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.waiting import until

GOLDEN = json.loads((repository.GOLDEN / "nearest_kafka_4_3_1.json").read_text())["nearest"]
SELECTOR = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"

DIFFERENT: dict[str, str] = {
    "v12 node 2 rack none: at 6 of 6, not committed, and waits": "Kafka answers at once, again and again, until its "
    "high watermark comes; here the fetch waits for it",
}
"""Where we mean to answer otherwise: label → why."""


class Ours:
    """Nodes 1, 2, 3 in virtual time; a connection a request."""

    def __init__(self, it: House) -> None:
        self._it = it
        self._peers = 1

    async def ask(self, node_id: int, api: ApiKey, version: int, request: Message) -> Message:
        self._peers += 1
        peer = Peer(self._peers, "127.0.0.1:50000", "PLAINTEXT")
        answer: Message = await self._it.within(node_id, self._it.lives[node_id].call(api, request, version, peer))
        return answer

    async def pause(self, node_id: int) -> None:
        self._it.stop(node_id)
        await asyncio.sleep(1.0)

    async def go_on(self, node_id: int) -> None:
        self._it.go_on(node_id)


def test_we_answer_as_kafka_does() -> None:
    """Word for word: error codes, offsets, batches, who is preferred, and whether the answer waited."""

    async def scenario() -> list[Any]:
        it = House(SELECTOR, own={node_id: (f"broker.rack=r{node_id}",) for node_id in (1, 2, 3)})
        for node_id in (1, 2, 3):
            await it.start(node_id)
        await until(lambda: len(it.sessions) == 3, 10)
        talk = Talk(Ours(it))
        await conversation(talk)
        await it.kill(*it.lives)
        return talk.log

    ours = json.loads(json.dumps(run_fast(scenario(), timeout_s=HOUR_S)))
    assert [label for label, _ in ours] == [label for label, _ in GOLDEN]
    unlike = {
        label: (answer, expected)
        for (label, answer), (_, expected) in zip(ours, GOLDEN, strict=True)
        if answer != expected and label not in DIFFERENT
    }
    assert not unlike, "\n".join(f"{label}\n  ours  {one}\n  kafka {other}" for label, (one, other) in unlike.items())
