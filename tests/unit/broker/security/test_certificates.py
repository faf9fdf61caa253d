"""Key stores, trust stores and `ssl.*` configs: what is read, what is refused with advice, and reloads."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from broker.config.sources import ConfigError, Explicit, from_sets
from broker.config.values import InvalidConfig
from broker.net.tls.session import PeerRefused
from broker.security.http_secrets import HttpSecrets
from broker.security.reload import Outcome, Reload
from broker.security.tls.certificates import listener_values
from broker.security.tls.listener_tls import ListenerTls
from broker.security.tls.settings import read_settings
from broker.security_protocol import SecurityProtocol
from tests.support.net.certificates import Authority, Signed
from tests.support.net.tls_peer import authority, broker_certificate, inline, listener_tls, now_ms
from tests.support.workers import InlineWorkers


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def of_files(**configs: str) -> ListenerTls:
    """`keystore_location` is `ssl.keystore.location`."""
    values = Explicit({f"ssl.{name.replace('_', '.')}": text for name, text in configs.items()})
    return ListenerTls("listener SSL", lambda: values, read, now_ms)


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(InvalidConfig) as refused:
        make()
    return str(refused.value)


# -- stores -----------------------------------------------------------------------------------------------------------


def test_one_pem_file_has_key_and_chain(tmp_path: Path) -> None:
    """Also with the key encrypted, behind the chain, and with an intermediate CA."""
    between = Authority("Between", below=authority())
    signed = between.sign("broker")
    for number, text in enumerate(
        (signed.pem(), signed.chain_pem + signed.key_pem(), signed.key_pem("secret!") + signed.chain_pem)
    ):
        path = tmp_path / f"{number}.pem"
        path.write_text(text)
        found = of_files(keystore_location=str(path), key_password="secret!")
        assert found.context().get_ca_certs() == []
        assert [one.subject.rfc4514_string() for one in found._made.contexts.keys.chain] == ["CN=broker", "CN=Between"]


@pytest.mark.parametrize("kind", [None, "PKCS12", "JKS"])
def test_pkcs12_is_read_by_its_content(tmp_path: Path, kind: str | None) -> None:
    """As by Java, whose type JKS reads it too."""
    signed = Authority("Between", below=authority()).sign("broker")
    path = tmp_path / "keys"
    path.write_bytes(signed.pkcs12("secret!"))
    written = {} if kind is None else {"keystore_type": kind}
    found = of_files(keystore_location=str(path), keystore_password="secret!", **written)
    assert len(found._made.contexts.keys.chain) == 2


def test_what_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    signed = broker_certificate()
    files = {
        "jks": b"\xfe\xed\xfe\xed\x00\x00\x00\x02",
        "pem": signed.pem().encode(),
        "no-key": signed.chain_pem.encode(),
        "no-chain": signed.key_pem().encode(),
        "encrypted": (signed.key_pem("secret!") + signed.chain_pem).encode(),
        "mixed": (authority().sign().key_pem() + signed.chain_pem).encode(),
        "expired": authority().sign("broker", lasts=timedelta(hours=-1)).pem().encode(),
        "early": authority().sign("broker", begins=timedelta(days=1)).pem().encode(),
        "p12": signed.pkcs12("secret!"),
        "garbage": b"garbage",
        "empty": b"",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)

    def said(name: str, **configs: str) -> str:
        return refusal(lambda: of_files(keystore_location=str(tmp_path / name), **configs))

    assert "No such file" in said("missing") and "name a file that this process may read" in said("missing")
    assert "keytool -importkeystore" in said("jks")
    assert "set ssl.keystore.type=PEM" in said("pem", keystore_type="PKCS12")
    assert "is not PEM" in said("p12", keystore_type="PEM")
    assert "has no private key" in said("no-key")
    assert "no certificate" in said("no-chain")
    assert "set ssl.key.password" in said("encrypted")
    assert "check ssl.key.password" in said("encrypted", key_password="wrong")
    assert "is not that of the first certificate (CN=broker)" in said("mixed")
    assert f"ssl.keystore.location={tmp_path / 'expired'}" in said("expired")
    at = r"expired at \d{4}-\d\d-\d\d \d\d:\d\d UTC: renew it .*`thermocline certificate renew"
    assert re.search(at, said("expired")), "it had the zone twice, no file and no command"
    assert "check this machine's clock" in said("early")
    assert "check ssl.keystore.password" in said("p12", keystore_password="wrong")
    for name in ("garbage", "empty"):
        assert "is neither PEM nor PKCS12" in said(name) and "password" not in said(name)
    assert "has no certificate" in refusal(
        lambda: of_files(keystore_location=str(tmp_path / "pem"), truststore_certificates=signed.key_pem())
    )
    for text in (said("encrypted", key_password="wrong"), said("p12", keystore_password="wrong")):
        assert "wrong" not in text.replace("password", ""), "no secret is shown"


def test_tls_1_2_has_no_cbc_unless_it_is_named() -> None:
    """Of the broker's two contexts, as server and as client."""

    def named(tls: ListenerTls) -> set[str]:
        return {one["name"] for context in (tls.context(), tls.client_context()) for one in context.get_ciphers()}

    default = named(listener_tls())
    assert {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305", "TLS_AES_256_GCM_SHA384"} <= default
    assert all("GCM" in name or "CHACHA20" in name for name in default), default
    assert "ECDHE-ECDSA-AES128-SHA256" in named(listener_tls(cipher_suites="ECDHE-ECDSA-AES128-SHA256"))


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({}, "has no certificate: set ssl.keystore.location"),
        ({"keystore_key": "x"}, "belong together"),
        ({"keystore_location": "a", "keystore_key": "x"}, "leave one of them out"),
        ({"keystore_location": "a", "keystore_type": "BKS"}, "PEM or PKCS12"),
    ],
)
def test_contradictions_of_the_key_store(configs: dict[str, str], says: str) -> None:
    assert says in refusal(lambda: of_files(**configs))


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"enabled_protocols": "TLSv1.1,TLSv1.2"}, "older versions are not secure"),
        ({"protocol": "SSL"}, "TLSv1.3 or TLSv1.2"),
        ({"cipher_suites": "TLS_RSA_WITH_AES_256_GCM_SHA384"}, "without forward secrecy"),
        ({"cipher_suites": "TLS_AES_128_GCM_SHA256"}, "cannot be chosen without the others"),
        ({"cipher_suites": "TLS_AES_256_GCM_SHA384", "enabled_protocols": "TLSv1.2"}, "no client could connect"),
        ({"client_auth": "required"}, "needs ssl.truststore.location"),
        ({"endpoint_identification_algorithm": "ldaps"}, "write https, or leave it empty"),
        ({"engine_factory_class": "org.example.Engine"}, "Java classes are not run here"),
        ({"principal_mapping_rules": "RULE:(/x/"}, "cannot be read"),
    ],
)
def test_what_is_refused_of_ssl_configs(configs: dict[str, str], says: str) -> None:
    assert says in refusal(lambda: listener_tls(**configs))


@pytest.mark.parametrize(
    ("configs", "low", "high"),
    [
        ({}, "TLSv1_2", "TLSv1_3"),
        ({"enabled_protocols": "TLSv1.3"}, "TLSv1_3", "TLSv1_3"),
        ({"protocol": "TLSv1.2"}, "TLSv1_2", "TLSv1_2"),
        ({"cipher_suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}, "TLSv1_2", "TLSv1_2"),
        ({"cipher_suites": "TLS_AES_256_GCM_SHA384"}, "TLSv1_3", "TLSv1_3"),
    ],
)
def test_versions_follow_protocols_and_suites(configs: dict[str, str], low: str, high: str) -> None:
    context = listener_tls(**configs).context()
    assert (context.minimum_version.name, context.maximum_version.name) == (low, high)
    assert context.options & ssl.OP_NO_RENEGOTIATION and context.options & ssl.OP_NO_COMPRESSION


def test_suites_have_the_names_of_both(tmp_path: Path) -> None:
    for name in ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"):
        ciphers = {one["name"] for one in listener_tls(cipher_suites=name).context().get_ciphers()}
        assert "ECDHE-ECDSA-AES128-GCM-SHA256" in ciphers
        assert not any(one.startswith("ECDHE-ECDSA-AES256") for one in ciphers)


def test_a_suite_that_is_not_listed_ends_the_session() -> None:
    """Python cannot choose among those of TLS 1.3, so what was agreed on is checked."""
    tls = listener_tls(cipher_suites="TLS_AES_256_GCM_SHA384")
    assert tls.principal(None, "TLS_AES_256_GCM_SHA384") == "User:ANONYMOUS"
    with pytest.raises(PeerRefused, match="TLS_CHACHA20_POLY1305_SHA256"):
        tls.principal(None, "TLS_CHACHA20_POLY1305_SHA256")


def test_brokers_verify_one_another() -> None:
    """Name and CA, unless the algorithm is empty: then any name."""
    context = listener_tls(truststore_certificates=authority().pem).client_context()
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    lenient = listener_tls(endpoint_identification_algorithm="").client_context()
    assert not lenient.check_hostname and lenient.verify_mode is ssl.CERT_REQUIRED


def test_a_listener_has_its_own_values() -> None:
    values = Explicit({"ssl.client.auth": "none", "listener.name.inner.ssl.client.auth": "required"})
    assert read_settings(values.of_listener("INNER"), "x").client_auth.value == "required"
    assert read_settings(values.of_listener("OUTER"), "x").client_auth.value == "none"


def test_certificates_of_clients_that_log_in_are_asked_for_by_the_listener_only() -> None:
    """As in Kafka: ssl.client.auth of all listeners does not count for SASL_SSL."""
    every = Explicit({"ssl.client.auth": "required"})
    assert listener_values(every, "IN", SecurityProtocol.SSL).text("ssl.client.auth") == "required"
    assert listener_values(every, "IN", SecurityProtocol.SASL_SSL).text("ssl.client.auth") == "none"
    own = Explicit({"ssl.client.auth": "none", "listener.name.in.ssl.client.auth": "required"})
    assert listener_values(own, "IN", SecurityProtocol.SASL_SSL).text("ssl.client.auth") == "required"


def test_secrets_are_no_arguments() -> None:
    for name in ("ssl.keystore.password", "listener.name.x.ssl.key.password", "thermocline.http.ssl.key.password"):
        with pytest.raises(ConfigError, match="every user of this machine") as refused:
            from_sets([f"{name}=open sesame"])
        assert "sesame" not in str(refused.value)


# -- principals -------------------------------------------------------------------------------------------------------


def test_the_principal_is_the_subject_as_java_writes_it() -> None:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "CH"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Löwe, Söhne"),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b"),
            x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
        ]
    )
    signed = authority().sign(subject=subject)
    assert listener_tls().principal(signed.der, "") == (
        "User:CN=alice,1.2.840.113549.1.9.1=#1603614062,O=Löwe\\, Söhne,C=CH"
    )
    rules = "RULE:^CN=(.*?),.*$/$1/U,DEFAULT"
    assert listener_tls(principal_mapping_rules=rules).principal(signed.der, "") == "User:ALICE"


# -- reload -----------------------------------------------------------------------------------------------------------


class Files:
    """A listener whose files change."""

    def __init__(self, directory: Path) -> None:
        self.keys, self.trust = directory / "keys.pem", directory / "ca.pem"
        self.configs = {"ssl.keystore.location": str(self.keys), "ssl.truststore.location": str(self.trust)}
        self.put(broker_certificate())
        self.trust.write_text(authority().pem)
        self.tls = ListenerTls("listener SSL", lambda: Explicit(self.configs), read, now_ms)

    def put(self, signed: Signed) -> None:
        self.keys.write_text(signed.pem())


def test_a_changed_file_makes_a_new_context(tmp_path: Path) -> None:
    files = Files(tmp_path)
    before = files.tls.context()
    assert not files.tls.reload() and files.tls.context() is before
    files.put(authority().sign("broker"))
    assert files.tls.reload() and files.tls.context() is not before
    files.trust.write_text(authority().pem + Authority("Next CA").pem)
    assert files.tls.reload()


def test_a_changed_config_makes_a_new_context(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.configs["ssl.client.auth"] = "required"
    assert files.tls.reload() and files.tls.context().verify_mode is ssl.CERT_REQUIRED


async def test_a_bad_new_file_is_refused_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old one stays; once the file is mended, the trouble is over."""
    files, reload = Files(tmp_path), Reload()
    reload.add(files.tls)

    async def outcome() -> Outcome:
        (found,) = await reload.run(InlineWorkers())
        return found.outcome

    before = files.tls.context()
    files.keys.write_text(broker_certificate().pem()[:100])
    with caplog.at_level(logging.ERROR):
        assert [await outcome(), await outcome()] == [Outcome.REFUSED] * 2
    assert files.tls.context() is before and "cannot be read" in reload.refused()[0]
    assert len(caplog.records) == 1 and "the old one stays" in caplog.text
    files.put(authority().sign("broker"))
    assert await outcome() is Outcome.LOADED and not reload.refused()
    assert await outcome() is Outcome.UNCHANGED
    files.keys.unlink()
    assert await outcome() is Outcome.REFUSED and "No such file" in reload.refused()[0]


def test_a_new_certificate_has_the_old_names_unless_that_is_meant(tmp_path: Path) -> None:
    """As in Kafka (KIP-978)."""
    files = Files(tmp_path)
    files.put(authority().sign("another"))
    assert "ssl.allow.dn.changes" in refusal(files.tls.reload)
    files.configs["ssl.allow.dn.changes"] = "true"
    assert files.tls.reload()
    files.put(authority().sign("another", names=["localhost"]))
    assert "lacks the names 127.0.0.1" in refusal(files.tls.reload)
    files.configs["ssl.allow.san.changes"] = "true"
    assert files.tls.reload()


# -- secrets of the HTTP port -----------------------------------------------------------------------------------------


def test_tokens_and_passwords(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("# of the dashboards\n0123456789abcdef0123\nadmin:correct horse battery\n")
    secrets = HttpSecrets(str(path), read)
    assert secrets.allows("Bearer 0123456789abcdef0123")
    assert secrets.allows("basic YWRtaW46Y29ycmVjdCBob3JzZSBiYXR0ZXJ5")
    for wrong in ("", "Bearer", "Bearer 0123456789abcdef012", "Basic x", "Basic YWRtaW46", "0123456789abcdef0123"):
        assert not secrets.allows(wrong)
    path.write_text("another-secret-of-mine\n")
    assert secrets.reload() and not secrets.allows("Bearer 0123456789abcdef0123")
    path.write_text("short\n")
    assert refusal(secrets.reload) and secrets.allows("Bearer another-secret-of-mine")


def test_a_file_of_secrets_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    assert "may read" in refusal(lambda: HttpSecrets(str(path), read))
    for data in (b"", b"short\n", b"\xff\xfe"):
        path.write_bytes(data)
        assert refusal(lambda: HttpSecrets(str(path), read))
    assert inline()  # the certificates of this page need no file
