"""Both tiers of replicated topics on three real brokers, whichever leads: what operators and readers are told.

Every process is a real one over one directory bucket. A leader is killed while it holds what is not in the bucket.
"""

from __future__ import annotations

import urllib.request

import pytest

from logformat.values import TopicPartition
from tests.support.clients.stock_clients import Written, write_confluent
from tests.support.processes.site import Site, json_lines
from tests.support.processes.three_brokers import Three, three
from thermocline.pipeline.spark.cluster import Cluster
from thermocline.pipeline.spark.tail import ConsumerSettings, TailPart, read_tail
from thermocline.pipeline.split import Loss, RowFilter

TOPIC = "ledger"
PARTITIONS = 3
SMALL = {"remote_storage_enable": "true", "internal_segment_bytes": 20_000, "local_retention_bytes": 1}


def filled(cluster: Three) -> None:
    """A thousand records in each partition, led by each of the brokers; most of them in the bucket alone."""
    cluster.create(TOPIC, partitions=PARTITIONS, min_insync_replicas=2, **SMALL)
    assert {row.leader for row in cluster.rows(TOPIC)} == {1, 2, 3}
    write(cluster, 0, 1000)


def write(cluster: Three, first: int, end: int) -> None:
    for index in range(PARTITIONS):
        records = [Written(None, b"%d-%05d" % (index, at) + b"x" * 100) for at in range(first, end)]
        write_confluent(cluster.everywhere, TOPIC, index, records, "none", True)


def remote_ends(site: Site, cluster: Three) -> list[int]:
    """What `tier status` says, by partition."""
    asked = site.cli("tier", "status", "--bootstrap-server", cluster.everywhere, "--topic", TOPIC, "--json")
    assert asked.returncode == 0, asked.stderr
    rows = [row for row in json_lines(asked.stdout) if row.get("topic") == TOPIC]
    assert [row["partition"] for row in rows] == list(range(PARTITIONS))
    return [row["remote_end_offset"] for row in rows]


def metrics_of(cluster: Three, name: str) -> dict[str, float]:
    """Values of `name` for the topic, by partition, of all brokers that run; each partition is told once."""
    found: dict[str, float] = {}
    for node_id in cluster.alive():
        with urllib.request.urlopen(f"http://{cluster.brokers[node_id].http}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name}{{") and f'topic="{TOPIC}"' in line:
                    labels, value = line.rsplit(" ", 1)
                    assert labels not in found, f"{labels} is told by two brokers"
                    found[labels] = float(value)
    return found


def test_status_seal_and_metrics_go_by_whoever_leads(directory_site: Site) -> None:
    """Each partition once, by its leader; sealed, everything is in the bucket, also of those whose leader was killed a
    moment ago and that another leads now; scrub and verify find nothing."""
    with three(directory_site) as cluster:
        filled(cluster)
        cluster.wait(lambda: min(remote_ends(directory_site, cluster)) > 500, "copies")
        sealing = ("tier", "seal", "--bootstrap-server", cluster.everywhere, "--wait")
        assert directory_site.cli(*sealing).returncode == 0
        assert remote_ends(directory_site, cluster) == [1000] * PARTITIONS
        write(cluster, 1000, 1200)
        dead = cluster.rows(TOPIC)[0].leader
        cluster.kill(dead)
        cluster.wait(lambda: cluster.rows(TOPIC)[0].leader not in (-1, dead), "another leader")
        cluster.wait(lambda: directory_site.cli(*sealing).returncode == 0, "sealed by those who lead now")
        assert remote_ends(directory_site, cluster) == [1200] * PARTITIONS
        assert sorted(metrics_of(cluster, "thermocline_remote_end_offset").values()) == [1200.0] * PARTITIONS
        checked = directory_site.cli("bucket", "verify", directory_site.bucket.url, "--deep")
        assert checked.returncode == 0, checked.stdout
        cluster.start(dead)
        cluster.wait(cluster.is_whole, "all three in sync again")
        assert directory_site.cli("scrub", directory_site.bucket.url, "--dry-run").returncode == 0


def test_the_hot_tail_is_read_from_each_partitions_leader_through_a_kill(directory_site: Site) -> None:
    """The driver asked a leader that was dead, librdkafka answered the offset −1001, and the tail passed for empty."""
    with three(directory_site) as cluster:
        filled(cluster)
        connection = ConsumerSettings.of(cluster.everywhere, {}, "spark", 60_000)
        driver = Cluster(connection)
        places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        assert driver.ends(places) == dict.fromkeys(places, 1000)
        write(cluster, 1000, 1200)
        cluster.kill(cluster.rows(TOPIC)[0].leader)
        assert driver.ends(places) == dict.fromkeys(places, 1200)
        assert driver.starts(places) == dict.fromkeys(places, 0)
        assert driver.first_at(dict.fromkeys(places, 1 << 60)) == dict.fromkeys(places, None)
        for index in range(PARTITIONS):
            part, loss = TailPart(TOPIC, index, RowFilter(500, 1200)), Loss()
            batches = read_tail(connection, part, ["offset", "value"], fail_on_data_loss=True, loss=loss)
            offsets = [offset for batch in batches for offset in batch.column(0).to_pylist()]
            assert offsets == list(range(500, 1200)) and not loss.gaps and not loss.damage


@pytest.mark.slow
def test_scrub_reads_every_byte_of_what_three_brokers_wrote(directory_site: Site) -> None:
    """Objects of several leader epochs, a deposed leader's among them: nothing is damaged."""
    with three(directory_site) as cluster:
        filled(cluster)
        cluster.kill(cluster.rows(TOPIC)[0].leader)
        write(cluster, 1000, 1400)
        report = directory_site.cli("scrub", directory_site.bucket.url, "--json")
        assert report.returncode == 0, report.stderr
        assert json_lines(report.stdout)[-1]["damaged"] == 0
