"""follower.replication.throttled.rate of three real brokers, measured in bytes of /metrics (KIP-73)."""

from __future__ import annotations

import os
import time
import urllib.request

from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from broker.wire.apis import ApiKey
from broker.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
)
from tests.support.processes.three_brokers import Three
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

TOPIC, BROKER, SET, DELETE = 2, 4, 0, 1
RATE = 1_000_000
ANSWER = 1 << 20  # what one question lets: a second's worth, or a MiB
WRITTEN = 8_000_000
LATE = 3


def set_config(cluster: Three, kind: int, name: str, config: str, value: str | None) -> None:
    host, _, port = cluster.brokers[1].kafka.rpartition(":")
    change = IncrementalAlterConfigsRequestConfig(config, DELETE if value is None else SET, value)
    resource = IncrementalAlterConfigsRequestResource(kind, name, [change])
    with WireClient(host, int(port), timeout_s=30.0) as asked:
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = asked.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == 0, answer


def copied(cluster: Three) -> int:
    """Bytes that leaders sent to replicas of the late broker, since its start."""
    with urllib.request.urlopen(f"http://{cluster.brokers[LATE].http}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return next(
        int(family.samples[0].value) for family in families if family.name == "thermocline_replication_bytes_in"
    )


def write(cluster: Three, size: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.everywhere, "acks": "all", "linger.ms": 5})
    failures: list[object] = []
    for number in range(size // 10_000):
        producer.produce(
            "late",
            os.urandom(10_000),
            partition=number % 2,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(30) == 0 and not failures


def test_a_replica_that_comes_back_is_copied_at_the_rate_that_is_set(cluster: Three) -> None:
    """8 MB of two leaders at 1 MB a second; acks=all goes on meanwhile, and the rest comes at once without it."""
    cluster.create("late", 2, remote_storage_enable="false")
    cluster.kill(LATE)
    cluster.wait(lambda: all(LATE not in row.in_sync for row in cluster.rows("late")), "it left the in-sync sets")
    write(cluster, WRITTEN)
    set_config(cluster, TOPIC, "late", "follower.replication.throttled.replicas", "*")
    set_config(cluster, BROKER, "", "follower.replication.throttled.rate", str(RATE))
    cluster.start(LATE)
    samples = [(time.monotonic(), copied(cluster))]

    def has_copied(size: int) -> bool:
        samples.append((time.monotonic(), copied(cluster)))
        return samples[-1][1] >= size

    wait_until(lambda: has_copied(4_000_000), "half of it is copied")
    began_s, begun = samples[0]
    for at_s, size in samples:
        assert size - begun <= RATE * (at_s - began_s + 1) + 2 * ANSWER, samples
    took_s, size = samples[-1][0] - began_s, samples[-1][1] - begun
    assert size / took_s > 0.5 * RATE, "nor much slower"
    assert all(LATE not in row.in_sync for row in cluster.rows("late"))
    write(cluster, 100_000)
    set_config(cluster, BROKER, "", "follower.replication.throttled.rate", None)
    cluster.wait(lambda: all(LATE in row.in_sync for row in cluster.rows("late")), "all of it", 10)
    print(f"{size} bytes in {took_s:.2f} s: {size / took_s / 1e6:.2f} MB/s")
