"""franz-go's own tests against brokers of ours: its client, groups, and chains of transactions (`TestTxnEtl`).

`TestTxnEtl` copies a topic three times over, one consumer group after the other, in transactions that commit what they
wrote together with their positions, while members come and go: each record comes out once, in order. `TestGroupETL`
does it without transactions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.franz_go_suite import SKIPPED, require_franz_go_suite
from tests.support.net.certificates import Authority
from tests.support.processes.broker_lives import brokers
from tests.support.processes.broker_process import running_broker
from tests.support.processes.sasl_site import BROKER, PASSWORD, command_config, write_properties
from tests.support.processes.site import thermocline

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]

RECORDS = 50_000


def mutual_tls(folder: Path) -> tuple[dict[str, object], dict[str, str]]:
    """Settings of brokers that want their clients' certificate, and the environment of tests that show one."""
    authority = Authority()
    client, trusted = authority.sign("client").write(folder / "client.pem"), authority.write(folder / "ca.pem")
    settings: dict[str, object] = {
        "ssl.keystore.location": authority.sign("broker").write(folder / "broker.pem"),
        "ssl.truststore.location": trusted,
        "ssl.client.auth": "required",
        "security.inter.broker.protocol": "SSL",
    }
    return settings, {"KGO_TEST_TLS": f"ca:{trusted},cert:{client},key:{client}"}


@pytest.mark.parametrize(
    ("count", "over_tls"), [(1, False), (3, False), (3, True)], ids=["one", "three", "three-mutual-tls"]
)
def test_franz_gos_tests_pass(tmp_path: Path, count: int, over_tls: bool) -> None:
    """All of package kgo; nothing skips itself but what is named above."""
    suite = require_franz_go_suite(tmp_path)
    settings, environment = mutual_tls(tmp_path) if over_tls else ({}, {})
    left_out = ("TestIssue769",) if over_tls else ()  # its client has a dialer of its own, beside which TLS is refused
    with brokers(tmp_path, count, settings, scheme="SSL://" if over_tls else "") as ours:
        results = suite.run(
            ours.bootstrap,
            ".",
            environment=environment,
            left_out=left_out,
            replicas=ours.replicas,
            records=RECORDS,
            timeout_s=900,
        )
    assert {name for name, result in results.items() if result == "SKIP"} == SKIPPED.keys()
    assert results["TestTxnEtl"] == results["TestGroupETL"] == "PASS"
    assert len(results) > 500


def test_franz_gos_tests_of_logins_pass(tmp_path: Path) -> None:
    """A right login, and a wrong one, by SCRAM-SHA-256 without TLS."""
    suite = require_franz_go_suite(tmp_path)
    config = write_properties(tmp_path)
    with running_broker(tmp_path / "data", None, "--config", str(config), listen=None) as broker:
        admin = str(command_config(tmp_path, "SCRAM-SHA-512", BROKER))
        made = thermocline(
            *("user", "add", "alice", "--mechanism", "SCRAM-SHA-256", "--password-file", "-"),
            *("-b", broker.kafka, "--command-config", admin),
            stdin=PASSWORD,
        )
        assert made.returncode == 0, made.stderr
        where = {"KGO_TEST_SCRAM_SEEDS": broker.kafka, "KGO_TEST_SCRAM": f"alice:{PASSWORD}"}
        results = suite.run(broker.kafka, "^TestSCRAM", replicas=1, records=1, timeout_s=120, environment=where)
    assert results == {"TestSCRAMAuth": "PASS", "TestSCRAMAuthBadCredentials": "PASS"}
