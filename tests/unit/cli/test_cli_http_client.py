"""The HTTP token of a command goes only to ports that the user trusts."""

from __future__ import annotations

import pytest

from thermocline.cli.clients import connection_properties
from thermocline.cli.clients.client_properties import read_properties
from thermocline.cli.clients.http_client import HttpAddress, _authorization

TOKEN = "thermocline.http.token=a-token-of-this-test\n"
LOGIN = "sasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\nsasl.password=x\n"


@pytest.mark.parametrize(
    ("properties", "host", "tls", "is_sent"),
    [
        ("", "broker.example", True, False),
        ("", "broker.example", False, False),
        ("", "127.0.0.1", False, True),
        ("security.protocol=SASL_PLAINTEXT\n" + LOGIN, "broker.example", True, False),
        ("security.protocol=SASL_SSL\n" + LOGIN, "broker.example", True, True),
        ("security.protocol=SASL_SSL\n" + LOGIN, "broker.example", False, False),
        ("ssl.ca.location=ca.pem\n", "broker.example", True, True),
        ("ssl.ca.location=ca.pem\n", "broker.example", False, False),
    ],
)
def test_the_token_goes_to_trusted_ports(
    monkeypatch: pytest.MonkeyPatch, properties: str, host: str, tls: bool, is_sent: bool
) -> None:
    """Regression: without TLS to the brokers and without a CA of its own, a command sent the token to any port whose
    certificate a public CA signed, and anybody between it and a broker could name that port."""
    monkeypatch.setattr(connection_properties, "_current", read_properties(TOKEN + properties, []))
    assert bool(_authorization(HttpAddress(host, 9644, tls))) is is_sent
