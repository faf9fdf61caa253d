"""Ask a fresh Apache Kafka the conversations about fetches, and keep its answers as the golden file.

kafka start 29392    # bench/peers/kafka
python -m tests.support.conversations.record_fetches 29392 tests/golden/fetches_kafka_4_3_1.json
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.support.conversations.fetch_conversation import CONVERSATIONS, Talk
from tests.support.conversations.record_groups import RemoteBroker


async def record(port: int) -> dict[str, Any]:
    answers = {}
    for name, conversation in CONVERSATIONS.items():
        talk = Talk(RemoteBroker(port), name)
        await asyncio.wait_for(conversation(talk), 60)
        answers[name] = talk.log
    return answers


def written(answers: dict[str, Any]) -> str:
    """One answer a line, so that a difference is one."""
    blocks = []
    for name, log in answers.items():
        lines = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in log)
        blocks.append(f" {json.dumps(name)}: [\n{lines}\n ]")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(written(asyncio.run(record(int(sys.argv[1])))))
