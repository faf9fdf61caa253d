"""Client configuration from `--command-config FILE` and `-X K=V`, by librdkafka's names or by Java's (S14).

One result serves both clients of the command line. librdkafka gets all configs by its own names; our own client gets
the protocol, the login and the PEM files. Java's configs without a counterpart in librdkafka are ignored. Security
configs without a counterpart are refused, because the connection would be less secure than requested. No error shows a
value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.config.network.sasl import Login, PasswordLogin, TokenLogin
from broker.security_protocol import MECHANISMS, OAUTHBEARER, SecurityProtocol
from logformat.errors import InvalidRequest
from logformat.jaas import parse_jaas
from logformat.properties import properties_in
from thermocline.cli.clients.librdkafka_names import NAMES, nearest
from thermocline.cli.terminal.outcome import CommandFailed, Exit

_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = ("sasl.mechanism", "sasl.mechanisms")
HTTP_TOKEN: Final = "thermocline.http.token"
"""A config of ours; Java's clients only warn of configs that they do not know."""
_BOOTSTRAP: Final = ("bootstrap.servers", "metadata.broker.list")
_SECURE: Final = ("ssl.", "sasl.", "security.", "https.")
_STORE_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
# Java's TLS configs that have no effect on PEM files, or that OpenSSL decides by itself.
_NEEDLESS: Final = (
    *_STORE_TYPES,
    "ssl.truststore.password",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.provider",
    "ssl.trustmanager.algorithm",
    "ssl.keymanager.algorithm",
    "ssl.secure.random.implementation",
    "security.providers",
)
_RENAMED: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}

_SECRETS: Final = frozenset(
    {
        HTTP_TOKEN,
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
_MAY_HOLD_SECRETS: Final = frozenset({"sasl.jaas.config", "sasl.oauthbearer.config"})
_HOLDS_SECRET: Final = re.compile(r"(password|secret)\w*\s*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files (or texts) of a TLS client. None means the system's CA certificates, or no client certificate."""

    ca_file: str | None = None
    ca_pem: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_name: bool = True
    checks_certificate: bool = True


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Client configuration of this command. `librdkafka`: all configs, by librdkafka's names."""

    librdkafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    login: Login | None = None
    tls: TlsFiles = TlsFiles()
    bootstrap: str | None = None  # bootstrap.servers of the file
    bootstrap_file: str | None = None  # the file, if its bootstrap.servers are used (no -b)
    http_token: str | None = field(default=None, repr=False)  # for brokers' HTTP ports


def read_properties(file_text: str | None, extra: Iterable[tuple[str, str]]) -> ClientProperties:
    """`extra`, the `-X` pairs, win over the file. Raises CommandFailed (usage)."""
    given = {name: (value, "the file of --command-config") for name, value in properties_in(file_text or "")}
    for name, value in extra:
        _refuse_secret(name, value)
        given[name] = (value, f"-X {name}")
    for name in _BOOTSTRAP:
        if name in given and given[name][1].startswith("-X"):
            raise CommandFailed(f"-X {name}: use -b", Exit.USAGE)
    http_token, _ = given.pop(HTTP_TOKEN, (None, ""))
    found = _in_librdkafka(given)
    bootstrap = next((found.pop(name) for name in _BOOTSTRAP if name in found), None)
    protocol_text = found.get(_PROTOCOL, SecurityProtocol.PLAINTEXT).upper()
    if protocol_text not in SecurityProtocol.__members__:
        raise _wrong(_PROTOCOL, f"{protocol_text} is none of {', '.join(SecurityProtocol)}")
    protocol = SecurityProtocol(protocol_text)
    login = _login(found) if protocol.uses_sasl else None
    return ClientProperties(found, protocol, login, _tls(found), bootstrap, http_token=http_token)


def _refuse_secret(name: str, value: str) -> None:
    """Refuse a secret as an argument: every user of a machine sees the arguments of its processes (S9)."""
    if name in _SECRETS or (name in _MAY_HOLD_SECRETS and _HOLDS_SECRET.search(value)):
        raise CommandFailed(
            f"-X {name}: a secret would be shown to every user of this machine; write it in the file of "
            "--command-config (or of THERMOCLINE_COMMAND_CONFIG)",
            Exit.USAGE,
        )


def _in_librdkafka(given: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """All configs, by librdkafka's names."""
    found: dict[str, str] = {}
    texts = {name: value for name, (value, _) in given.items()}
    for name, (value, source) in given.items():
        if name == "sasl.jaas.config":
            found |= _of_jaas(value)
        elif name == "ssl.truststore.location":
            _check_pem(texts, "ssl.truststore", value)
            found["ssl.ca.location"] = value
        elif name == "ssl.keystore.location" and texts.get("ssl.keystore.type", "").upper() == "PEM":
            found["ssl.certificate.location"] = found["ssl.key.location"] = value
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = value or "none"
        elif name in _RENAMED:
            found[_RENAMED[name]] = value
        elif name in NAMES:
            found[name] = value
        elif name.startswith(_SECURE) and name not in _NEEDLESS:
            near = nearest(name)
            says = "librdkafka has no such config" + (f"; the nearest is {near}" if near else "")
            where = source if source.startswith("-X") else f"{source}, {name}"
            raise CommandFailed(f"{where}: {says}", Exit.USAGE)
        elif source.startswith("-X") and name not in _NEEDLESS:
            found[name] = value  # librdkafka reports unknown names
    return found


def _of_jaas(text: str) -> dict[str, str]:
    try:
        module = parse_jaas(text, "sasl.jaas.config")
    except InvalidRequest as refused:
        raise CommandFailed(str(refused), Exit.USAGE) from None
    options = module.options
    if "tokenFile" in options:
        return {"sasl.oauthbearer.config": f"tokenFile={options['tokenFile']}"}
    if "username" not in options or "password" not in options:
        raise _wrong("sasl.jaas.config", 'username="…" or password="…" is missing')
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _check_pem(texts: Mapping[str, str], store: str, path: str) -> None:
    kind = texts.get(f"{store}.type", "PEM" if path.endswith((".pem", ".crt", ".cer")) else "JKS").upper()
    if kind != "PEM":
        raise _wrong(
            f"{store}.location",
            f"{path} is a {kind} store, which OpenSSL does not read; export it "
            f"(keytool -exportcert -rfc, openssl pkcs12 -nokeys) and set {store}.type=PEM",
        )


def _login(found: Mapping[str, str]) -> Login:
    mechanism = next((found[name] for name in _MECHANISM if name in found), "GSSAPI")
    if mechanism not in MECHANISMS:
        raise _wrong("sasl.mechanism", f"{mechanism} is not served; write one of {', '.join(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        key, _, path = found.get("sasl.oauthbearer.config", "").partition("=")
        return TokenLogin(path if key == "tokenFile" else "")
    if not found.get("sasl.username") or not found.get("sasl.password"):
        raise _wrong("sasl.mechanism", f"{mechanism} needs sasl.username and sasl.password, or sasl.jaas.config")
    return PasswordLogin(mechanism, found["sasl.username"], found["sasl.password"])


def _tls(found: Mapping[str, str]) -> TlsFiles:
    return TlsFiles(
        ca_file=found.get("ssl.ca.location"),
        ca_pem=found.get("ssl.ca.pem"),
        certificate_file=found.get("ssl.certificate.location"),
        key_file=found.get("ssl.key.location"),
        key_password=found.get("ssl.key.password"),
        checks_name=found.get("ssl.endpoint.identification.algorithm", "https").lower() == "https",
        checks_certificate=found.get("enable.ssl.certificate.verification", "true").lower() != "false",
    )


def _wrong(name: str, what: str) -> CommandFailed:
    return CommandFailed(f"{name}: {what}", Exit.USAGE)
