"""A bucket that compaction rewrote, with aborted transactions in it, by real processes: whoever reads it sees the same
table, from a broker, beside it, and without any; what is deleted goes although replaced objects wait for their grace;
readers that began before go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import thermocline
from tests.integration.restore.test_cluster_rebuild import rebuild
from tests.integration.restore.test_cluster_restore import restore
from tests.support.clients.stock_clients import (
    alter_topic,
    create_topic,
    delete_topic,
    end_offsets,
    read_aiokafka,
    read_confluent,
    read_kafka_python,
)
from tests.support.pipeline.archive_kit import lake, rows
from tests.support.pipeline.spark_kit import spark
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import QUICK, Site, json_lines, seal
from tests.support.store.bucket_books import by_names, orphans
from tests.support.store.buckets import DirectoryBucket, manifest_of
from tests.support.waiting import wait_until
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.jobs import archive as archive_room
from thermocline.pipeline.jobs.archive import archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)
__all__ = ["spark"]

TOPIC = "compacted-table"
"""No other test has it. After a kill, the producer of a crash test sends to the port of its broker for up to 20 s. A
broker of this test may have that port by then."""
KEYS = 9
SETTINGS = {
    **QUICK,
    "log.cleaner.backoff.ms": 100,
    "thermocline.cold.compaction.grace.ms": 300,
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
}
Table = dict[bytes, bytes]


def write(broker: BrokerProcess, rounds: range) -> Table:
    """Each round is a transaction over all keys; every third is aborted. The newest committed value of each key."""
    name = f"writer-{rounds.start}"
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(30)
    table: Table = {}
    for number in rounds:
        is_kept = number % 3 != 2
        producer.begin_transaction()
        for key in range(KEYS):
            value = b"%s %d/%d " % (b"kept" if is_kept else b"aborted", number, key) + b"x" * 200
            producer.produce(TOPIC, value, b"k%d" % key, partition=0)
            if is_kept:
                table[b"k%d" % key] = value
        producer.flush(30)
        if is_kept:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    return table


def begin(broker: BrokerProcess, **configs: object) -> Table:
    """An archive of some 20 objects, whose older part has left the disk."""
    small = {"internal_segment_bytes": 4000, "local_retention_bytes": 1, "remote_storage_enable": "true"}
    create_topic(broker.kafka, TOPIC, **small, **configs)
    table = write(broker, range(24))
    seal(broker)
    return table


def compact(broker: BrokerProcess, site: Site, *, until_deleted: bool = True, policy: str = "compact") -> None:
    """Switch the policy, and wait until the bucket is clean to its end, and the replaced objects are gone. Several
    objects become one."""
    configs = {"cleanup_policy": policy, "min_cleanable_dirty_ratio": "0.01", "internal_segment_bytes": "16000"}
    alter_topic(broker.kafka, TOPIC, **configs)

    def is_clean() -> bool:
        manifest = manifest_of(site.bucket, TOPIC)[1]
        is_over = not until_deleted or not manifest.get("replaced")
        return manifest.get("clean_end_offset", 0) == manifest["remote_end_offset"] and is_over

    wait_until(is_clean, "the bucket is compacted", 60)


def table_of(broker: BrokerProcess, read: Callable = read_confluent) -> Table:
    found = read(broker.kafka, TOPIC, end_offsets(broker.kafka, TOPIC, 1))
    return {record.key: record.value for record in sorted(found, key=lambda record: record.offset)}


def read_table(site: Site) -> Table:
    """`thermocline.read`."""
    batches = thermocline.read(site.bucket.url, TOPIC, columns=("offset", "key", "value")).to_table()
    found = sorted(batches.to_pylist(), key=lambda row: row["offset"])
    return {row["key"]: row["value"] for row in found}


def check_bucket(site: Site) -> None:
    verified = site.cli("bucket", "verify", site.bucket.url, "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    scrubbed = site.cli("scrub", site.bucket.url, "--dry-run")  # regression: it refused manifests of format 2
    assert scrubbed.returncode == 0, scrubbed.stdout + scrubbed.stderr
    listed = site.cli("bucket", "gc", site.bucket.url, "--json")
    assert by_names(json_lines(listed.stdout)) == orphans(site.bucket)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Table]:
    """A compacted bucket, and what its table holds; no broker is left."""
    place = tmp_path_factory.mktemp("compacted")
    site = Site(place, DirectoryBucket(place / "bucket"), dict(SETTINGS))
    with site.broker() as broker:
        table = begin(broker)
        many = len(manifest_of(site.bucket, TOPIC)[1]["tail"])
        compact(broker, site)
        assert len(manifest_of(site.bucket, TOPIC)[1]["tail"]) < many / 2
        assert table_of(broker) == table
        assert broker.stop() == 0
    return site, table


@pytest.fixture
def copied(left: tuple[Site, Table], tmp_path: Path) -> Iterator[tuple[Site, Table]]:
    """The bucket alone."""
    site, table = left
    shutil.copytree(site.directory / "bucket", tmp_path / "bucket")
    yield Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), dict(SETTINGS)), table


def test_a_compacted_bucket_holds_the_table_and_nothing_more(left: tuple[Site, Table]) -> None:
    site, table = left
    check_bucket(site)
    found = thermocline.read(site.bucket.url, TOPIC, columns=("value",), isolation_level="read_uncommitted").to_table()
    assert not any(value.startswith(b"aborted") for value in found.column("value").to_pylist())
    assert found.num_rows == KEYS and len(table) == KEYS
    assert read_table(site) == table


def test_a_read_only_broker_serves_a_compacted_bucket(copied: tuple[Site, Table]) -> None:
    site, table = copied
    with site.broker("reader", "--read-only") as reader:
        for read in (read_confluent, read_kafka_python, read_aiokafka):
            assert table_of(reader, read) == table, read.__name__


def test_a_lost_disk_is_restored_from_a_compacted_bucket(copied: tuple[Site, Table]) -> None:
    """The next writes and passes go on, on top of what was compacted."""
    site, table = copied
    with site.broker("new") as broker:
        assert table_of(broker) == table
        later = write(broker, range(24, 30))
        seal(broker)
        assert table_of(broker) == table | later
        compact(broker, site)
        assert table_of(broker) == table | later
        assert broker.stop() == 0
    check_bucket(site)
    assert read_table(site) == table | later


def test_a_cluster_is_rebuilt_from_a_compacted_bucket(copied: tuple[Site, Table]) -> None:
    """`cluster.json` is gone too."""
    site, table = copied
    (site.directory / "bucket" / "cluster.json").unlink()
    assert rebuild(site, "--yes")[0] == Exit.DONE
    with site.broker("11", "--node-id", "11", wait_ready=False) as broker:
        broker.await_ready()
        code, _, said = restore(site, "--yes")
        assert code == Exit.DONE, said
        assert table_of(broker) == table
        assert broker.stop() == 0
    check_bucket(site)


def test_what_is_deleted_goes_within_the_grace_of_replaced_objects(directory_site: Site) -> None:
    """DeleteRecords takes along what compaction replaced below it, the deletion of the topic everything."""
    site = directory_site
    site.settings = {**SETTINGS, "thermocline.cold.compaction.grace.ms": 86_400_000}
    with site.broker() as broker:
        begin(broker)
        compact(broker, site, until_deleted=False, policy="compact,delete")
        prefix, manifest = manifest_of(site.bucket, TOPIC)
        assert manifest["replaced"]
        check_bucket(site)
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        end = manifest["remote_end_offset"]
        admin.delete_records([TopicPartition(TOPIC, 0, end)])[TopicPartition(TOPIC, 0)].result(20)

        def objects() -> list[str]:
            return [key for key in site.bucket.listing() if key.startswith(f"{prefix}segments/")]

        wait_until(lambda: not objects(), "no record is left in the bucket", 60)
        wait_until(lambda: "replaced" not in manifest_of(site.bucket, TOPIC)[1], "nor in the list", 60)
        check_bucket(site)
        write(broker, range(24, 30))
        seal(broker)
        wait_until(lambda: "replaced" in manifest_of(site.bucket, TOPIC)[1], "another pass", 60)
        delete_topic(broker.kafka, TOPIC)
        wait_until(lambda: not any(key.startswith(prefix) for key in site.bucket.listing()), "all of it is gone", 60)
        assert broker.stop() == 0


class Meanwhile:
    """A broker whose bucket is compacted, replaced objects deleted, at a moment of a reader's run."""

    def __init__(self, site: Site, broker: BrokerProcess) -> None:
        self.site = site
        self.broker = broker
        self.is_done = False

    def compact(self) -> None:
        if not self.is_done:
            self.is_done = True
            compact(self.broker, self.site)


def test_a_read_that_began_before_compaction_ends(directory_site: Site) -> None:
    directory_site.settings = dict(SETTINGS)
    with directory_site.broker() as broker:
        table = begin(broker)
        meanwhile = Meanwhile(directory_site, broker)
        found: Table = {}
        offsets: list[int] = []
        reading = thermocline.read(directory_site.bucket.url, TOPIC, columns=("offset", "key", "value"), threads=1)
        for batch in reading:
            meanwhile.compact()
            offsets += batch.column("offset").to_pylist()
            found |= {row["key"]: row["value"] for row in batch.to_pylist()}
        assert offsets == sorted(set(offsets)) and found == table


def test_an_archive_run_that_began_before_compaction_ends(
    directory_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's plan names objects that are deleted before it reads them; the archive holds each offset once, and the
    newest value of each key."""
    directory_site.settings = dict(SETTINGS)
    with directory_site.broker() as broker:
        table = begin(broker)
        meanwhile = Meanwhile(directory_site, broker)
        steps = 0

        def reach(point: str) -> None:
            nonlocal steps
            steps += point == "archive.planned"
            if steps == 2:
                meanwhile.compact()

        monkeypatch.setattr(archive_room, "reach", reach)
        url, catalog = directory_site.bucket.url, lake(tmp_path)
        archive(None, url, TOPIC, "ns.t", catalog=catalog, bytes_max=20_000, target_bytes=8_000)
        assert meanwhile.is_done and steps > 2
        found = rows(catalog, "ns.t").sort_by("offset")
        assert pc.count_distinct(found.column("offset")).as_py() == found.num_rows
        assert {row["key"]: row["value"] for row in found.to_pylist()} == table
        again = archive(None, url, TOPIC, "ns.t", catalog=catalog)
        assert again.rows == 0


def test_spark_reads_a_compacted_bucket(spark: SparkSession, left: tuple[Site, Table]) -> None:
    site, table = left
    options = {"bucket": site.bucket.url, "subscribe": TOPIC}
    found = spark.read.format("thermocline").options(**options).load().select("offset", "key", "value").collect()
    assert {bytes(row.key): bytes(row.value) for row in sorted(found, key=lambda row: row.offset)} == table
    assert len(found) == KEYS
