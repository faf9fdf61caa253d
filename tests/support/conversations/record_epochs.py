"""Ask a fresh Apache Kafka the conversation about leader epochs, and keep its answers as the golden file.

kafka start 29392    # bench/peers/kafka; it is started again between two terms
python -m tests.support.conversations.record_epochs 29392 tests/golden/epochs_kafka_4_3_1.json
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.conversations.epoch_conversation import EpochTalk, leader_epochs
from tests.support.conversations.record_fetches import written
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.kafka.kafka_tools import SCRIPT

_RESTART_TIMEOUT_S = 120.0


class RemotePeer(RemoteBroker):
    """The peer that `bench/peers/kafka start` started."""

    async def restart(self) -> None:
        await asyncio.to_thread(_restart)
        await asyncio.sleep(3)  # its only broker is unfenced, and leads again


def _restart() -> None:
    run = Path(os.environ["KAFKA_PEER_RUN"])
    process = int((run / "pid-1").read_text())
    subprocess.run([str(SCRIPT), "stop"], check=True, timeout=_RESTART_TIMEOUT_S)
    while Path(f"/proc/{process}/stat").exists() and " Z " not in Path(f"/proc/{process}/stat").read_text():
        time.sleep(0.05)
    subprocess.run([str(SCRIPT), "restart"], check=True, stdout=subprocess.DEVNULL, timeout=_RESTART_TIMEOUT_S)


async def record(port: int) -> dict[str, object]:
    talk = EpochTalk(RemotePeer(port))
    await leader_epochs(talk)
    print("epochs of the terms:", talk.terms)
    return {"leader epochs": talk.log}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(written(asyncio.run(record(int(sys.argv[1])))))
