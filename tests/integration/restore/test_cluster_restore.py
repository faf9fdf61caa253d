"""All machines are gone, the bucket is not: real brokers on empty directories, `cluster restore`, stock clients.

One cluster of three brokers is lost once for all tests: killed, its directories deleted; each test has a copy of the
bucket. What was sealed is read again, what came after it is stepped over, and its offsets are given to nothing else.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.clients.stock_clients import (
    READS,
    Record,
    Written,
    commit_offset,
    committed_offset,
    digest,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.kafka.kafka_console import kafka_console
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import QUICK, Site, json_lines, thermocline, wait_snapshot
from tests.support.processes.three_brokers import NODES, three
from tests.support.repository import ROOT
from tests.support.store.buckets import Bucket, DirectoryBucket, manifest_of
from thermocline.cli.terminal.outcome import Exit

TOPIC, OTHER, TRIMMED, GROUP = "ledger", "local", "trimmed", "readers"
PARTITIONS = 3
SEALED, LOST = 40, 7
START = 15
"""Of TRIMMED: what lies below was deleted."""
SETTINGS = {
    **QUICK,
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


@dataclass(frozen=True)
class Before:
    """What was there. `sealed`: records that are in the bucket; `ends`: of the logs as clients saw them."""

    directory: Path
    sealed: list[Record]
    ends: dict[int, int]
    position: int


def some(mark: str, count: int) -> list[Written]:
    return [Written(b"%d" % n, f"{mark} {n}".encode(), 1_700_000_000_000 + n) for n in range(count)]


def lose_a_cluster(site: Site) -> Before:
    """Three brokers, records in the bucket and above it, a group; then kill -9 and rm -rf."""
    with three(site) as cluster:
        everywhere = cluster.everywhere
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas=2)
        cluster.create(OTHER, 1, remote_storage_enable="false")
        for index in range(PARTITIONS):
            write_confluent(everywhere, TOPIC, index, some("sealed", SEALED), "none", True)
        commit_offset(everywhere, GROUP, TOPIC, 1, SEALED - 5)
        wait_snapshot(site.bucket, end_offsets(everywhere, "__consumer_offsets", 1)[0])
        cluster.create(TRIMMED, 1, min_insync_replicas=2)
        write_confluent(everywhere, TRIMMED, 0, some("sealed", SEALED), "none", True)
        admin = AdminClient({"bootstrap.servers": everywhere})
        (deleted,) = admin.delete_records([TopicPartition(TRIMMED, 0, START)]).values()
        assert deleted.result(30).low_watermark == START
        for name in (TOPIC, TRIMMED):
            assert thermocline("tier", "seal", "--wait", "-b", everywhere, "--topic", name).returncode == 0
        sealed = read_confluent(everywhere, TOPIC, dict.fromkeys(range(PARTITIONS), SEALED))
        for index in range(PARTITIONS - 1):
            write_confluent(everywhere, TOPIC, index, some("lost", LOST), "none", True)
        write_confluent(everywhere, OTHER, 0, some("lost", LOST), "none", True)
        ends = end_offsets(everywhere, TOPIC, PARTITIONS)
        for node_id in NODES:
            cluster.kill(node_id)
    for node_id in NODES:
        shutil.rmtree(site.data_dir(str(node_id)))
    return Before(site.directory, sealed, ends, SEALED - 5)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    directory = tmp_path_factory.mktemp("before")
    return lose_a_cluster(Site(directory, DirectoryBucket(directory / "bucket"), dict(SETTINGS)))


@pytest.fixture
def site(before: Before, tmp_path: Path) -> Site:
    """Its bucket, and no machine."""
    shutil.copytree(before.directory / "bucket", tmp_path / "bucket")
    return Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), dict(SETTINGS))


@contextlib.contextmanager
def started(site: Site, *node_ids: int) -> Iterator[dict[int, BrokerProcess]]:
    """Brokers on empty directories."""
    with contextlib.ExitStack() as stack:
        found = {
            node_id: stack.enter_context(site.broker(str(node_id), "--node-id", str(node_id), wait_ready=False))
            for node_id in node_ids
        }
        for broker in found.values():
            broker.await_ready()
        yield found


def restore(site: Site, *words: str) -> tuple[int, list[dict], str]:
    done = site.cli("cluster", "restore", "--bucket", site.bucket.url, "--json", *words)
    return done.returncode, json_lines(done.stdout), done.stderr


def check_restored(site: Site, brokers: dict[int, BrokerProcess], before: Before) -> None:
    """What was sealed, byte for byte; nothing else; new records above all that was given, and what is lost is named as
    a gap; the group where it was."""
    everywhere = ",".join(broker.kafka for broker in brokers.values())
    ends = end_offsets(everywhere, TOPIC, PARTITIONS)
    assert all(ends[index] >= before.ends[index] for index in ends)
    shown = json_lines(site.cli("tier", "status", "-b", everywhere, "--topic", TOPIC, "--json").stdout)
    assert {row["partition"]: row["gaps"] for row in shown} == {index: [[SEALED, ends[index]]] for index in ends}
    for client, (read, _) in READS.items():
        assert digest(read(everywhere, TOPIC, ends)) == digest(before.sealed), client
    assert committed_offset(everywhere, GROUP, TOPIC, 1) == before.position
    for index in range(PARTITIONS):
        write_confluent(everywhere, TOPIC, index, some("after", 3), "none", True)
    after = {index: end + 3 for index, end in ends.items()}
    found = read_confluent(everywhere, TOPIC, after)
    new = [record for record in found if record.value is not None and record.value.startswith(b"after")]
    assert {(record.partition, record.offset) for record in new} == {
        (index, ends[index] + n) for index in range(PARTITIONS) for n in range(3)
    }
    assert digest([record for record in found if record not in new]) == digest(before.sealed)
    write_confluent(everywhere, OTHER, 0, some("after", 1), "none", True)


def test_a_plan_needs_no_broker(site: Site, before: Before) -> None:
    """What is lost at most is named, who is gone too, and the groups; with --yes it says who is missing."""
    written = {key: site.bucket.read(key) for key in site.bucket.listing()}
    code, rows, said = restore(site)
    assert (code, "start them, then add --yes to restore" in said) == (Exit.DONE, True)
    assert [(row["node"], row["state"]) for row in rows if row["kind"] == "broker"] == [
        (node_id, "to_give_up") for node_id in NODES
    ]
    parts = {(row["topic"], row["partition"]): row for row in rows if row["kind"] == "partition"}
    reserved = manifest_of(site.bucket, TOPIC, 0)[1]["reserved_end_offset"]
    assert (parts[TOPIC, 0]["remote_end"], parts[TOPIC, 0]["gap"]) == (SEALED, [SEALED, reserved])
    assert {row["log_start"] for place, row in parts.items() if place[0] == TOPIC} == {0}
    assert (parts[TRIMMED, 0]["log_start"], parts[TRIMMED, 0]["remote_end"]) == (START, SEALED)
    assert parts[OTHER, 0]["gap"][0] == 0 and parts[OTHER, 0]["cold_bytes"] == 0
    assert all(row["fate"] == "restored" and sorted(row["from"]) == [1, 2, 3] for row in parts.values())
    (group,) = [row for row in rows if row["kind"] == "group"]
    assert (group["group"], group["positions"]) == (GROUP, 1) and group["age_ms"] >= 0
    code, _, said = restore(site, "--yes")
    assert code == Exit.FAILED and "start brokers on" in said
    assert {key: site.bucket.read(key) for key in site.bucket.listing()} == written


@pytest.mark.slow
def test_fewer_brokers_under_the_ids_of_those_that_are_gone(site: Site, before: Before) -> None:
    """Two of three: the third is given up, and what it may have held with it."""
    with started(site, 1, 2) as brokers:
        code, rows, said = restore(site, "--yes")
        assert code == Exit.DONE, said
        assert "broker 3 is given up" in said
        results = [row for row in rows if row["kind"] == "result"]
        assert len(results) == PARTITIONS + 3 and all(row["serves"] for row in results)
        check_restored(site, brokers, before)
        assert restore(site, "--yes")[0] == Exit.DONE, "a second run finds nothing to do"


@pytest.mark.parametrize("node_ids", [(11, 12), pytest.param((11, 12, 13, 14), marks=pytest.mark.slow)], ids=str)
def test_brokers_under_other_ids(site: Site, before: Before, node_ids: tuple[int, ...]) -> None:
    """Replicas are placed on those that are there, and the old ones leave the cluster."""
    with started(site, *node_ids) as brokers:
        code, rows, said = restore(site, "--yes")
        assert code == Exit.DONE, said
        results = [row for row in rows if row["kind"] == "result"]
        assert all(len(row["replicas"]) == min(3, len(node_ids)) for row in results)
        assert {node for row in results for node in row["replicas"]} == set(node_ids)
        starts = {row["topic"]: row["log_start"] for row in results}
        assert (starts[TOPIC], starts[TRIMMED]) == (0, START), "what was deleted stays so"
        check_restored(site, brokers, before)
        status = json_lines(thermocline("cluster", "status", "--json", "-b", brokers[11].kafka).stdout)
        assert {row["node"] for row in status if row["kind"] == "broker"} == set(node_ids)


@pytest.mark.slow
def test_a_damaged_manifest_keeps_its_partition_offline_and_no_other(site: Site, before: Before) -> None:
    """Named in the plan and in the report; exit code 5."""
    key = manifest_of(site.bucket, TOPIC, 0)[0] + "manifest.json"
    whole = site.bucket.read(key)
    site.bucket.load({key: whole[:-40] + b"x" * 40})
    with started(site, 1, 2) as brokers:
        code, rows, said = restore(site, "--yes")
        assert code == Exit.FINDINGS, said
        fates = {(row["topic"], row["partition"]): row for row in rows if row["kind"] == "partition"}
        assert fates[TOPIC, 0]["fate"] == "offline" and "manifest.json" in fates[TOPIC, 0]["why"]
        served = {(row["topic"], row["partition"]): row["serves"] for row in rows if row["kind"] == "result"}
        assert [place for place, serves in served.items() if not serves] == [(TOPIC, 0)]
        everywhere = ",".join(broker.kafka for broker in brokers.values())
        found = read_confluent(everywhere, TOPIC, {1: SEALED, 2: SEALED})
        assert digest(found) == digest([record for record in before.sealed if record.partition])
        site.bucket.load({key: whole})
        wait_served(site)


def wait_served(site: Site) -> None:
    """The object is put back as it was: the partition comes by itself, and the same command says so."""
    code, rows, said = restore(site, "--yes")
    assert code == Exit.DONE, said
    assert all(row["serves"] for row in rows if row["kind"] == "result")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_segments_of_a_thousand_partitions_are_restored() -> None:
    """By other brokers: the program that measures it ends well only when each serves from its first record to its
    reserved end. How long that takes is bench/RESULTS.md's: here it may take as long as a busy machine wants."""
    patient = "from bench import restore; restore.READY_S = 700.0; restore.main()"
    command = [sys.executable, "-c", patient, "--only", "three", "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (most,) = re.findall(r"memory of a broker at most\W+(\d+) MiB", done.stdout)
    assert int(most) <= 300


@pytest.mark.peer
def test_kafkas_own_consumer_steps_over_what_is_lost(site: Site, tmp_path: Path) -> None:
    """What was sealed, then what came after: nothing is between them for it, and it waits for nothing."""
    require_kafka()
    with started(site, 11, 12) as brokers, kafka_console(tmp_path) as java:
        code, _, said = restore(site, "--yes")
        assert code == Exit.DONE, said
        everywhere = ",".join(broker.kafka for broker in brokers.values())
        (end,) = end_offsets(everywhere, TOPIC, 1).values()
        write_confluent(everywhere, TOPIC, 0, some("after", 3), "none", True)
        seen = java.run(
            *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", everywhere, "--topic", TOPIC),
            *("--partition", "0", "--offset", "earliest", "--max-messages", str(SEALED + 3), "--timeout-ms", "30000"),
            *("--formatter-property", "print.offset=true"),
        )
        wanted = [f"sealed {n}" for n in range(SEALED)] + [f"after {n}" for n in range(3)]
        offsets = [*range(SEALED), *range(end, end + 3)]
        assert seen.out.splitlines() == [f"Offset:{at}\t{text}" for at, text in zip(offsets, wanted, strict=True)], seen


@pytest.mark.peer
def test_a_cluster_on_an_s3_server(tmp_path: Path, stores: object) -> None:
    """The same on versitygw, other ids."""
    with stores.bucket("versitygw", tmp_path) as bucket:  # type: ignore[attr-defined]
        held: Bucket = bucket
        site = Site(tmp_path, held, dict(SETTINGS))
        before = lose_a_cluster(site)
        with started(site, 11, 12) as brokers:
            code, _, said = restore(site, "--yes")
            assert code == Exit.DONE, said
            check_restored(site, brokers, before)
