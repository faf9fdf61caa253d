"""How a stock client reaches brokers: their addresses and, where they are secured, a user's login and the CA.

Owns these facts in the words of each client. Must not know brokers.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logformat.jaas import parse_jaas
from logformat.properties import format_properties, properties_in
from thermocline.cli.serve.secure.settings import ADMIN_USER, MECHANISM, java_client

_JAAS: Final = "sasl.jaas.config"


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str
    ca_file: str


@dataclass(frozen=True, slots=True)
class Access:
    """Without a login: plaintext."""

    bootstrap: str
    login: Login | None = None

    def confluent(self) -> dict[str, Any]:
        """librdkafka's configs."""
        found: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if self.login is None:
            return found
        return found | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.login.user,
            "sasl.password": self.login.password,
            "ssl.ca.location": self.login.ca_file,
        }

    def kafka_python(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap.split(",")}
        return found if self.login is None else found | _python_login(self.login) | {"ssl_cafile": self.login.ca_file}

    def aiokafka(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap.split(",")}
        if self.login is None:
            return found
        context = ssl.create_default_context(cafile=self.login.ca_file)
        return found | _python_login(self.login) | {"ssl_context": context}

    def java(self) -> dict[str, str]:
        """Of Kafka's own client, and of `--command-config`."""
        if self.login is None:
            return {"bootstrap.servers": self.bootstrap}
        authority = Path(self.login.ca_file).read_text("ascii")
        return java_client(self.login.user, self.login.password, authority, self.bootstrap)

    def write_java(self, file: Path) -> Path:
        file.write_bytes(format_properties(self.java()))
        return file

    def write_json(self, file: Path) -> Path:
        """For programs of other languages: `bootstrap` and, where there is one, `login`."""
        file.write_text(json.dumps(asdict(self)))
        return file


Where = str | Access
"""Addresses alone are a cluster that wants no login."""


def access_of(where: Where) -> Access:
    return Access(where) if isinstance(where, str) else where


def _python_login(login: Login) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": MECHANISM,
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
    }


def admin_login(data_dir: Path) -> Login:
    """The first user of the cluster that `serve --secure` made on `data_dir`."""
    given = dict(properties_in((data_dir / "admin.properties").read_text("utf-8")))
    password = parse_jaas(given[_JAAS], _JAAS).options["password"]
    return Login(ADMIN_USER, password, str(data_dir / "security" / "ca.pem"))
