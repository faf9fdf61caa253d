"""KafkaJS logs in by every mechanism that its documentation shows, over TLS and in clear, and by a certificate.

KafkaJS's own tests are in none of its packages. These are the scenarios of its pages on SSL and SASL, by a program of
ours; the same client under kills, with ACLs and transactions, is in `test_stock_clients_secured.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.kafkajs_package import require_kafkajs, run_program
from tests.support.processes.sasl_site import token
from tests.support.repository import ROOT
from tests.support.security.doors import KEY_PASSWORD, USER, Doors, doors

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

PROGRAM = ROOT / "tests/support/clients/kafkajs_logins.js"
_SESSION_MS = 4000
_AGAIN_MS = 1500
"""Of a session that is shorter than KafkaJS's own 10 s it would log in with each request, and be refused (KIP-368)."""


def tried(work: Path, modules: Path, ways: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    file = work / "ways.json"
    file.write_text(json.dumps(ways))
    return run_program(modules, PROGRAM, str(file))


def over_tls(there: Doors, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "broker": there.addresses["LOGIN"], "ssl": {"ca": str(there.ca_file)}, **more}


def password(mechanism: str, given: str = USER) -> dict[str, str]:
    return {"mechanism": mechanism, "username": USER, "password": given}


def test_every_way_in(tmp_path: Path) -> None:
    """A record is written and read in a group by each; a wrong password, token or certificate gets nowhere."""
    modules = require_kafkajs(tmp_path)
    with doors(tmp_path) as there:
        mutual = {"ca": str(there.ca_file), "cert": str(there.certificate_file), "key": str(there.key_file)}
        right = [
            *(over_tls(there, of, sasl=password(of)) for of in ("plain", "scram-sha-256", "scram-sha-512")),
            over_tls(there, "oauthbearer", sasl={"mechanism": "oauthbearer"}, token=token(USER)),
            {"name": "clear", "broker": there.addresses["CLEAR"], "sasl": password("scram-sha-256")},
            {
                "name": "certificate",
                "broker": there.addresses["TLS"],
                "ssl": {**mutual, "passphrase": KEY_PASSWORD},
            },
        ]
        wrong = [
            *(over_tls(there, f"wrong-{of}", sasl=password(of, "guess")) for of in ("plain", "scram-sha-512")),
            over_tls(there, "expired", sasl={"mechanism": "oauthbearer"}, token=token(USER, -60)),
            {"name": "no-certificate", "broker": there.addresses["TLS"], "ssl": {"ca": str(there.ca_file)}},
            {"name": "no-tls", "broker": there.addresses["LOGIN"], "sasl": password("plain")},
        ]
        found = tried(tmp_path, modules, right + wrong)
    for way in right:
        assert found[way["name"]] == {"value": f"by {way['name']}", "sent": 1, "count": 1}
    for name in ("wrong-plain", "wrong-scram-sha-512"):
        assert found[name]["error"] == "KafkaJSSASLAuthenticationError", found[name]
    # KafkaJS does not read why a token is refused (RFC 7628 3.2.2). It goes on, and its connection is closed.
    assert found["expired"] == {"error": "KafkaJSNumberOfRetriesExceeded", "text": "Closed connection"}
    for name in ("no-certificate", "no-tls"):
        assert found[name]["error"] in ("KafkaJSConnectionError", "KafkaJSNumberOfRetriesExceeded"), found[name]


def test_it_logs_in_again_before_its_session_ends(tmp_path: Path) -> None:
    """KIP-368: over twice the session's time no record is lost or doubled."""
    modules = require_kafkajs(tmp_path)
    with doors(tmp_path, f"connections.max.reauth.ms={_SESSION_MS}") as there:
        way = over_tls(there, "again", sasl=password("scram-sha-512"), for_ms=2 * _SESSION_MS, again_ms=_AGAIN_MS)
        found = tried(tmp_path, modules, [way])["again"]
    assert found["value"] == "by again" and found["sent"] == found["count"] > 10
    assert "session ended" not in (tmp_path / "data.log").read_text()
