"""A broker whose store fails in every way it can (faults O1–O5; G1, G6, G7, G12, G13).

moto here; versitygw and LocalStack, the longer mixture and every rate in the tests marked `peer` and `slow`. What the
operations that a broker seldom sends do under each fault is in test_store_faults_operations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, await_ready
from tests.support.buckets import Stores
from tests.support.fault_proxy_trial import DRAINS_S, SETTINGS, STEADY, Trial, mixed, pairs
from tests.support.site import QUICK, Site, wait_snapshot
from tests.support.stock_clients import (
    Written,
    commit_offset,
    committed_offset,
    create_topic,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.waiting import wait_until

P99_DURING_MS = 250.0  # or twice what it is without faults, on a machine that does much else
REFUSED_PER_S = 60.0  # what the store still sees when it refuses everything; without faults it is some 180
STRUCK_AT_START = 8
KINDS = ("moto", pytest.param("versitygw", marks=pytest.mark.peer), pytest.param("localstack", marks=pytest.mark.peer))


@pytest.fixture(params=KINDS)
def s3_site(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Site]:
    with stores.bucket(request.param, tmp_path, delay_ms=0) as bucket:
        yield Site(tmp_path, bucket, {**QUICK, **SETTINGS})


def operations_of(site: Site) -> tuple[str, ...]:
    """A store that refuses a wrong checksum is asked by HEAD what it holds; moto takes anything, and is read back."""
    probed = site.cli("bucket", "probe", site.bucket.url)
    return (*STEADY, "head") if "HEAD (" in probed.stdout else STEADY


def test_every_fault_on_every_operation(s3_site: Site) -> None:
    """Nothing acknowledged is lost, doubled or changed; produce does not notice; no storm of retries; all drains."""
    trial = Trial(s3_site)
    operations = operations_of(s3_site)
    with s3_site.broker() as broker:
        trial.prepare(broker)
        with trial.load(broker) as load:
            trial.calm(load, 2.0)
            began = time.monotonic()
            trial.strike(pairs(operations), 0.5, 40.0)
            trial.refuse_everything(3.0)
            healed = trial.heal(load, began)
        trial.await_drained(broker, healed)
        trial.check_records(broker, load)
        assert broker.stop() == 0
    trial.check_bucket()
    print(trial.figures.printed(s3_site.bucket.url))
    assert trial.figures.p99_during_ms <= max(P99_DURING_MS, 2 * trial.figures.p99_before_ms)
    assert trial.figures.refused_per_s <= REFUSED_PER_S


@pytest.mark.slow
def test_bursts_from_1_to_100_percent(s3_site: Site) -> None:
    """500, 503 and 409 at 1, 10, 50 and 100 %: produce goes on at each, and what the store sees grows with none."""
    trial = Trial(s3_site)
    with s3_site.broker() as broker:
        trial.prepare(broker)
        with trial.load(broker) as load:
            trial.calm(load, 3.0)
            began = time.monotonic()
            for rate in (0.01, 0.1, 0.5, 1.0):
                for code in (500, 503, 409):
                    trial.burst(load, code, rate, 3.0)
            healed = trial.heal(load, began)
        trial.await_drained(broker, healed)
        trial.check_records(broker, load)
        assert broker.stop() == 0
    trial.check_bucket()
    print(trial.figures.printed(s3_site.bucket.url))
    assert trial.figures.p99_worst_ms <= max(P99_DURING_MS, 2 * trial.figures.p99_before_ms)


@pytest.mark.slow
def test_faults_from_the_first_request_on(s3_site: Site) -> None:
    """A store that fails a fifth of what it is asked refuses no broker: it waits, says so, and comes up; again when
    there is something to recover."""
    proxy, topic, count = s3_site.bucket.proxy, "events", 100
    assert proxy is not None
    written = [Written(b"%d" % n, bytes((n + i) % 251 for i in range(1000))) for n in range(count)]
    before = proxy.counts().hits
    for life in range(2):
        proxy.faults(*mixed(pairs((*STEADY, "head", "get_whole")), 0.2))
        with s3_site.broker(wait_ready=False) as broker:
            struck = proxy.counts().hits.total()

            def struck_or_ended(struck: int = struck, broker: BrokerProcess = broker) -> bool:
                assert broker.process.poll() is None, broker.log()[-4000:]
                return proxy.counts().hits.total() - struck >= STRUCK_AT_START

            wait_until(struck_or_ended, "faults at the start", 60)
            proxy.faults()
            await_ready(broker, DRAINS_S)
            if life == 0:
                create_topic(broker.kafka, topic, internal_segment_bytes=65_536, local_retention_ms=1)
                write_confluent(broker.kafka, topic, 0, written[: count // 2], "none", True)
                commit_offset(broker.kafka, "readers", topic, 0, 7)
                wait_snapshot(s3_site.bucket, end_offsets(broker.kafka, "__consumer_offsets", 1)[0])
                broker.kill()
                continue
            write_confluent(broker.kafka, topic, 0, written[count // 2 :], "none", True)
            found = read_confluent(broker.kafka, topic, {0: count})
            assert [record.value for record in found] == [record.value for record in written]
            assert committed_offset(broker.kafka, "readers", topic, 0) == 7
            assert broker.stop() == 0
    hits = proxy.counts().hits - before
    print("struck at start:", dict(Counter(operation for operation, _ in hits.elements())))
    assert hits.total() >= 2 * STRUCK_AT_START
