"""A machine is lost with its disk and replaced by an empty one, under load: what moves, who notices, what is there.

Three real brokers whose logs keep everything on their disks, while the bucket holds ten times what is hot. Bytes are
counted by the replaced broker, and by the links that carry them; requests by the replaced broker.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients.steady_load import SteadyLoad, assert_kept
from tests.support.clients.stock_clients import READS, Record, Written, write_confluent
from tests.support.processes.link_proxy import Links
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import Stores, roots

TOPIC = "ledger"
PARTITIONS = 3
RECORDS = 1_600
SEGMENT_BYTES = 150_000
GETS = 'thermocline_store_requests_total{operation="get"}'
GET_BYTES = 'thermocline_store_bytes_total{operation="get"}'
OTHERS = [
    f'thermocline_store_requests_total{{operation="{name}"}}'
    for name in ("put_segment", "put_root", "delete", "list", "head")
]
DEAD = 2
"""It leads all of them, and who leads then has verified nothing."""


@pytest.fixture(params=["directory", pytest.param("versitygw", marks=pytest.mark.peer)])
def site(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Site]:
    with stores.bucket(request.param, tmp_path) as bucket:
        yield Site(tmp_path, bucket)


@contextmanager
def filled(site: Site) -> Iterator[tuple[Three, Links]]:
    """1.6 MB in each partition, of which the bucket holds all but the last segment, ten times what it does not; broker
    2 leads."""
    with Links() as links, three(site, links) as cluster:
        configs = {
            "remote.storage.enable": "true",
            "internal.segment.bytes": str(SEGMENT_BYTES),
            "local.retention.bytes": "-1",
            "min.insync.replicas": "2",
        }
        new = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[DEAD, 1, 3]] * PARTITIONS, config=configs)
        admin = AdminClient({"bootstrap.servers": cluster.everywhere})
        admin.create_topics([new])[TOPIC].result(30)
        for index in range(PARTITIONS):
            records = [Written(None, value(index, at)) for at in range(RECORDS)]
            write_confluent(cluster.everywhere, TOPIC, index, records, "none", True)
        cluster.wait(lambda: all(of["remote_end_offset"] > 0.9 * RECORDS for of in manifests(site)), "copies")
        cluster.wait(lambda: cold_bytes(site) >= 10 * (log_bytes(site, "1") - cold_bytes(site)), "ten times the tail")
        yield cluster, links


def value(index: int, at: int) -> bytes:
    return b"%d-%06d-" % (index, at) + b"x" * 1_000


def manifests(site: Site) -> list[dict]:
    """Of the topic, by partition."""
    found = [manifest for manifest in roots(site.bucket).values() if manifest["topic"] == TOPIC]
    assert len(found) == PARTITIONS
    return sorted(found, key=lambda manifest: manifest["partition"])


def cold_bytes(site: Site) -> int:
    """Of the topic, as its manifests say."""
    return sum(manifest["live"]["log_bytes"] for manifest in manifests(site))


def log_bytes(site: Site, name: str) -> int:
    """Of the topic, on the disk of a broker that keeps all of it."""
    return sum(file.stat().st_size for file in site.local_log_files(TOPIC, name))


def metrics(cluster: Three, node_id: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{cluster.brokers[node_id].http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[:1] not in ("#", "")}


def replaced(site: Site, cluster: Three, reading: Callable[[], None]) -> None:
    """kill -9, rm -rf, started again once it is missed; `reading` goes on meanwhile."""
    with ThreadPoolExecutor() as pool:
        read = pool.submit(reading)
        cluster.kill(DEAD)
        site.lose_data_dir(str(DEAD))
        cluster.wait(lambda: DEAD not in cluster.active(), "its session's end")  # looks at the lease are GETs too
        cluster.start(DEAD)
        cluster.wait(cluster.is_whole, "in sync again")
        read.result(90)


def test_a_replaced_broker_takes_the_hot_tail_and_nobody_notices(site: Site) -> None:
    """What crosses the links is at most 1.1 times what the bucket did not hold; it asks the bucket for a root and a
    footer a partition, and for nothing else; every client library reads through it; and what it serves as leader
    afterwards is the same, in both tiers."""
    with filled(site) as (cluster, links), SteadyLoad(cluster.everywhere, (TOPIC,)) as load:
        cluster.wait(lambda: load.acked_count > 100, "load")
        of_a_start = metrics(cluster, 3)  # it leads nothing, and copied everything
        cold = cold_bytes(site)
        carried_before = carried_to(links, DEAD)
        seen: dict[str, list[Record]] = {}

        def reading() -> None:
            ends = dict.fromkeys(range(PARTITIONS), RECORDS)
            with ThreadPoolExecutor() as pool:
                found = {name: pool.submit(read, cluster.everywhere, TOPIC, ends) for name, (read, _) in READS.items()}
            seen.update((name, future.result()) for name, future in found.items())

        replaced(site, cluster, reading)
        load.stop(30)
        cluster.wait(cluster.is_whole, "all of the load in sync")
        counted, carried = metrics(cluster, DEAD), carried_to(links, DEAD) - carried_before

        hot = log_bytes(site, "1") - cold
        moved = counted["thermocline_replication_bytes_in_total"]
        assert cold > 4_000_000 and moved <= 1.1 * hot
        assert moved <= carried <= 1.1 * moved + 200_000, "the counter says what crossed the links, but for what asks"
        assert counted["thermocline_replicas_begun_in_bucket_total"] == PARTITIONS
        assert 0.9 * cold <= counted["thermocline_replication_bytes_skipped_total"] <= log_bytes(site, "1")

        each = (counted[GETS] - of_a_start[GETS]) / PARTITIONS
        assert each <= 4 and counted[GETS] >= 2 * PARTITIONS, "a root and a footer each; twice where it was sent on"
        assert counted[GET_BYTES] - of_a_start[GET_BYTES] <= 0.01 * cold, "of the history it reads footers"
        assert all(counted[name] <= of_a_start[name] for name in OTHERS), "it leads nothing, so it writes nothing"

        for name, records in seen.items():
            assert_whole(records, f"{name}, while it was replaced")
        lead_all(cluster)
        ends = dict.fromkeys(range(PARTITIONS), RECORDS) | {0: 1 + max(load.acked[TOPIC])}
        records = READS["confluent-kafka"][0](cluster.everywhere, TOPIC, ends)
        assert_whole([record for record in records if record.offset < RECORDS], "of the replaced broker")
        assert_kept(load.acked[TOPIC], [record for record in records if record.offset >= RECORDS])
        assert log_bytes(site, str(DEAD)) < cold, "the rest came out of the bucket"


def carried_to(links: Links, node_id: int) -> int:
    return sum(count for (_, to), count in links.carried().items() if to == str(node_id))


def assert_whole(records: list[Record], whose: str) -> None:
    found = {(record.partition, record.offset): record.value for record in records}
    wanted = {(index, at): value(index, at) for index in range(PARTITIONS) for at in range(RECORDS)}
    assert found == wanted and len(records) == len(found), whose


def lead_all(cluster: Three) -> None:
    """The replaced broker is the first replica of all."""
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": cluster.everywhere})
    admin.elect_leaders(ElectionType.PREFERRED, partitions).result(30)
    cluster.wait(lambda: {row.leader for row in cluster.rows(TOPIC)} == {DEAD}, "it leads")
