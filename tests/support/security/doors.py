"""One broker with every door: SASL_SSL, SASL in clear, and mutual TLS, each a listener; every mechanism at the first.

Owns its configuration, the files of its clients, and a way to change users and ACLs: by `thermocline`, as the first
user. What no ACL names is allowed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.clients.access import Access, Login
from tests.support.net.certificates import Authority
from tests.support.processes.broker_process import running_broker
from tests.support.processes.sasl_site import BROKER, PASSWORD, SCRAM, jaas, write_keys
from tests.support.processes.site import thermocline

USER: Final = "test"
"""Its password is its name."""
KEY_PASSWORD: Final = "abcdefgh"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True)
class Doors:
    """`addresses`: of LOGIN (SASL_SSL), CLEAR (SASL_PLAINTEXT) and TLS (SSL, which wants a client's certificate)."""

    addresses: dict[str, str]
    ca_file: Path
    certificate_file: Path
    key_file: Path  # with KEY_PASSWORD
    admin: Path

    def run(self, *words: str, stdin: str | None = None) -> None:
        """`thermocline WORDS` as the first user."""
        done = thermocline(*words, "-b", self.addresses["LOGIN"], "--command-config", str(self.admin), stdin=stdin)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def doors(folder: Path, *more: str) -> Iterator[Doors]:
    """`more`: lines of its properties. The user has a password by PLAIN and by SCRAM."""
    authority = Authority()
    ca_file, certificate, key = folder / "ca.pem", folder / "client.pem", folder / "client.key"
    authority.write(ca_file)
    signed = authority.sign("client")
    certificate.write_text(signed.chain_pem)
    key.write_text(signed.key_pem(KEY_PASSWORD))
    own = authority.sign("broker").write(folder / "broker.pem")
    config = folder / "server.properties"
    config.write_text("\n".join((*_lines(own, ca_file, write_keys(folder)), *more)) + "\n")
    with running_broker(folder / "data", None, "--config", str(config), listen=None) as broker:
        listeners = [entry.partition("://") for entry in broker.ready["listeners"].split(",")]
        addresses = {name: address for name, _, address in listeners}
        login = Login(BROKER, PASSWORD, str(ca_file))
        admin = Access(addresses["LOGIN"], login).write_java(folder / "admin.properties")
        found = Doors(addresses, ca_file, certificate, key, admin)
        for mechanism in SCRAM:
            found.run("user", "add", USER, "--mechanism", mechanism, "--password-file", "-", stdin=USER + "\n")
        yield found


def _lines(key_store: str, trust_store: Path, keys: str) -> tuple[str, ...]:
    users = jaas("plain.PlainLoginModule", **{f"user_{USER}": USER})
    first = jaas("scram.ScramLoginModule", username=BROKER, password=PASSWORD)
    return (
        "listeners=LOGIN://127.0.0.1:0,CLEAR://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map=LOGIN:SASL_SSL,CLEAR:SASL_PLAINTEXT,TLS:SSL",
        "inter.broker.listener.name=TLS",
        "listener.name.tls.ssl.client.auth=required",
        f"ssl.keystore.location={key_store}",
        f"ssl.truststore.location={trust_store}",
        f"sasl.enabled.mechanisms=PLAIN,{','.join(SCRAM)}",
        f"listener.name.login.sasl.enabled.mechanisms=PLAIN,{','.join(SCRAM)},OAUTHBEARER",
        f"listener.name.login.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={keys}",
        f"listener.name.login.plain.sasl.jaas.config={users}",
        f"listener.name.clear.plain.sasl.jaas.config={users}",
        f"listener.name.login.scram-sha-512.sasl.jaas.config={first}",
        f"authorizer.class.name={_AUTHORIZER}",
        "allow.everyone.if.no.acl.found=true",
        f"super.users=User:{BROKER};User:CN=broker",
        "num.partitions=2",
        "group.initial.rebalance.delay.ms=0",
    )
