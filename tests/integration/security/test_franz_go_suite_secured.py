"""franz-go's own tests over SASL_SSL, on three brokers of `serve --secure`, and those of logins by token.

Its tests over mutual TLS, and those of logins by SCRAM without TLS, are in `clients/test_franz_go_suite.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.network.sasl import UNSECURED_VALIDATOR
from tests.support.clients.franz_go_suite import SKIPPED, require_franz_go_suite
from tests.support.processes.broker_lives import COMPACTING
from tests.support.processes.broker_process import running_broker
from tests.support.processes.sasl_site import write_properties
from tests.support.security.suite_cluster import PASSWORD, USER, suite_cluster

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]

RECORDS = 10_000
LEFT_OUT = ("TestIssue769",)  # its client has a dialer of its own, beside which TLS is refused


def test_franz_gos_tests_pass(tmp_path: Path) -> None:
    """All of package kgo: every client logs in by SCRAM-SHA-512; chains of transactions, groups, faults."""
    suite = require_franz_go_suite(tmp_path, logs_in=True)
    with suite_cluster(tmp_path, COMPACTING) as ours:
        results = suite.run(
            ours.brokers.everywhere,
            ".",
            environment={"KGO_TEST_TLS": f"ca:{ours.ca_file}", "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}:512"},
            left_out=LEFT_OUT,
            replicas=3,
            records=RECORDS,
            timeout_s=900,
        )
    assert {name for name, result in results.items() if result == "SKIP"} == SKIPPED.keys()
    assert results["TestTxnEtl"] == results["TestGroupETL"] == "PASS"
    assert len(results) > 500


def test_franz_gos_test_of_tokens_passes(tmp_path: Path) -> None:
    """A token that nobody signed, where a listener is told to believe it; and the reason why an expired one is not."""
    suite = require_franz_go_suite(tmp_path)
    lines = (
        f"listener.name.out.oauthbearer.sasl.server.callback.handler.class={UNSECURED_VALIDATOR}",
        "listener.name.out.sasl.enabled.mechanisms=OAUTHBEARER",
        "offsets.topic.num.partitions=1",
    )
    config = write_properties(tmp_path)
    kept = [line for line in config.read_text().splitlines() if not line.startswith("listener.name.out.")]
    config.write_text("\n".join((*kept, *lines)) + "\n")
    with running_broker(tmp_path / "data", None, "--config", str(config), listen=None) as broker:
        where = {"KGO_TEST_OAUTH_SEEDS": broker.kafka}
        results = suite.run(broker.kafka, "^TestOAuth", replicas=1, records=1, timeout_s=120, environment=where)
    assert results == {"TestOAuthAuth": "PASS"}
