"""kafka-python's own tests of SASL and of TLS, and all its tests of clients over SASL_SSL, on brokers of ours.

Proves that every test of theirs passes which asks for what is served. They start the brokers themselves: with key
stores that Java's keytool makes, and properties by Kafka's names.
"""

from __future__ import annotations

import shutil

import pytest

from tests.support.clients.kafka_python_suite import OF_CLIENTS, KafkaPythonSuite, require_kafka_python_suite

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

REFUSED = {
    "test_admin_integration::test_describe_metadata_quorum": "DescribeQuorum is not served: there is no Raft quorum",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> KafkaPythonSuite:
    missing = [name for name in ("keytool", "openssl") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"kafka-python's tests of TLS make their keys with {', '.join(missing)}, which is missing")
    return require_kafka_python_suite(tmp_path_factory.mktemp("suite"))


def failed(results: dict[str, str]) -> set[str]:
    return {name for name, result in results.items() if result in ("FAILED", "ERROR")}


def test_those_of_logins_and_certificates_pass(suite: KafkaPythonSuite) -> None:
    """Three mechanisms, each with an admin client, a producer and a consumer; a handshake, a client over TLS."""
    results, printed = suite.run(("sasl", "ssl"), {}, timeout_s=400)
    assert not failed(results), printed[-20_000:]
    tests = ("test_admin", "test_client", "test_produce_and_consume")
    expected = {f"test_sasl_integration::{test}[{mechanism}]" for test in tests for mechanism in MECHANISMS}
    passed = {name for name, result in results.items() if result == "PASSED"}
    assert expected <= passed and len(passed) == len(expected) + 2, results


def test_all_of_clients_pass_over_sasl_ssl(suite: KafkaPythonSuite) -> None:
    """Those of the plaintext suite, with a login and TLS at every broker."""
    secured = {"BROKER_TRANSPORT": "SASL_SSL", "BROKER_MECHANISM": "SCRAM-SHA-512"}
    results, printed = suite.run(OF_CLIENTS, secured, timeout_s=800)
    assert failed(results) == REFUSED.keys(), f"{failed(results)}\n{printed[-20_000:]}"
    assert len([name for name in results if "test_transactional" in name]) == 2 and len(results) > 50, results
