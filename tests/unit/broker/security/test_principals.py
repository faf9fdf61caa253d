"""Names of principals as Apache Kafka 4.3.1 (on JDK 25) makes them: `tests/golden/principals_kafka_4_3_1.json` has what
`X500Principal.getName()` and `SslPrincipalMapper` said of random names and rules; null: it refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.values import InvalidConfig
from broker.security.tls.distinguished_name import MalformedName, name_text, subject_of
from broker.security.tls.principal_mapping import NoRuleMatches, PrincipalMapping
from tests.support.net.tls_peer import broker_certificate

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "principals_kafka_4_3_1.json").read_text())


def test_names_are_javas() -> None:
    assert len(GOLDEN["names"]) > 100
    for der, text in GOLDEN["names"]:
        assert name_text(bytes.fromhex(der)) == text


def mapped(rules: str, name: str) -> str | None:
    try:
        return PrincipalMapping(rules).name_of(name)
    except (InvalidConfig, NoRuleMatches):
        return None


def test_rules_are_kafkas() -> None:
    found = [(rules, name, mapped(rules, name)) for rules, name, _ in GOLDEN["rules"]]
    assert found == [tuple(one) for one in GOLDEN["rules"]]
    assert sum(name is not None for _, _, name in found) > 80


@pytest.mark.parametrize("rules", ["RULE:[a-z&&[^b]]/x/", "RULE:(/x/", r"RULE:\p{Lu}/x/"])
def test_patterns_that_python_reads_otherwise_are_refused(rules: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        PrincipalMapping(rules)


@given(st.integers(0, 1 << 16), st.binary(max_size=8))
def test_a_damaged_certificate_is_malformed_or_another_name(at: int, change: bytes) -> None:
    """Never another exception, whatever the bytes."""
    damaged = bytearray(broker_certificate().der)
    at %= len(damaged)
    damaged[at : at + len(change)] = change
    with contextlib.suppress(MalformedName):
        subject_of(bytes(damaged))


@pytest.mark.parametrize("count", [1024, 90_000])
def test_a_type_of_thousands_of_digits_is_malformed(count: int) -> None:
    """Regression: a client's certificate with such a type in its subject held the loop for 0.5 s, and its connection
    ended by an unexpected ValueError."""
    pair = value(0x06, b"\x2a" + b"\xff" * (count - 1) + b"\x01") + value(0x0C, b"x")
    with pytest.raises(MalformedName, match=f"has {count + 1} bytes"):
        name_text(value(0x31, value(0x30, pair)))


def test_a_type_of_the_longest_length_has_a_text() -> None:
    pair = value(0x06, b"\xff" * 1023 + b"\x01") + value(0x0C, b"x")
    assert len(name_text(value(0x31, value(0x30, pair)))) > 2000


def value(tag: int, content: bytes) -> bytes:
    """A value in DER."""
    size = len(content)
    length = bytes([size]) if size < 0x80 else bytes([0x84]) + size.to_bytes(4)
    return bytes([tag]) + length + content
