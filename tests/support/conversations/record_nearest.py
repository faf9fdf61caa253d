"""Ask three fresh Apache Kafkas the conversation about nearest replicas, and keep their answers as the golden file.

S=replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
KAFKA_PEER_SETTINGS=$'broker.rack=r%N\n'$S kafka start 29392 3    # bench/peers/kafka; prints three process ids
python -m tests.support.conversations.record_nearest 29392 PID1 PID2 PID3 tests/golden/nearest_kafka_4_3_1.json
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from broker.wire.apis import ApiKey
from broker.wire.message import Message
from tests.support.conversations.nearest_conversation import Talk, conversation
from tests.support.conversations.record_fetches import written
from tests.support.conversations.record_groups import RemoteBroker


class Processes:
    """Nodes 1, 2, 3 by their ports and process ids."""

    def __init__(self, port: int, pids: list[int]) -> None:
        self._brokers = {node_id: RemoteBroker(port + 2 * (node_id - 1)) for node_id in (1, 2, 3)}
        self._pids = dict(enumerate(pids, 1))

    async def ask(self, node_id: int, api: ApiKey, version: int, request: Message) -> Message:
        return await self._brokers[node_id].ask(api, version, request)

    async def pause(self, node_id: int) -> None:
        os.kill(self._pids[node_id], signal.SIGSTOP)
        await asyncio.sleep(1.0)  # what it asked before waits at the leader for as long

    async def go_on(self, node_id: int) -> None:
        os.kill(self._pids[node_id], signal.SIGCONT)


async def record(port: int, pids: list[int]) -> str:
    talk = Talk(Processes(port, pids))
    await asyncio.wait_for(conversation(talk), 120)
    return written({"nearest": talk.log})


if __name__ == "__main__":
    port, *pids = (int(word) for word in sys.argv[1:5])
    Path(sys.argv[5]).write_text(asyncio.run(record(port, pids)))
