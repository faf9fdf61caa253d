"""A tombstone stays in the bucket while a replica's local log may serve a record that it deletes (ADR 32, rule 4), by
three real processes: a broker that does not clean holds it, and lets it go once it cleans."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import thermocline
from tests.support.processes.site import QUICK, Site, seal
from tests.support.processes.three_brokers import Three
from tests.support.store.buckets import DirectoryBucket, manifest_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

GONE = b"gone"
SETTINGS = {
    **QUICK,
    "log.cleaner.backoff.ms": 100,
    "thermocline.cold.compaction.grace.ms": 300,
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
}
CONFIGS = {
    "cleanup_policy": "compact",
    "remote_storage_enable": "true",
    "internal_segment_bytes": "4000",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "1",
}
LAZY = 3
"""The broker that does not clean at first."""


def create(cluster: Three, topic: str, replicas: list[int]) -> None:
    configs = {name.replace("_", "."): value for name, value in CONFIGS.items()}
    new = NewTopic(topic, num_partitions=1, replica_assignment=[replicas], config=configs)
    admin = AdminClient({"bootstrap.servers": cluster.everywhere})  # its futures die with it
    admin.create_topics([new])[topic].result(30)
    cluster.wait(lambda: set(cluster.rows(topic)[0].in_sync) == set(replicas), f"{replicas} are in sync")


def write(cluster: Three, topic: str, *records: tuple[bytes, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": cluster.everywhere, "linger.ms": 0, "acks": "all"})
    errors: list[object] = []
    for key, value in records:
        producer.produce(topic, value, key, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0 and errors == [None] * len(records), errors


def compacted(cluster: Three, topic: str, number: int) -> None:
    """Write a round of other keys, and wait until a pass has cleaned the bucket up to its end."""
    write(cluster, topic, *((b"k%d" % key, b"%d/%d " % (number, key) + b"x" * 300) for key in range(9)))
    seal(cluster.brokers[cluster.rows(topic)[0].leader])

    def is_clean() -> bool:
        manifest = manifest_of(cluster.site.bucket, topic)[1]
        return manifest.get("clean_end_offset", 0) == manifest["remote_end_offset"]

    cluster.wait(is_clean, f"the bucket is clean after round {number}", 60)


def values_of(cluster: Three, topic: str, key: bytes) -> list[bytes | None]:
    """All values of the key that the bucket has."""
    rows = thermocline.read(cluster.site.bucket.url, topic, columns=("offset", "key", "value")).to_table().to_pylist()
    return [row["value"] for row in rows if row["key"] == key]


def test_a_tombstone_stays_while_a_follower_does_not_clean(tmp_path: Path) -> None:
    """Of two topics one has a replica that does not clean: its tombstone is there when the other's is gone."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), dict(SETTINGS))
    with contextlib.ExitStack() as stack:
        cluster = Three(site, stack)
        for node_id in (1, 2):
            cluster.start(node_id)
        cluster.start(LAZY, "--set", "log.cleaner.enable=false")
        for topic, replicas in (("held", [1, 2, LAZY]), ("free", [1, 2])):
            create(cluster, topic, replicas)
            write(cluster, topic, (GONE, b"here"))
            compacted(cluster, topic, 0)
            write(cluster, topic, (GONE, None))
        rounds = iter(range(1, 200))

        def is_gone(topic: str) -> bool:
            number = next(rounds)
            for each in ("held", "free"):
                compacted(cluster, each, number)
            return values_of(cluster, topic, GONE) == []

        wait_until(lambda: is_gone("free"), "the tombstone left the bucket where all replicas clean", 120)
        assert values_of(cluster, "held", GONE) == [None]
        assert cluster.stop(LAZY) == 0
        cluster.start(LAZY)
        wait_until(lambda: is_gone("held"), "the tombstone left the bucket", 120)
