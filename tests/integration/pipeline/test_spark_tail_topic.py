"""The hot tail of a topic that was deleted and created again between the plan and the task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.support.clients.stock_clients import create_topic, delete_topic
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site
from tests.support.store.buckets import DirectoryBucket
from thermocline.pipeline.spark.batch import BatchReader
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.projection import full_schema
from thermocline.pipeline.spark.tasks import read_task
from thermocline.pipeline.split import DataLoss

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, BrokerProcess]]:
    path = tmp_path_factory.mktemp("tail")
    site = Site(path, DirectoryBucket(path / "bucket"))
    with site.broker() as broker:
        yield site, broker


def write(broker: BrokerProcess, topic: str, count: int, what: str) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(count):
        producer.produce(topic, f"{what} {number}".encode(), partition=0)
    assert producer.flush(30) == 0


def planned(site: Site, broker: BrokerProcess, topic: str, **more: str) -> BatchReader:
    given = {"bucket": site.bucket.url, "subscribe": topic, "kafka.bootstrap.servers": broker.kafka, **more}
    return BatchReader(parse_options(given), full_schema(False))


def values(reader: BatchReader, tasks: list) -> list[bytes]:
    return [value for task in tasks for batch in read_task(reader._job, task) for value in batch["value"].to_pylist()]


def test_rows_of_a_topic_created_again_are_not_given_as_the_old_ones(running: tuple[Site, BrokerProcess]) -> None:
    """The query planned offsets [0, 20) of the old topic; the new one has them too. With failOnDataLoss=false the part
    is left out."""
    site, broker = running
    create_topic(broker.kafka, "again", 1)
    write(broker, "again", 20, "old")
    strict = planned(site, broker, "again")
    tasks, _ = strict._planned()
    assert values(strict, tasks) == [f"old {number}".encode() for number in range(20)]
    delete_topic(broker.kafka, "again")
    create_topic(broker.kafka, "again", 1)
    write(broker, "again", 30, "new")
    with pytest.raises(DataLoss, match="again-0 offsets 0–19: the topic was deleted and created again"):
        values(strict, tasks)
    lenient = planned(site, broker, "again", failOnDataLoss="false")
    assert values(lenient, tasks) == []
