"""The same fetches, the same answers: our broker against what Apache Kafka 4.3.1 answered.

`tests/golden/fetches_kafka_4_3_1.json` holds Kafka's answers (recorded with `python -m
tests.support.conversations.record_fetches` against the peer). Each answer here went through the codec of its version.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import repository
from tests.support.conversations.fetch_conversation import CONVERSATIONS, Talk
from tests.support.conversations.our_broker import OurBroker
from tests.support.fast_loop import HOUR_S, run_fast

GOLDEN = json.loads((repository.GOLDEN / "fetches_kafka_4_3_1.json").read_text())

# Where we mean to answer otherwise: (conversation, label) → why.
DIFFERENT: dict[tuple[str, str], str] = {}


def test_every_conversation_is_recorded() -> None:
    """A conversation without Kafka's answers compares nothing."""
    assert set(GOLDEN) == set(CONVERSATIONS)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_we_answer_as_kafka_does(name: str) -> None:
    """Word for word: error codes, offsets, batches, their order, and whether the answer waited."""

    async def scenario() -> list[Any]:
        broker = await OurBroker.start()
        talk = Talk(broker, name)
        await CONVERSATIONS[name](talk)
        await broker.stop()
        return talk.log

    ours = json.loads(json.dumps(run_fast(scenario(), timeout_s=HOUR_S)))
    theirs = GOLDEN[name]
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    for (label, answer), (_, expected) in zip(ours, theirs, strict=True):
        if (name, label) not in DIFFERENT:
            assert answer == expected, f"{name}: {label}"
