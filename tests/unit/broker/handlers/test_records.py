"""Batches whose headers cannot be believed: a worker looks into their records, and they are judged as Kafka does."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from crc32c import crc32c

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import ProduceRequestPartition, ProduceResponsePartition
from logformat.record_batch import Codec, read_header
from logformat.records import Record, encode_batch
from seams.loop.workers import Lane
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import Life, Place, batches_of, produce_request
from tests.support.wire.proportion import CALLS_MAX, cost_of

YEAR_MS = 365 * 24 * 3_600_000
HOUR_MS = 3_600_000
LIMITS = {"message_timestamp_after_max_ms": str(HOUR_MS), "message_timestamp_before_max_ms": str(24 * HOUR_MS)}
CODECS = list(Codec)


def batch_with(*timestamps: int, maximum: int | None = None, kafkajs: bool = False, codec: Codec = Codec.NONE) -> bytes:
    """`maximum`: what the header claims; `kafkajs`: without producer id, sequence 0, the last record's timestamp."""
    records = [Record(at, timestamp, None, b"v") for at, timestamp in enumerate(timestamps)]
    batch = bytearray(encode_batch(records, codec=codec, base_sequence=0 if kafkajs else -1))
    claimed = timestamps[-1] if maximum is None and kafkajs else maximum
    if claimed is not None:
        struct.pack_into(">q", batch, 35, claimed)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


async def sent(life: Life, batch: bytes, topic: str = "log") -> ProduceResponsePartition:
    response = await life.call(ApiKey.PRODUCE, produce_request(topic, batch))
    part: ProduceResponsePartition = response.responses[0].partition_responses[0]
    return part


async def started(*settings: str, **configs: str) -> Life:
    life = await Place(*settings).start()
    await life.create("log", **LIMITS, **configs)
    await asyncio.sleep(1)
    return life


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("many", [2, 5000])
@pytest.mark.parametrize("header", [{"maximum": -1}, {"kafkajs": True}, {"maximum": EPOCH_MS - 3 * HOUR_MS}])
async def test_a_header_that_cannot_be_right_carries_no_record_past_the_limits(
    header: dict[str, Any], many: int, codec: Codec
) -> None:
    """−1, or less than the first record's, or KafkaJS's: records years ahead, or older than allowed, were taken. Kafka
    4.3.1 answers INVALID_TIMESTAMP to each; what is within the limits is taken, and its greatest timestamp repaired."""
    life = await started()
    near = [EPOCH_MS] * many
    for wrong in (EPOCH_MS + 10 * YEAR_MS, EPOCH_MS - YEAR_MS):
        answer = await sent(life, batch_with(*near, wrong, EPOCH_MS, **header, codec=codec))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert life.partition("log").log.log_end_offset == 0
    fine = await sent(life, batch_with(*near, EPOCH_MS + 500, EPOCH_MS, **header, codec=codec))
    assert (fine.error_code, fine.base_offset) == (0, 0)
    (stored,) = batches_of(await life.fetch("log", 0))
    assert read_header(stored).max_timestamp == EPOCH_MS + 500
    await life.stop()


async def test_a_topic_that_stamps_its_own_time_judges_no_producers() -> None:
    """message.timestamp.type=LogAppendTime: as Kafka, any timestamp is taken and replaced."""
    life = await started(message_timestamp_type="LogAppendTime")
    for batch in (
        batch_with(EPOCH_MS + 10 * YEAR_MS, EPOCH_MS - 10 * YEAR_MS),
        batch_with(EPOCH_MS + 10 * YEAR_MS, 5, maximum=-1),
    ):
        assert (await sent(life, batch)).error_code == 0
    await life.stop()


@pytest.mark.not_fast
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("settings", [(), ("thermocline.validate.records=true",)])
async def test_records_are_not_looked_into_on_the_loop(settings: tuple[str, ...], codec: Codec) -> None:
    """60 000 records like KafkaJS writes them, or of any kind when all are validated: a worker reads them. One million
    stalled every client for 2.9 s."""
    life = await started(*settings)
    await sent(life, batch_with(EPOCH_MS))
    batch = batch_with(*[EPOCH_MS] * 60_000, kafkajs=True, codec=codec)
    if settings:
        batch = encode_batch([Record(at, EPOCH_MS, None, b"v") for at in range(60_000)], codec=codec)
    cost = await cost_of(life, life.frame(ApiKey.PRODUCE, 9, produce_request("log", batch)), memory=False)
    assert cost.calls < CALLS_MAX / 60
    assert life.partition("log").log.log_end_offset == 60_001
    await life.stop()


async def test_of_many_batches_without_maximum_the_loop_reads_five_thousand_times() -> None:
    """Regression: a request of 900 batches of 1 000 small records held the loop for 0.2 s."""
    life = await started()
    lanes, run = [], life.workers.run

    def noted(*arguments: Any, lane: Lane = Lane.FILES) -> Any:
        lanes.append(lane)
        return run(*arguments, lane=lane)

    life.workers.run = noted  # type: ignore[method-assign]
    request = produce_request("log", batch_with(*[EPOCH_MS] * 900, maximum=-1))
    rows = request.topic_data[0].partition_data
    rows += [ProduceRequestPartition(index=0, records=memoryview(bytearray(rows[0].records or b""))) for _ in range(7)]
    response = await life.call(ApiKey.PRODUCE, request)
    assert {part.error_code for part in response.responses[0].partition_responses} == {0}
    assert life.partition("log").log.log_end_offset == 7200
    assert lanes.count(Lane.RECORDS) == 3
    await life.stop()


async def test_a_bomb_is_refused_for_good_without_the_loop() -> None:
    """1 MiB of gzip that is 200 MiB of records: INVALID_RECORD, which no client sends again."""
    life = await started()
    bomb = bytearray(encode_batch([Record(0, EPOCH_MS, None, bytes(200 << 20))], codec=Codec.GZIP, base_sequence=0))
    struct.pack_into(">i", bomb, 23, 1)  # a second record, and the mark of KafkaJS
    struct.pack_into(">i", bomb, 57, 2)
    struct.pack_into(">I", bomb, 17, crc32c(bytes(bomb[21:])))
    assert len(bomb) < 1 << 20
    assert (await sent(life, bytes(bomb))).error_code == ErrorCode.INVALID_RECORD
    await life.stop()


async def test_what_a_worker_reads_keeps_its_place() -> None:
    """A batch that waits for a worker, an ordinary one behind it on the same connection: their order is the log's."""
    life = await started()
    slow = batch_with(*[EPOCH_MS] * 3000, kafkajs=True, codec=Codec.GZIP)
    first = await sent(life, slow)
    second = await sent(life, batch_with(EPOCH_MS))
    assert (first.base_offset, second.base_offset) == (0, 3000)
    await life.stop()
