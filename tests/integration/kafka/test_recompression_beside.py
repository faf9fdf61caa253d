"""What Apache Kafka 4.3.1 stores of a batch whose topic has a codec of its own, and what this broker stores: the same
header, but for sizes and checksums, and the same records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from logformat.record_batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, Codec, read_header
from logformat.records import Record, encode_batch, records_bytes
from tests.fuzz.targets.record_batch import resealed
from tests.integration.kafka.test_kafka_tools_beside import CONFIGS, LOCAL, Beside, both_brokers, topics
from tests.support.brokers.broker_kit import batches_of, fetch_request, produce_request
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

KEPT = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
NOW_MS = 1_790_000_000_000
HEADERS = (("trace", b"1"), ("empty", None))
RECORDS = [
    Record(at, NOW_MS - 7 * (at % 5), b"k%d" % at if at % 3 else None, b"v%d" % at * 90, HEADERS[: at % 3])
    for at in range(40)
]
PRODUCER = {"producer_id": 7_000, "producer_epoch": 0, "base_sequence": 0}


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with both_brokers(tmp_path_factory.mktemp("recompressed")) as found:
        yield found


def ask(address: str, api: ApiKey, version: int, request: Any) -> Any:
    return asyncio.run(RemoteBroker(int(address.rpartition(":")[2])).ask(api, version, request))


def produced(address: str, topic: str, batch: bytes, version: int = 9) -> tuple[int, int]:
    response = ask(address, ApiKey.PRODUCE, version, produce_request(topic, bytearray(batch)))  # type: ignore[arg-type]
    part = response.responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def stored(address: str, topic: str, count: int) -> list[bytes]:
    """The batches of the topic, once consumers may read all of them."""
    found: list[bytes] = []

    def read() -> bool:
        response = ask(address, ApiKey.FETCH, 12, fetch_request((topic, 0, 0)))
        found[:] = [bytes(batch) for batch in batches_of(response.responses[0].partitions[0])]
        return len(found) >= count

    wait_until(read, f"{count} batches of {topic} at {address}")
    return found


def content(batch: bytes, *, stamped: bool) -> tuple[Any, ...]:
    """A stored batch but for what a codec's implementation and the time of day decide."""
    header, records = records_bytes(batch, 0, 1 << 25)
    told = header._replace(length=0, crc=0, max_timestamp=0 if stamped else header.max_timestamp)
    return told, records


@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("kept", KEPT)
def test_the_same_is_stored(beside: Beside, kept: str, stamps: str) -> None:
    """Of every codec, with and without a producer id, by either clock; offsets, timestamps, headers, sequences."""
    topic = f"{kept}-{stamps}"
    late = ("--config", "message.timestamp.after.max.ms=9223372036854775807", "--config", "retention.ms=-1")
    said = ("--config", f"compression.type={kept}", "--config", f"message.timestamp.type={stamps}")
    topics(beside)("--create", "--topic", topic, *LOCAL, *said, *late)
    batches = [encode_batch(RECORDS, codec=codec) for codec in Codec]
    batches += [encode_batch(RECORDS, codec=Codec.LZ4, **PRODUCER)] * 2  # the second is a resend
    batches += [encode_batch(RECORDS, codec=Codec.NONE, **(PRODUCER | {"base_sequence": 40}))]
    found = {}
    for address in (beside.kafka, beside.ours):
        answers = [produced(address, topic, batch) for batch in batches]
        found[address] = (
            answers,
            [content(batch, stamped=stamps != "CreateTime") for batch in stored(address, topic, 7)],
        )
    ours = found[beside.ours]
    assert ours == found[beside.kafka]
    assert len(ours[1]) == 7 and {header.attributes & 7 for header, _ in ours[1]} == {KEPT.index(kept)}


def test_the_same_is_refused(beside: Beside) -> None:
    """Too large as it came, or in its topic's codec; damaged; a base offset other than 0, in either codec."""
    made = topics(beside)
    small = ("--config", "max.message.bytes=5000")
    made("--create", "--topic", "plain", *LOCAL, *small, "--config", "compression.type=uncompressed")
    made("--create", "--topic", "packed", *LOCAL, *small, "--config", "compression.type=zstd")
    made("--create", "--topic", "as-sent", *LOCAL)
    alike = [Record(at, NOW_MS, b"k", bytes(1_000)) for at in range(10)]
    whole = encode_batch(alike[:2])
    moved = HEADER.pack(*read_header(whole)._replace(base_offset=5)) + whole[HEADER_SIZE:]
    cases = {
        "grows": ("plain", encode_batch(alike, codec=Codec.ZSTD)),
        "too large as it came": ("packed", encode_batch(alike)),
        "damaged": ("packed", whole[:-1] + b"\x7f"),
        "moved": ("as-sent", moved),
        "moved, another codec": ("packed", moved),
        "zstd by an old client": ("plain", encode_batch(alike[:2], codec=Codec.ZSTD)),
    }
    answers = {
        address: {
            name: produced(address, topic, batch, 6 if "old" in name else 9) for name, (topic, batch) in cases.items()
        }
        for address in (beside.kafka, beside.ours)
    }
    assert answers[beside.ours] == answers[beside.kafka]


def test_levels_and_codecs_are_taken_and_refused_alike(beside: Beside) -> None:
    """compression.type and the levels, of topics and of brokers, at run time."""
    topics(beside)("--create", "--topic", "levels", *LOCAL)
    topic = ("--entity-type", "topics", "--entity-name", "levels")
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    values = {"type": ("zstd", "brotli"), "gzip.level": (0, 9), "lz4.level": (17, 18), "zstd.level": (-7, 23)}
    for name, value in ((name, value) for name, some in values.items() for value in some):
        for entity in (topic, broker):
            beside.same(CONFIGS, "--alter", *entity, "--add-config", f"compression.{name}={value}")
    beside.same(CONFIGS, "--describe", *topic)


def test_what_no_reader_could_decompress_is_refused(beside: Beside) -> None:
    """Under a valid CRC: INVALID_RECORD, so that the client does not send the same again; Kafka knows no better than
    UNKNOWN_SERVER_ERROR."""
    topics(beside)("--create", "--topic", "cut", *LOCAL, "--config", "compression.type=lz4")
    whole = encode_batch(RECORDS, codec=Codec.GZIP)
    shorter = read_header(whole)._replace(length=len(whole) - 40 - LOG_OVERHEAD)
    cut = resealed(HEADER.pack(*shorter) + whole[HEADER_SIZE:-40])
    assert produced(beside.ours, "cut", cut) == (ErrorCode.INVALID_RECORD, -1)
    assert produced(beside.kafka, "cut", cut) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)


@pytest.mark.parametrize("version", [4, 9])
def test_old_fetches_of_a_zstd_topic_are_answered(beside: Beside, version: int) -> None:
    """KIP-110 refused Fetch 9 and older; Kafka 4.3.1 sends them what there is."""
    topic = f"fetched-{version}"
    topics(beside)("--create", "--topic", topic, *LOCAL, "--config", "compression.type=zstd")
    for address in (beside.kafka, beside.ours):
        assert produced(address, topic, encode_batch(RECORDS)) == (0, 0)
        response = ask(address, ApiKey.FETCH, version, fetch_request((topic, 0, 0)))
        assert response.responses[0].partitions[0].error_code == ErrorCode.NONE
