"""Stock clients that write and commit while the brokers they talk to are killed, one after the other, and come back.

Three replicas, min.insync.replicas=2, an idempotent producer, a group that commits what it reads: a coordinator dies,
then the leader of a partition dies with its disk, and an empty one takes its place. No client shows an error, but such
as it tries again by itself; no position goes back below a commit that was acknowledged; every record that was
acknowledged is there once, where the client was told, in the order it was sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.groups.coordinator import OFFSETS_TOPIC
from broker.groups.records import partition_of
from tests.integration.moves.test_replacement import metrics
from tests.support.clients.committing import CLIENTS, PARTITIONS, Run
from tests.support.clients.committing_java import java
from tests.support.clients.stock_clients import read_confluent
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import manifest_of

pytestmark = pytest.mark.timeout(300)

TOPIC = "ledger"
SMALL = {"internal_segment_bytes": 4096, "local_retention_bytes": 1}
WAIT_S = 90.0  # an election and a client's patience, on a busy machine


def _goes_on(cluster: Three, run: Run) -> None:
    """It writes and commits now; what is committed was read, so it was acknowledged."""
    sent, commits = run.sent, run.commits

    def wrote() -> bool:
        run.check()
        return run.sent > sent + 20

    def committed() -> bool:
        run.check()
        return run.commits > commits + 2

    cluster.wait(wrote, "records", WAIT_S)
    cluster.wait(committed, "commits", WAIT_S)


def _coordinator(cluster: Three, group: str) -> int:
    rows = cluster.rows(OFFSETS_TOPIC)
    return rows[partition_of(group, len(rows))].leader


@pytest.mark.parametrize("client", sorted(CLIENTS))
def test_a_group_and_an_idempotent_producer_live_through_a_killed_coordinator_and_a_replaced_leader(
    directory_site: Site, client: str
) -> None:
    """One client of each kind, with one replica of everything on each of three brokers."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas=2, **SMALL)
        run = Run(cluster.everywhere, TOPIC, f"group-{client}")
        run.begin(*CLIENTS[client])
        _lives_through(cluster, run)


@pytest.mark.peer
def test_the_java_client_lives_through_a_killed_coordinator_and_a_replaced_leader(
    directory_site: Site, tmp_path: Path
) -> None:
    """The same, with Apache Kafka's own producer and consumer."""
    require_kafka()
    with three(directory_site) as cluster:
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas=2, **SMALL)
        run = Run(cluster.everywhere, TOPIC, "group-java")
        with java(run, tmp_path):
            _lives_through(cluster, run)


@pytest.mark.peer
def test_the_java_programs_end_with_a_test_that_fails_and_with_the_tests_process(tmp_path: Path) -> None:
    """Found: two producers that wrote to nobody for hours."""
    require_kafka()

    class TestFailed(Exception):
        pass

    run = Run("127.0.0.1:1", TOPIC, "group-java")
    (tmp_path / "fails").mkdir()
    with pytest.raises(TestFailed), java(run, tmp_path / "fails") as programs:
        raise TestFailed
    assert all(program.returncode is not None for program in programs)
    with java(Run("127.0.0.1:1", TOPIC, "group-java"), tmp_path) as programs:
        for program in programs:
            assert program.stdin is not None
            program.stdin.close()  # as the kernel does for who is killed
        assert [program.wait(WAIT_S) for program in programs] == [1, 1]


def _remote_end(cluster: Three) -> int:
    """0 is not written down: nothing was copied yet."""
    return manifest_of(cluster.site.bucket, TOPIC)[1].get("remote_end_offset", 0)


def _lives_through(cluster: Three, run: Run) -> None:
    """A coordinator dies and comes back, then a leader is replaced; then nothing is missing."""
    _goes_on(cluster, run)
    for who in ("coordinator", "leader"):
        victim = _coordinator(cluster, run.group) if who == "coordinator" else cluster.rows(TOPIC)[0].leader
        if who == "leader":
            cluster.wait(lambda: _remote_end(cluster) > 0, "copies", WAIT_S)
        cluster.kill(victim)
        _goes_on(cluster, run)
        assert victim not in (_coordinator(cluster, run.group), cluster.rows(TOPIC)[0].leader)
        if who == "leader":
            cluster.site.lose_data_dir(str(victim))
        cluster.start(victim)
        cluster.wait(cluster.is_whole, "all three in sync again", WAIT_S)
        _goes_on(cluster, run)
    assert metrics(cluster, victim)["thermocline_replicas_begun_in_bucket_total"] >= 1, "its history was not copied"
    run.end("write", WAIT_S)
    cluster.wait(lambda: run.check() or run.has_read_all, "everything read", WAIT_S)
    run.end("read", WAIT_S)

    assert len(run.acknowledged) == run.sent > 100 and run.commits > 10
    ends = {p: 1 + max(o for q, o in run.acknowledged.values() if q == p) for p in range(PARTITIONS)}
    found = read_confluent(cluster.everywhere, TOPIC, ends)
    assert len(found) == run.sent, "none lost, none doubled"
    assert {int(r.value or b""): (r.partition, r.offset) for r in found} == run.acknowledged
    for partition in range(PARTITIONS):
        numbers = [int(r.value or b"") for r in found if r.partition == partition]
        assert numbers == sorted(numbers), f"partition {partition} is reordered"
    assert {number: (p, o) for p, o, number in run.read} == run.acknowledged
