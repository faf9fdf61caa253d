"""Sarama's own functional tests against a broker of ours: what strangers think a Kafka broker does.

Proves that every test of theirs which asks for what is served passes, and that a test is left out by name only, with a
reason: a test of a newer Sarama, or one whose reason is gone, shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.sarama_suite import FIRST_PROXY_PORT, proxies, require_suite, run_suite
from tests.support.processes.broker_process import running_broker
from tests.support.processes.ports import free_port

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]

_DOCKER = "starts and stops brokers through Docker"
_BROKERS = "needs a second broker"
_CONTAINERS = "runs Java in Docker's containers"
LEFT_OUT = {
    "TestConsumerFetchFollowerFailover": _BROKERS,
    "TestFuncAdminAlterPartitionReassignments": _BROKERS,
    "TestFuncAdminDescribeLogDirs": "needs five brokers",
    "TestFuncAdminElectLeadersV1": _BROKERS,
    "TestFuncAdminListConsumerGroupOffsets": _DOCKER,
    "TestFuncIdempotentBufferedSequence": _DOCKER,
    "TestFuncAdminQuotas": "quotas are not served yet",
    "TestFuncAdminUpdateFeatures": "UpdateFeatures is not served: there are no features to update",
    "TestFuncProducingNoResponse": "sends Produce 13 without asking which versions are served",
    "TestFuncJavaInteropCooperativeRebalance": _CONTAINERS,
    "TestJavaConsumerCompressionRoundTrip": _CONTAINERS,
    "TestJavaMurmur2PartitionerInterop": _CONTAINERS,
    "TestJavaProducerCompressionRoundTrip": _CONTAINERS,
    "TestReadOnlyAndAllCommittedMessages": "skips itself; its records are in no transaction (Kafka shows them, too)",
    "TestFuncTxnProduceWithBrokerFailure": _DOCKER,
}


def test_saramas_functional_tests_pass(tmp_path: Path) -> None:
    """Producers, consumers, groups (also cooperative and static), the admin client, faults between them."""
    (tmp_path / "suite").mkdir()
    suite = require_suite(tmp_path / "suite")
    port = free_port()
    flags = ("--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{FIRST_PROXY_PORT}")
    settings = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": 0}
    with (
        running_broker(tmp_path / "data", None, *flags, settings=settings),
        proxies(suite, free_port(), f"127.0.0.1:{port}") as toxiproxy,
    ):
        asked = suite.names() - LEFT_OUT.keys()
        results, printed = run_suite(suite, toxiproxy, asked, timeout_s=900)
    failed = {name: results.get(name, "never ended") for name in asked if results.get(name) != "PASS"}
    assert not failed, f"{failed}\n{printed[-20_000:]}"
    assert LEFT_OUT.keys() <= suite.names(), "a test that is left out is none of theirs any more"
