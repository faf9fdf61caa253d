"""Brokers of `serve --secure` as the test suites of client projects want them: every mechanism, and one user.

Owns the settings, the user (who is no super user) and what Java's tools need to be the administrator. What no ACL names
is allowed, as in the clusters of these projects: their tests add the ACLs that they are about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.processes.sasl_site import SCRAM, jaas, write_keys
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import DirectoryBucket

USER: Final = "rdkafka"
PASSWORD: Final = "quick brown fox"
_PLAIN: Final = "THERMOCLINE_LISTENER_NAME_SASL_SSL_PLAIN_SASL_JAAS_CONFIG"
_TOKENS: Final = "listener.name.sasl_ssl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"


def open_to_logins(folder: Path) -> dict[str, object]:
    """Settings: every mechanism on the clients' listener; who logged in may do what no ACL forbids. `secrets` too."""
    return {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM, "OAUTHBEARER")),
        _TOKENS: write_keys(folder),
        "allow.everyone.if.no.acl.found": "true",
    }


def secrets() -> dict[str, str]:
    """The environment of such a broker."""
    return {_PLAIN: jaas("plain.PlainLoginModule", **{f"user_{USER}": PASSWORD})}


@dataclass(frozen=True, slots=True)
class SuiteCluster:
    """`admin`: Java's configuration of the super user."""

    brokers: Three
    ca_file: str
    admin: Path

    def librdkafka(self, mechanism: str) -> dict[str, object]:
        """Its configs, with the password where the mechanism has one."""
        found: dict[str, object] = {
            "bootstrap.servers": self.brokers.everywhere,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "ssl.ca.location": self.ca_file,
        }
        if mechanism == "OAUTHBEARER":
            return found
        return found | {"sasl.username": USER, "sasl.password": PASSWORD}


@contextlib.contextmanager
def suite_cluster(folder: Path, settings: Mapping[str, object]) -> Iterator[SuiteCluster]:
    """Three brokers, with `settings` too."""
    site = Site(folder, DirectoryBucket(folder / "bucket"))
    site.settings |= open_to_logins(folder) | dict(settings)
    site.environment |= secrets()
    with three(site, is_secured=True) as brokers:
        admin = brokers.access.write_java(folder / "admin.properties")
        password = folder / "password"
        password.write_text(PASSWORD + "\n")
        for mechanism in SCRAM:
            done = site.cli(
                *("user", "add", USER, "--mechanism", mechanism, "--password-file", str(password)),
                *("-b", brokers.everywhere, "--command-config", str(admin)),
            )
            assert done.returncode == 0, done.stderr
        login = brokers.access.login
        assert login is not None
        yield SuiteCluster(brokers, login.ca_file, admin)
