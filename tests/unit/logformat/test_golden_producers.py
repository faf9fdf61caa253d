"""What real producers write, read by everything that reads batches: each record as somebody else read it.

Batches of Java's client, librdkafka, franz-go and forms that others may write, for every codec and batch size
(`tests/support/kafka/record_batches.py`). Expected values come from librdkafka's consumer, or from what was put in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import thermocline
from broker.wire.apis import ApiKey
from logformat.compression import compress, decompress
from logformat.record_batch import HEADER_SIZE, Codec, check_stored, read_header, walk
from logformat.records import RECORDS_BYTES_MAX, iter_records
from tests.support.brokers.broker_kit import Place, fetch_request, produce_request
from tests.support.kafka.golden_batches import Golden, Row, batches_of, digest_of, goldens
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.pipeline.numpy_decoder import NumpyWay
from thermocline.pipeline.decode.batches import BatchDecoder, Way
from thermocline.pipeline.decode.codecs import Decompressor
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.rows import COLUMNS
from thermocline.pipeline.split import RowFilter

PRODUCERS = {"kafka-clients 4.3.1", "librdkafka 2.16", "franz-go 1.17.1", "reference library"}
every = pytest.mark.parametrize("golden", goldens().values(), ids=list(goldens()))


def arrow_rows(batches: Iterator[pa.RecordBatch] | pa.Table) -> Iterator[Row]:
    """As `Row`s, from batches with every column."""
    for batch in batches.to_batches() if isinstance(batches, pa.Table) else batches:
        stamps = batch["timestamp"].cast(pa.int64()).to_pylist()
        columns = [batch[name].to_pylist() for name in ("offset", "key", "value", "headers")]
        for stamp, offset, key, value, headers in zip(stamps, *columns, strict=True):
            yield offset, stamp // 1000, key, value, tuple((one["key"], one["value"]) for one in headers or ())


def logformat_rows(log: bytes) -> Iterator[Row]:
    for at, _ in walk(log):
        check_stored(log, at, len(log))
        for record in iter_records(log, at):
            yield record.offset, record.timestamp, record.key, record.value, record.headers


def test_the_golden_data_is_what_it_should_be() -> None:
    """Every producer and codec at every size; frames with and without their size, in a row, with checksums."""
    found = {(golden.producer, golden.codec) for golden in goldens().values()}
    assert found >= {
        (p, c) for p in PRODUCERS - {"reference library"} for c in ("none", "gzip", "snappy", "lz4", "zstd")
    }
    assert {golden.producer for golden in goldens().values()} == PRODUCERS
    sizes = [header.size for golden in goldens().values() for _, header in walk(golden.log)]
    assert min(sizes) < 1000 and max(sizes) > 900_000
    zstd = [golden for golden in goldens().values() if golden.codec == "zstd"]  # a batch that would grow goes as it is
    inside = [
        len(decompress(header.codec, golden.log[at + HEADER_SIZE : at + header.size], RECORDS_BYTES_MAX))
        for golden in zstd
        for at, header in walk(golden.log)
    ]
    assert sum(size > 128 << 10 for size in inside) > 5, "frames of several blocks, as broke the pipeline once"


@every
def test_logformat_reads_it(golden: Golden) -> None:
    assert digest_of(logformat_rows(golden.log)) == golden.digest


@every
@pytest.mark.parametrize("way", [KernelWay, NumpyWay])
def test_the_pipeline_decodes_it(golden: Golden, way: type[Way]) -> None:
    """From an Arrow buffer, as a store gives it."""
    decoder = BatchDecoder("t", 0, COLUMNS, RowFilter(0, 1 << 62), (), way=way)
    assert digest_of(arrow_rows(decoder.decode(pa.py_buffer(golden.log)))) == golden.digest


@every
def test_the_fast_way_and_the_careful_one_agree(golden: Golden) -> None:
    """Batch by batch, through one decompressor."""
    fast = Decompressor()
    for batch in batches_of(golden.log):
        header, records = read_header(batch), memoryview(pa.py_buffer(batch))[HEADER_SIZE:]
        if header.codec is not Codec.NONE:
            found = bytes(memoryview(fast.decompress(header.codec, records, RECORDS_BYTES_MAX)))
            assert found == decompress(header.codec, batch[HEADER_SIZE:], RECORDS_BYTES_MAX)
            assert decompress(header.codec, compress(header.codec, found), RECORDS_BYTES_MAX) == found


def test_it_is_read_from_a_bucket(tmp_path: Path) -> None:
    """All of it through `thermocline.read`, one topic each, every batch in its own order."""
    bucket = HistoryBucket(tmp_path)
    for golden in goldens().values():
        bucket.topic(golden.name, 1)
        bucket.append(golden.name, 0, batches_of(golden.log), interval=65536)
    wrong = []
    for golden in goldens().values():
        table = thermocline.read(bucket.url, golden.name, columns=COLUMNS, threads=1).to_table()
        if digest_of(arrow_rows(table)) != golden.digest:
            wrong.append(golden.name)
    assert not wrong


async def test_a_broker_takes_it_and_gives_it_back() -> None:
    """Each batch as its producer sent it, every record validated; what is fetched holds the same records."""
    life = await Place("thermocline.validate.records=true").start()
    for golden in goldens().values():
        await life.create(golden.name, max_message_bytes="2097152", message_timestamp_after_max_ms=str(1 << 62))
        for batch in batches_of(golden.log):
            sent = bytes(8) + batch[8:]  # a producer counts from 0
            answer = await life.call(ApiKey.PRODUCE, produce_request(golden.name, sent), 9)
            part = answer.responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, read_header(batch).base_offset), golden.name
        log, end = b"", [header.next_offset for _, header in walk(golden.log)][-1]
        offset = 0
        while offset < end:
            request = fetch_request((golden.name, 0, offset), max_wait_ms=500)
            part = (await life.call(ApiKey.FETCH, request)).responses[0].partitions[0]
            log += bytes(part.records)
            offset = [header.next_offset for _, header in walk(log)][-1]
        assert digest_of(logformat_rows(log)) == golden.digest, golden.name
    await life.stop()
