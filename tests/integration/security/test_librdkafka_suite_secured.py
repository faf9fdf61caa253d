"""librdkafka's own tests over SASL_SSL, on three brokers of `serve --secure`: passwords, tokens, certificates, ACLs.

Proves that every test of theirs which a secured cluster can run passes: all ordinary ones with a password, those of
logins (also again and again on one connection, and with tokens of an endpoint), of certificates, and of ACLs and users.
Of their tests these are left out:

- 0016, 0052 and 0098 skip themselves where a client has to log in; `clients/test_librdkafka_suite.py` runs them.
- 0120, 0150 and others ask a mock cluster of librdkafka's, which has no TLS, and no broker.
- 0097 with mutual TLS, for a client whose certificate nobody trusts: it asks that this certificate is not even sent. A
  client knows that from the names of authorities in the broker's CertificateRequest, which Python's `ssl` leaves out.
  It is refused by the alert unknown_ca (`test_tls_clients.py`). The test runs over SASL_SSL here.
- 0081 for configs of groups, which belong to the new group protocol (KIP-848).
- The second half of 0115: it fails where the refusal of its first record comes before it sent the second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.clients.librdkafka_suite import (
    ALWAYS_LEFT_OUT,
    SETTINGS,
    LibrdkafkaSuite,
    Outcome,
    require_librdkafka_suite,
)
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.net.certificates import Authority, Signed
from tests.support.net.token_endpoint import CLIENT, KEY_PASSWORD, SCOPE, TokenEndpoint, token_endpoint
from tests.support.processes.broker_lives import brokers
from tests.support.security.suite_cluster import USER, SuiteCluster, suite_cluster

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]

LEFT_OUT = {
    **ALWAYS_LEFT_OUT,
    "0081_admin": "below, with ACLs",
    "0097_ssl_verify": "below, with certificates",
    "0126_oauthbearer_oidc": "below, with tokens",
    "0142_reauthentication": "below: its clients have to log in again every few seconds",
}
WHOLE = ("0018", "0019", "0026", "0050", "0061", "0102", "0137")
"""Of groups: they have only parts that a quick run leaves out. Others of this kind take many minutes each (0113)."""
LOGINS = {
    "SCRAM-SHA-512": ("0103_transactions", "0135_sasl_credentials", "0142_reauthentication"),
    "OAUTHBEARER": ("0103_transactions", "0126_oauthbearer_oidc", "0142_reauthentication"),
}
WITHOUT_BROKER = (
    "0004_conf",
    "0080_admin_ut",
    "0097_ssl_verify_local",
    "0124_openssl_invalid_engine",
    "0128_sasl_callback_queue",
    "0133_ssl_keys",
    "0134_ssl_provider",
)
PARTS = ("Acls", "UserScramCredentials", "DescribeTopics", "DescribeCluster", "authorized_ops", "DeleteGroups")
"""Of 0081, by the names of its functions."""
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_SESSION = {"connections.max.reauth.ms": 4000}
_KEY = "of-the-key"


@pytest.fixture
def suite() -> LibrdkafkaSuite:
    require_kafka()
    return require_librdkafka_suite()


@contextlib.contextmanager
def secured(folder: Path, **more: object) -> Iterator[SuiteCluster]:
    with suite_cluster(folder, {**SETTINGS, **more}) as found:
        yield found


def passed(results: dict[str, Outcome], printed: str, logs: str) -> set[str]:
    """Those that did something; AssertionError where one failed."""
    failed = {name: of for name, of in results.items() if of.state == "FAILED"}
    assert not failed, f"{failed}\n{printed[-20_000:]}\n{logs[-8_000:]}"
    return {name for name, of in results.items() if of.state == "PASSED" and of.seconds > 0}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_all_that_need_a_broker(suite: LibrdkafkaSuite, tmp_path: Path, mechanism: str) -> None:
    """The quick parts of each."""
    with secured(tmp_path) as ours:
        configs = ours.librdkafka(mechanism)
        tools = {"KAFKA_COMMAND_CONFIG": str(ours.admin)}
        results, printed = suite.run(tmp_path, configs, left_out=LEFT_OUT, at_once=3, timeout_s=900, environment=tools)
        logs = ours.brokers.logs()
    done = passed(results, printed, logs)
    assert {"0011_produce_batch", "0030_offset_commit", "0090_idempotence", "0103_transactions"} <= done
    assert LEFT_OUT.keys() <= results.keys(), "a test that is left out is none of theirs any more"
    assert len(done) > 50


def test_those_of_groups(suite: LibrdkafkaSuite, tmp_path: Path) -> None:
    """Whole."""
    with secured(tmp_path) as ours:
        configs = ours.librdkafka("SCRAM-SHA-256")
        tools = {"KAFKA_COMMAND_CONFIG": str(ours.admin)}
        results, printed = suite.run(
            tmp_path, configs, chosen=WHOLE, at_once=3, timeout_s=900, is_quick=False, environment=tools
        )
        logs = ours.brokers.logs()
    done = passed(results, printed, logs)
    assert {name.partition("_")[0] for name in done} == set(WHOLE)


def _of_tokens(endpoint: TokenEndpoint) -> tuple[dict[str, object], dict[str, str]]:
    """Configs of clients that get tokens there, and what the tests want to know of it."""
    configs: dict[str, object] = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT[0],
        "sasl.oauthbearer.client.secret": CLIENT[1],
        "sasl.oauthbearer.scope": SCOPE,
        "sasl.oauthbearer.token.endpoint.url": endpoint.valid,
        "sasl.oauthbearer.extensions": "cluster=one,pool=two",
    }
    return configs, {
        "VALID_OIDC_URL": endpoint.valid,
        "INVALID_OIDC_URL": endpoint.malformed,
        "EXPIRED_TOKEN_OIDC_URL": endpoint.expired,
        "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(endpoint.key_file),
        "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(endpoint.encrypted_key_file),
        "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": KEY_PASSWORD,
    }


@pytest.mark.parametrize("mechanism", LOGINS)
def test_those_of_logins(suite: LibrdkafkaSuite, tmp_path: Path, mechanism: str) -> None:
    """Wrong passwords and tokens, sessions of four seconds, and transactions that outlive them."""
    with secured(tmp_path, **_SESSION) as ours, token_endpoint(tmp_path, USER) as endpoint:
        with_tokens, environment = _of_tokens(endpoint) if mechanism == "OAUTHBEARER" else ({}, {})
        results, printed = suite.run(
            tmp_path,
            ours.librdkafka(mechanism) | with_tokens,
            chosen=LOGINS[mechanism],
            at_once=2,
            timeout_s=600,
            is_quick=False,
            environment=environment,
        )
        logs = ours.brokers.logs()
    assert set(LOGINS[mechanism]) <= passed(results, printed, logs)
    assert "Skipping OIDC" not in printed


def _certificates(folder: Path, ca_file: str) -> tuple[dict[str, object], dict[str, str]]:
    """Configs of clients that have a certificate, and the files that 0097 wants: in each encoding."""
    signed, trusted = Authority().sign("client"), Path(ca_file).read_text()
    root = x509.load_pem_x509_certificate(trusted.encode())

    def write(name: str, content: bytes | str) -> str:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(folder / name)

    files = {
        "SSL_all_cas_pem": write("cas.pem", trusted + Authority("Another CA").pem),
        "SSL_ca_der": write("ca.der", root.public_bytes(Encoding.DER)),
        "SSL_pub_pem": write("client.pem", signed.chain_pem),
        "SSL_pub_der": write("client.der", signed.der),
        "SSL_priv_pem": write("key.pem", signed.key_pem(_KEY)),
        "SSL_pkcs": write("client.p12", Signed(signed.key, signed.certificate, (root,)).pkcs12(_KEY)),
    }
    configs: dict[str, object] = {
        "ssl.certificate.location": files["SSL_pub_pem"],
        "ssl.key.location": files["SSL_priv_pem"],
        "ssl.key.password": _KEY,
    }
    return configs, {**files, "SSL_password": _KEY}


def test_those_of_certificates_and_configs(suite: LibrdkafkaSuite, tmp_path: Path) -> None:
    """Keys and trust in files, in configs and in memory, as PEM, DER and PKCS#12; also those that need no broker."""
    with secured(tmp_path) as ours:
        configs, environment = _certificates(tmp_path, ours.ca_file)
        results, printed = suite.run(
            tmp_path,
            ours.librdkafka("SCRAM-SHA-256") | configs,
            chosen=("0097_ssl_verify", *WITHOUT_BROKER),
            at_once=2,
            timeout_s=300,
            is_quick=False,
            environment=environment,
        )
        logs = ours.brokers.logs()
    assert {"0097_ssl_verify", *WITHOUT_BROKER} <= passed(results, printed, logs)


def test_those_of_acls_and_users(suite: LibrdkafkaSuite, tmp_path: Path) -> None:
    """ACLs and passwords are added, described and deleted; what a client may do is what its ACLs say."""
    with secured(tmp_path) as ours:
        for part in PARTS:
            results, printed = suite.run(
                tmp_path,
                ours.librdkafka("SCRAM-SHA-512"),
                chosen=("0081_admin",),
                at_once=1,
                timeout_s=200,
                environment={"SUBTESTS": part},
            )
            assert "0081_admin" in passed(results, printed, ours.brokers.logs())
            assert ": PASS" in printed, f"{part} is no part of theirs any more"


def test_those_that_ask_the_acl_tool(suite: LibrdkafkaSuite, tmp_path: Path) -> None:
    """By `kafka-acls.sh`, with clients that do not log in: so they are written."""
    with brokers(tmp_path, 3, {**SETTINGS, **AUTHORIZER}) as ours:
        results, printed = suite.run(
            tmp_path,
            {"bootstrap.servers": ours.bootstrap},
            chosen=("0109_auto_create_topics", "0115_producer_auth", "0119_consumer_auth"),
            at_once=3,
            timeout_s=300,
            is_quick=False,
        )
        logs = ours.log()
    assert "Test producer auth with topic known: PASS" in printed
    del results["0115_producer_auth"]
    assert {"0109_auto_create_topics", "0119_consumer_auth"} <= passed(results, printed, logs)
