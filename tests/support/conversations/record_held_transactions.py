"""Ask Apache Kafka the conversations about transactions whose markers are held back, and keep its answers.

S=$'transaction.state.log.num.partitions=1\\noffsets.topic.num.partitions=1'
KAFKA_PEER_SETTINGS=$S kafka start 29392 2    # bench/peers/kafka; prints two process ids
python -m tests.support.conversations.record_held_transactions 29392 PID2 \\
  tests/golden/held_transactions_kafka_4_3_1.json

Broker 1 is asked: it coordinates all ids. While the process of broker 2 is stopped, its partitions take no marker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.conversations.record_fetches import written
from tests.support.conversations.record_transactions import RemotePeer, record
from tests.support.conversations.transaction_conversations import HELD_CONVERSATIONS

GOLDEN_FILE = "held_transactions_kafka_4_3_1.json"
INTERNAL = ("__transaction_state", "__consumer_offsets")


class TwoBrokers(RemotePeer):
    """Broker 1; broker 2 is a process that can be stopped."""

    held_node = 2

    def __init__(self, port: int, other: int) -> None:
        super().__init__(port)
        self._other = other

    async def prepare(self) -> None:
        """Broker 1 leads both coordinators' topics."""
        for name in INTERNAL:
            topic = wire.CreateTopicsRequestTopic(
                name,
                -1,
                -1,
                [wire.CreateTopicsRequestAssignment(0, [1])],
                [wire.CreateTopicsRequestConfig("cleanup.policy", "compact")],
            )
            request = wire.CreateTopicsRequest([topic], 10_000)
            answer: Any = await self.ask(ApiKey.CREATE_TOPICS, 7, request)
            assert answer.topics[0].error_code == 0, answer
        await asyncio.sleep(3)  # they are led

    async def hold(self) -> None:
        os.kill(self._other, signal.SIGSTOP)

    async def release(self) -> None:
        os.kill(self._other, signal.SIGCONT)


async def record_held(port: int, other: int) -> dict[str, Any]:
    peer = TwoBrokers(port, other)
    await peer.prepare()
    try:
        return await record(peer, HELD_CONVERSATIONS)
    finally:
        await peer.release()


if __name__ == "__main__":
    answers = asyncio.run(record_held(int(sys.argv[1]), int(sys.argv[2])))
    Path(sys.argv[3]).write_text(written(answers))
