"""`--command-config` and `-X`: Java's and librdkafka's names mean the same; what cannot be done is refused by name."""

from __future__ import annotations

import re

import pytest

from broker.config.network.sasl import PasswordLogin, TokenLogin
from broker.security_protocol import SecurityProtocol
from thermocline.cli.clients.client_properties import _SECRETS, read_properties
from thermocline.cli.clients.librdkafka_names import NAMES
from thermocline.cli.terminal.outcome import CommandFailed, Exit

SECRET = "hunter2-of-this-test"
JAVA = f"""
bootstrap.servers=broker.example:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="alice" password="{SECRET}";
ssl.truststore.location=/etc/ca.pem
ssl.truststore.type=PEM
ssl.keystore.location=/etc/me.pem
ssl.keystore.type=PEM
ssl.key.password=k
ssl.endpoint.identification.algorithm=
key.serializer=org.apache.kafka.common.serialization.StringSerializer
default.api.timeout.ms=60000
request.timeout.ms=20000
"""
LIBRDKAFKA = f"""
security.protocol=sasl_ssl
sasl.mechanisms=SCRAM-SHA-512
sasl.username=alice
sasl.password={SECRET}
ssl.ca.location=/etc/ca.pem
ssl.certificate.location=/etc/me.pem
ssl.key.location=/etc/me.pem
ssl.key.password=k
ssl.endpoint.identification.algorithm=none
request.timeout.ms=20000
"""


def test_javas_names_and_librdkafkas_mean_the_same() -> None:
    """For our own client and, by its names, for librdkafka; Java's other names are left out."""
    java, ours = read_properties(JAVA, []), read_properties(LIBRDKAFKA, [])
    assert java.protocol is ours.protocol is SecurityProtocol.SASL_SSL
    assert java.login == ours.login == PasswordLogin("SCRAM-SHA-512", "alice", SECRET)
    assert java.tls == ours.tls and java.tls.ca_file == "/etc/ca.pem" and not java.tls.checks_name
    assert java.bootstrap == "broker.example:9093" and ours.bootstrap is None
    same = {"sasl.mechanism", "sasl.mechanisms", "security.protocol"}
    assert {k: v for k, v in java.librdkafka.items() if k not in same} == {
        k: v for k, v in ours.librdkafka.items() if k not in same
    }
    assert SECRET not in repr(java)


def test_a_flag_wins_over_the_file() -> None:
    found = read_properties(LIBRDKAFKA, [("sasl.username", "bob"), ("client.id", "x"), ("no.such", "y")])
    assert found.login == PasswordLogin("SCRAM-SHA-512", "bob", SECRET)
    assert found.librdkafka["client.id"] == "x" and found.librdkafka["no.such"] == "y"


def test_without_a_file_everything_is_plaintext() -> None:
    assert read_properties(None, []).protocol is SecurityProtocol.PLAINTEXT
    assert read_properties(None, []).login is None


def test_a_token_file_of_oauthbearer() -> None:
    text = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.jaas.config="
        'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required tokenFile="/run/t";'
    )
    assert read_properties(text, []).login == TokenLogin("/run/t")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.password", SECRET),
        ("ssl.key.password", SECRET),
        ("ssl.key.pem", SECRET),
        ("sasl.oauthbearer.client.secret", SECRET),
        ("thermocline.http.token", SECRET),
        ("sasl.jaas.config", f'x.PlainLoginModule required username="a" password="{SECRET}";'),
        ("sasl.oauthbearer.config", f"clientSecret={SECRET}"),
    ],
)
def test_a_secret_is_no_argument(name: str, value: str) -> None:
    """Other users of the machine see it (S9). The message says where it belongs, and does not repeat it."""
    with pytest.raises(CommandFailed, match="THERMOCLINE_COMMAND_CONFIG") as refused:
        read_properties(None, [(name, value)])
    assert refused.value.code == Exit.USAGE and SECRET not in str(refused.value)


def test_every_name_of_a_secret_is_known() -> None:
    """Of librdkafka's configs those that have secrets by their names; a new version's would be missed."""
    like = re.compile(r"password|secret$|passphrase|key\.pem|\.key$")
    assert {name for name in NAMES if like.search(name)} - _SECRETS == set()


def test_a_file_of_a_token_is_named_by_an_argument() -> None:
    text = 'x.OAuthBearerLoginModule required tokenFile="/run/t";'
    given = [("security.protocol", "SASL_SSL"), ("sasl.mechanism", "OAUTHBEARER"), ("sasl.jaas.config", text)]
    assert read_properties(None, given).login == TokenLogin("/run/t")


@pytest.mark.parametrize(
    ("text", "extra", "says"),
    [
        ("security.protocol=TLS", [], "security.protocol: TLS is none of"),
        ("security.protocl=SSL", [], "the nearest is security.protocol"),
        (None, [("sasl.pasword", SECRET)], "-X sasl.pasword: librdkafka has no such config; the nearest is sasl"),
        (None, [("bootstrap.servers", "x:1")], "-X bootstrap.servers: use -b"),
        ("security.protocol=SASL_SSL", [], "GSSAPI is not served"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", [], "needs sasl.username and sasl.password"),
        (f"sasl.jaas.config=x required password='{SECRET}'", [], "sasl.jaas.config: no closing"),
        (f"sasl.jaas.config=x required password='{SECRET}';", [], 'username="…" or password="…" is missing'),
        ("ssl.truststore.location=/x/trust.jks", [], "OpenSSL does not read"),
        ("ssl.truststore.location=/x/trust.p12\nssl.truststore.type=PKCS12", [], "openssl pkcs12"),
        ("ssl.engine.factory.class=x.Y", [], "librdkafka has no such config"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str | None, extra: list[tuple[str, str]], says: str) -> None:
    """Wrong usage, with what to write; never with a secret."""
    with pytest.raises(CommandFailed) as refused:
        read_properties(text, extra)
    assert refused.value.code == Exit.USAGE and says in str(refused.value)
    assert SECRET not in str(refused.value)
