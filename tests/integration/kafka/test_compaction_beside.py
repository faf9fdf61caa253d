"""Compacted topics to a client of this broker and of Kafka 4.3.1: the same configs, refusals and answers to Produce.

What differs by intent stands in docs/compatibility.md and is not asked here: remote.storage.enable together with
compact, the number of records that a refusal names, and values of log.cleaner.* that stop Kafka's cleaner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker.wire.apis import ApiKey
from logformat.record_batch import Codec
from logformat.records import Record, encode_batch
from tests.integration.kafka.test_kafka_tools_beside import CONFIGS, LOCAL, Beside, both_brokers, topics
from tests.support.brokers.broker_kit import produce_request
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

NOW_MS = int(time.time() * 1000)
LATE_MS = NOW_MS + 10**8
TOPIC = "compacted"


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with both_brokers(tmp_path_factory.mktemp("beside")) as found:
        yield found


def test_policies_and_lags_of_topics_are_taken_and_refused_alike(beside: Beside) -> None:
    """TopicCommand at creation, ConfigCommand on the living topic, and what both describe then."""
    same = topics(beside)
    kept = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0005", "max.compaction.lag.ms=70")
    same("--create", "--topic", "kept", *LOCAL, *(word for config in kept for word in ("--config", config)))
    for wrong in (
        "cleanup.policy=Compact",
        "min.compaction.lag.ms=-1",
        "max.compaction.lag.ms=0",
        "min.cleanable.dirty.ratio=1.5",
        "min.cleanable.dirty.ratio=half",
        "delete.retention.ms=-1",
    ):
        assert same("--create", "--topic", "x", "--config", wrong).code == 1, wrong
    of = ("--entity-type", "topics", "--entity-name", "kept")
    for change, code in (
        ("min.compaction.lag.ms=71", 1),
        ("min.compaction.lag.ms=60", 0),
        ("cleanup.policy=[compact,delete]", 0),
        ("cleanup.policy=[compact,compacted]", 1),
        ("cleanup.policy=[delete]", 0),
        ("cleanup.policy=[compact]", 0),
        ("delete.retention.ms=0", 0),
    ):
        assert beside.same(CONFIGS, "--alter", *of, "--add-config", change).code == code, change
        beside.same(CONFIGS, "--describe", *of)
    beside.same(CONFIGS, "--describe", *of, "--all")
    same("--describe", "--topic", "kept")
    same("--delete", "--topic", "kept")


def test_the_cleaners_configs_of_brokers_are_taken_and_refused_alike(beside: Beside) -> None:
    """Threads by halves and doubles, a buffer for each, defaults of topics; the synonyms that a topic is shown."""
    topics(beside)("--create", "--topic", "d", *LOCAL)
    everywhere, one = ("--entity-default",), ("--entity-name", "1")
    all_of_d = ("--describe", "--entity-type", "topics", "--entity-name", "d", "--all")

    def alter(where: tuple[str, ...], change: str, verb: str = "--add-config") -> int:
        return beside.same(CONFIGS, "--alter", "--entity-type", "brokers", *where, verb, change).code

    def kafka_follows(text: str, is_there: bool = True) -> None:
        wait_until(lambda: (text in str(beside.run(beside.kafka, CONFIGS, *all_of_d))) is is_there, "Kafka follows")

    for wrong in (
        "log.cleaner.dedupe.buffer.size=1000",
        "log.cleaner.io.buffer.size=-1",
        "log.cleaner.backoff.ms=-1",
        "log.cleaner.threads=5",
        "log.cleaner.enable=false",
        "log.cleaner.io.buffer.load.factor=x",
    ):
        assert alter(one, wrong) == 1, wrong
    for wrong in (
        "log.cleaner.min.cleanable.ratio=2",
        "log.cleaner.max.compaction.lag.ms=0",
        "log.cleaner.delete.retention.ms=-1",
        "log.cleanup.policy=[compacted]",
    ):
        assert alter(everywhere, wrong) == 1, wrong
    defaults = "log.cleaner.min.cleanable.ratio=0.25,log.cleaner.delete.retention.ms=77,log.cleanup.policy=[compact]"
    assert alter(everywhere, defaults) == 0
    assert alter(one, "log.cleaner.io.max.bytes.per.second=1e6,log.cleaner.backoff.ms=3,log.cleaner.threads=2") == 0
    kafka_follows("log.cleaner.delete.retention.ms=77")
    beside.same(CONFIGS, *all_of_d)
    for where in (everywhere, one):
        beside.same(CONFIGS, "--describe", "--entity-type", "brokers", *where)
    names = ",".join(pair.partition("=")[0] for pair in defaults.split(","))
    assert alter(one, "log.cleaner.io.max.bytes.per.second,log.cleaner.backoff.ms", "--delete-config") == 0
    assert alter(everywhere, names, "--delete-config") == 0
    kafka_follows("log.cleaner.delete.retention.ms=77", is_there=False)
    beside.same(CONFIGS, *all_of_d)
    topics(beside)("--delete", "--topic", "d")


def batch(*keys: bytes | None, at_ms: int = NOW_MS, **how: Any) -> bytes:
    return encode_batch([Record(at, at_ms, key, b"v") for at, key in enumerate(keys)], **how)


PRODUCED = {
    **{f"one of five, {codec.name}": batch(b"a", b"b", None, b"c", b"", codec=codec) for codec in Codec},
    "two of five": batch(None, b"a", None, b"b", b"c"),
    "all of five": batch(*[None] * 5),
    "one": batch(None),
    "a thousand": batch(*[None] * 1000),
    "idempotent": batch(None, producer_id=5, producer_epoch=0, base_sequence=0),
    "with keys": batch(b"a", b"", b"b"),
    "compressed, with keys": batch(b"a", b"", b"b", codec=Codec.LZ4),
    "a tombstone": encode_batch([Record(0, NOW_MS, b"k", None)]),
    "a control batch": encode_batch([Record(0, NOW_MS, b"\0\0\0\0", b"k")], control=True),
}
LATE = {
    "late": batch(b"k", at_ms=LATE_MS),
    "late, without key": batch(None, b"k", at_ms=LATE_MS),
    "late and without key": encode_batch([Record(0, NOW_MS, None, b""), Record(1, LATE_MS, b"k", b"")]),
}


def answers(address: str, batches: dict[str, bytes], version: int) -> dict[str, tuple[Any, ...]]:
    """To each batch: code, offsets, message and the records named."""
    remote = RemoteBroker(int(address.rpartition(":")[2]))

    async def ask(one: bytes) -> tuple[Any, ...]:
        response: Any = await remote.ask(ApiKey.PRODUCE, version, produce_request(TOPIC, bytearray(one)))  # type: ignore[arg-type]
        part = response.responses[0].partition_responses[0]
        named = [(error.batch_index, error.batch_index_error_message) for error in part.record_errors]
        return part.error_code, part.base_offset, part.log_append_time_ms, part.error_message, named

    async def all_of_them() -> dict[str, tuple[Any, ...]]:
        return {name: await ask(one) for name, one in batches.items()}

    return asyncio.run(all_of_them())


def test_produce_to_a_compacted_topic_is_answered_alike(beside: Beside) -> None:
    """Codes, offsets, messages and record errors, of versions with and without them; timestamps by their code."""
    same = topics(beside)
    same("--create", "--topic", TOPIC, *LOCAL, "--config", "cleanup.policy=compact")
    for version in (9, 8, 7):
        kafka, ours = (answers(address, PRODUCED, version) for address in (beside.kafka, beside.ours))
        kafka["a control batch"], ours["a control batch"] = kafka["a control batch"][:1], ours["a control batch"][:1]
        assert ours == kafka
    kafka, ours = (answers(address, LATE, 9) for address in (beside.kafka, beside.ours))
    assert {name: said[0] for name, said in ours.items()} == {name: said[0] for name, said in kafka.items()}
    same("--delete", "--topic", TOPIC)
