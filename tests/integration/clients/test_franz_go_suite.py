"""franz-go's own tests against brokers of ours: its client, groups, and chains of transactions (`TestTxnEtl`).

`TestTxnEtl` copies a topic three times over, one consumer group after the other, in transactions that commit what they
wrote together with their positions, while members come and go: each record comes out once, in order. `TestGroupETL`
does it without transactions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.franz_go_suite import require_franz_go_suite
from tests.support.processes.broker_lives import brokers

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]

RECORDS = 50_000

_KIP_848 = "the new group protocol (KIP-848) is not served yet"
_SHARE = "share groups (KIP-932) are not served yet"
_AUTHENTICATION = "authentication is not served yet"
SKIPPED = {
    "Test848RegexBrokerResolves": _KIP_848,
    "TestGroupETL/range/848": _KIP_848,
    "TestGroupETL/sticky/848": _KIP_848,
    "TestGroupETL/sticky/848/static": _KIP_848,
    "TestGroupSimple/848": _KIP_848,
    "TestTxnEtl/range/848": _KIP_848,
    "TestTxnEtl/sticky/848": _KIP_848,
    "TestTxnEtl/sticky/848/static": _KIP_848,
    "TestConsumeRegexShareSkipsInternal": _SHARE,
    "TestShareGroup": _SHARE,
    "TestShareGroupAckOnClose": _SHARE,
    "TestShareGroupETL": _SHARE,
    "TestShareGroupOffsetsAdmin": _SHARE,
    "TestOAuthAuth": _AUTHENTICATION,
    "TestSCRAMAuth": _AUTHENTICATION,
    "TestSCRAMAuthBadCredentials": _AUTHENTICATION,
    "TestIssueProduceBrokerTooOldFailsRecords": "Produce 0 to 2 are advertised, as Kafka does (KAFKA-18659)",
}


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_franz_gos_tests_pass(tmp_path: Path, count: int) -> None:
    """All of package kgo; nothing skips itself but what is named above."""
    suite = require_franz_go_suite(tmp_path)
    with brokers(tmp_path, count) as ours:
        results = suite.run(ours.bootstrap, ".", replicas=ours.replicas, records=RECORDS, timeout_s=900)
    assert {name for name, result in results.items() if result == "SKIP"} == SKIPPED.keys()
    assert results["TestTxnEtl"] == results["TestGroupETL"] == "PASS"
    assert len(results) > 500
