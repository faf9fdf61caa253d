"""The same fetches, the same answers: our broker against what Apache Kafka 4.3.1 answered.

`tests/golden/fetches_kafka_4_3_1.json` holds Kafka's answers (recorded with `python -m tests.support.record_fetches`
against the peer). Each answer here went through the codec of its version.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from tests.support import repository
from tests.support.broker_kit import Life, Place, play
from tests.support.fetch_conversation import CONVERSATIONS, Talk

GOLDEN = json.loads((repository.GOLDEN / "fetches_kafka_4_3_1.json").read_text())

# Where we mean to answer otherwise: (conversation, label) → why.
DIFFERENT: dict[tuple[str, str], str] = {}


class OurBroker:
    """A whole broker in virtual time; a connection a request."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._peers = 1

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message:
        self._peers += 1
        answer: Message = await self._life.call(
            api, request, version, Peer(self._peers, "127.0.0.1:50000", "PLAINTEXT")
        )
        return answer

    async def settle(self) -> None:
        await asyncio.sleep(0.3)


def test_every_conversation_is_recorded() -> None:
    """A conversation without Kafka's answers compares nothing."""
    assert set(GOLDEN) == set(CONVERSATIONS)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_we_answer_as_kafka_does(name: str) -> None:
    """Word for word: error codes, offsets, batches, their order, and whether the answer waited."""

    async def scenario() -> list[Any]:
        life = await Place().start()
        talk = Talk(OurBroker(life), name)
        await CONVERSATIONS[name](talk)
        await life.stop()
        return talk.log

    ours = json.loads(json.dumps(play(scenario())))
    theirs = GOLDEN[name]
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    for (label, answer), (_, expected) in zip(ours, theirs, strict=True):
        if (name, label) not in DIFFERENT:
            assert answer == expected, f"{name}: {label}"
