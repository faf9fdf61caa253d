"""kafka-python's own integration tests against a broker of ours: producers (transactional ones, too), consumers, admin.

Proves that every test of theirs which asks for what is served passes; those that do not are named, with the reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.kafka_python_suite import OF_CLIENTS, require_kafka_python_suite
from tests.support.processes.broker_process import running_broker
from tests.support.processes.ports import free_port

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

REFUSED = {
    "test_admin_integration::test_describe_metadata_quorum": "DescribeQuorum is not served: there is no Raft quorum",
}


def test_kafka_pythons_integration_tests_pass(tmp_path: Path) -> None:
    """As their brokers are: node 0, four partitions to a new topic, quick groups, a listener that is named."""
    suite = require_kafka_python_suite(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "advertised.listeners": f"PLAINTEXT://{address}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with running_broker(tmp_path / "data", None, "--node-id", "0", listen=address, settings=settings) as broker:
        results, printed = suite.run(OF_CLIENTS, {"KAFKA_URI": f"kafka://{broker.kafka}"}, timeout_s=500)
    failed = {name for name, result in results.items() if result in ("FAILED", "ERROR")}
    assert failed == REFUSED.keys(), f"{failed}\n{printed[-20_000:]}"
    of_transactions = [name for name in results if "test_transactional" in name]
    assert len(of_transactions) == 2 and len(results) > 50, results
