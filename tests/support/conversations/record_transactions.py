"""Ask a fresh Apache Kafka the conversations about transactions, and keep its answers as the golden file.

kafka start 29392    # bench/peers/kafka
python -m tests.support.conversations.record_transactions 29392 tests/golden/transactions_kafka_4_3_1.json
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.conversations.record_fetches import written
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.conversations.transaction_asks import TransactionTalk
from tests.support.conversations.transaction_conversations import TRANSACTION_CONVERSATIONS, Conversations

GOLDEN_FILE = "transactions_kafka_4_3_1.json"
_TIMEOUT_S = 120.0


class RemotePeer(RemoteBroker):
    """A broker of this machine's clock, the only one."""

    held_node = 1

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def hold(self) -> None:
        raise NotImplementedError

    async def release(self) -> None:
        raise NotImplementedError


async def record(peer: RemotePeer, conversations: Conversations) -> dict[str, Any]:
    """In their order: the first one finds a broker whose coordinators' topics do not exist."""
    answers = {}
    for name, conversation in conversations.items():
        talk = TransactionTalk(peer, name)
        await talk.meet()
        began_s = time.monotonic()
        try:
            await asyncio.wait_for(conversation(talk), _TIMEOUT_S)
        except Exception:
            print(f"{name}: after {talk.log[-1:]}")
            raise
        print(f"{name}: {len(talk.log)} answers in {time.monotonic() - began_s:.1f} s")
        answers[name] = talk.log
    return answers


if __name__ == "__main__":
    answers = asyncio.run(record(RemotePeer(int(sys.argv[1])), TRANSACTION_CONVERSATIONS))
    Path(sys.argv[2]).write_text(written(answers))
