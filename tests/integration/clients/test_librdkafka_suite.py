"""librdkafka's own tests against three brokers of ours: producers, idempotent and transactional ones, groups, admin.

Proves that every test of theirs which asks for what is served passes; one is left out by name only, with a reason. Of
transactions are 0098 (a Java producer's, read by librdkafka at either isolation level) and 0103.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.librdkafka_suite import ALWAYS_LEFT_OUT, SETTINGS, require_librdkafka_suite
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_lives import brokers

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(2400)]

_ACLS = "needs an authorizer, and these brokers have none: tests/integration/security/test_librdkafka_suite_secured.py"
LEFT_OUT = {
    **ALWAYS_LEFT_OUT,
    "0081_admin": _ACLS,
    "0109_auto_create_topics": _ACLS,
    "0115_producer_auth": _ACLS,
    "0119_consumer_auth": _ACLS,
}


def test_librdkafkas_tests_pass(tmp_path: Path) -> None:
    """All that need a broker, but for those named above; four at once."""
    require_kafka()
    suite = require_librdkafka_suite()
    with brokers(tmp_path, 3, SETTINGS) as ours:
        results, printed = suite.run(
            tmp_path, {"bootstrap.servers": ours.bootstrap}, left_out=LEFT_OUT, at_once=4, timeout_s=900
        )
        logs = ours.log()
    failed = {name: of for name, of in results.items() if of.state == "FAILED"}
    assert not failed, f"{failed}\n{printed[-20_000:]}\n{logs[-8_000:]}"
    assert LEFT_OUT.keys() <= results.keys(), "a test that is left out is none of theirs any more"
    passed = [name for name, of in results.items() if of.state == "PASSED" and of.seconds > 0]
    assert {"0098_consumer_txn", "0103_transactions", "0090_idempotence", "0113_cooperative_rebalance"} <= set(passed)
    assert len(passed) > 50
