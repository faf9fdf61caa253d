"""Sarama's own functional tests against a broker of ours: what strangers think a Kafka broker does.

Proves that every test of theirs which asks for what is served passes, and that a test is left out by name only, with a
reason: a test of a newer Sarama, or one whose reason is gone, shows.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support.clients.sarama_suite import (
    FIRST_PROXY_PORT,
    LEFT_OUT,
    NODES,
    SEVERAL,
    FiveBrokers,
    proxies,
    require_suite,
    run_suite,
)
from tests.support.processes.broker_process import running_broker
from tests.support.processes.docker_stand_in import docker_stand_in
from tests.support.processes.ports import free_port
from tests.support.processes.site import Site
from tests.support.store.buckets import DirectoryBucket

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]


def test_saramas_functional_tests_pass(tmp_path: Path) -> None:
    """Producers, consumers, groups (also cooperative and static), the admin client, faults between them."""
    (tmp_path / "suite").mkdir()
    suite = require_suite(tmp_path / "suite")
    port = free_port()
    flags = ("--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{FIRST_PROXY_PORT}")
    settings = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": 0}
    with (
        running_broker(tmp_path / "data", None, *flags, settings=settings),
        proxies(suite, free_port(), [f"127.0.0.1:{port}"] * 5) as toxiproxy,
    ):
        asked = suite.names() - LEFT_OUT.keys() - SEVERAL
        results, printed = run_suite(suite, toxiproxy, asked, timeout_s=900)
    failed = {name: results.get(name, "never ended") for name in asked if results.get(name) != "PASS"}
    assert not failed, f"{failed}\n{printed[-20_000:]}"
    assert LEFT_OUT.keys() | SEVERAL <= suite.names(), "a test that is left out is none of theirs any more"


def test_saramas_tests_of_several_brokers_pass(tmp_path: Path) -> None:
    """Reassignments, elections, followers that are read from; a transaction, a group and an idempotent producer whose
    coordinator or leader is stopped."""
    (tmp_path / "suite").mkdir()
    suite = require_suite(tmp_path / "suite", 3)
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    site.settings |= {
        "auto.create.topics.enable": "false",
        "default.replication.factor": 2,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "thermocline.reservation.offsets": 1_000_000,
    }
    with contextlib.ExitStack() as stack:
        brokers = FiveBrokers(site, stack)
        actions = {"start": brokers.start, "stop": brokers.stop, "logs": brokers.log}
        programs = stack.enter_context(docker_stand_in(tmp_path / "programs", actions))
        toxiproxy = stack.enter_context(proxies(suite, free_port(), brokers.upstreams))
        results, printed = run_suite(suite, toxiproxy, SEVERAL, timeout_s=600, programs=programs)
        logs = "".join(f"--- {node_id}\n{brokers.log(node_id)[-4000:]}\n" for node_id in NODES)
    failed = {name: results.get(name, "never ended") for name in SEVERAL if results.get(name) != "PASS"}
    assert not failed, f"{failed}\n{printed[-20_000:]}\n{logs}"
