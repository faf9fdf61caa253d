"""A Spark session for tests, and rows of the source as the `Record`s that stock clients are compared by.

Owns one local[2] session a test process, started when first asked for; it knows the credentials of the test stores.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from tests.support.clients.stock_clients import (
    WRITES,
    Record,
    Written,
    create_topic,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.store.s3_servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = 1_700_000_000_000
CODECS_OF = (
    ("confluent-kafka", "none"),
    ("confluent-kafka", "gzip"),
    ("confluent-kafka", "snappy"),
    ("confluent-kafka", "lz4"),
    ("confluent-kafka", "zstd"),
    ("kafka-python", "gzip"),
    ("aiokafka", "snappy"),
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on this machine, as `thermocline.pipeline.spark.session` makes it."""
    from thermocline.pipeline.spark.session import session

    before = dict(os.environ)
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    settings["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))  # CREATE TABLE makes folders there
    os.environ.update(S3Server("").environment())  # the JVM hands its environment to its Python workers
    try:
        found = session("tests", "local[2]", settings)
    finally:
        os.environ.clear()
        os.environ.update(before)
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()


def frame(spark: SparkSession, options: Mapping[str, object]) -> DataFrame:
    """A batch of the source with headers."""
    reader = spark.read.format("thermocline").option("includeHeaders", "true")
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def records_of(found: DataFrame) -> list[Record]:
    """Rows as clients show them, by partition and offset."""
    from pyspark.sql.functions import unix_millis

    rows = found.select("partition", "offset", "key", "value", unix_millis("timestamp"), "headers").collect()
    records = (
        Record(
            partition,
            offset,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            at,
            tuple((h["key"], None if h["value"] is None else bytes(h["value"])) for h in headers or ()),
        )
        for partition, offset, key, value, at, headers in rows
    )
    return sorted(records, key=lambda record: (record.partition, record.offset))


def mixed(partition: int, base: int, count: int, *, null_headers: bool = True) -> list[Written]:
    """Incompressible values, so that segments fill whatever the codec; nulls, empties, headers; times in no order."""
    rng = random.Random(f"{partition} {base}")
    found = []
    for n in range(base, base + count):
        key: bytes | None = f"{partition}-{n}".encode()
        value: bytes | None = rng.randbytes(300)
        if n % 7 == 3:
            value = None
        elif n % 7 == 5:
            key = None
        elif n % 7 == 6:
            key, value = b"", b""
        headers = (
            ("n", b"%d" % n),
            ("größe", "größer=ja".encode()),
            ("n", b""),
            ("last", None if null_headers else b"-"),
        )[: n % 5]
        found.append(Written(key, value, T0 + 1000 * n - 5000 * (n % 3), headers))
    return found


class MixedTopic:
    """A topic with a partition for each client and codec of `CODECS_OF`, and what was written to it so far."""

    def __init__(
        self, broker: BrokerProcess, topic: str, lanes: Sequence[tuple[str, str]] = CODECS_OF, **configs: object
    ) -> None:
        self.topic = topic
        self.lanes = lanes
        self._written: dict[int, list[Written]] = {at: [] for at in range(len(lanes))}
        create_topic(broker.kafka, topic, len(lanes), **configs)

    def write(self, broker: BrokerProcess, count: int) -> None:
        """`count` more records to every partition."""
        for partition, (writer, codec) in enumerate(self.lanes):
            wrote = self._written[partition]
            more = mixed(partition, len(wrote), count, null_headers=writer != "kafka-python")
            WRITES[writer][0](broker.kafka, self.topic, partition, more, codec, False)
            wrote += more

    @property
    def partitions(self) -> Sequence[int]:
        return range(len(self.lanes))

    @property
    def records(self) -> list[Record]:
        """All of it, by partition and offset."""
        return [
            Record(partition, at, w.key, w.value, w.timestamp_ms or 0, w.headers)
            for partition, wrote in self._written.items()
            for at, w in enumerate(wrote)
        ]
