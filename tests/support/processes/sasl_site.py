"""Brokers that want a login: their `server.properties`, and client configurations for every client of the tests.

Owns the users: `alice` and `bob` of PLAIN, `broker` of SCRAM, with whom a cluster begins, and tokens signed by a key
whose public half lies in a JWKS file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

PASSWORD: Final = "hunter2-of-the-tests"
_SECURITY: Final = "org.apache.kafka.common.security"
_KEY: Final = rsa.generate_private_key(65537, 2048)
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
BROKER: Final = "broker"
"""The user with whom brokers log in to one another, and a cluster begins."""


def jaas(module: str, **options: str) -> str:
    shown = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{_SECURITY}.{module} required {shown};"


def token(user: str, seconds: float = 600) -> str:
    now = int(time.time())
    return jwt.encode({"sub": user, "iat": now, "exp": int(now + seconds)}, _KEY, "RS256", headers={"kid": "k"})


def write_keys(directory: Path) -> str:
    """The URL of the JWKS file that verifies tokens."""
    keys = directory / "keys.json"
    keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(_KEY.public_key(), as_dict=True) | {"kid": "k"}]}))
    return f"file://{keys}"


def write_properties(directory: Path, *more: str) -> Path:
    """A broker's configuration: clients by every mechanism, brokers by SCRAM-SHA-512."""
    keys = write_keys(directory)
    lines = (
        "listeners=OUT://127.0.0.1:0,IN://127.0.0.1:0",
        "inter.broker.listener.name=IN",
        "listener.security.protocol.map=OUT:SASL_PLAINTEXT,IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
        "listener.name.out.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"listener.name.out.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={keys}",
        "listener.name.out.plain.sasl.jaas.config="
        + jaas("plain.PlainLoginModule", user_alice=PASSWORD, user_bob="b" + PASSWORD),
        "listener.name.in.scram-sha-512.sasl.jaas.config="
        + jaas("scram.ScramLoginModule", username=BROKER, password=PASSWORD),
        *more,
    )
    path = directory / "server.properties"
    path.write_text("\n".join(lines) + "\n")
    return path


def client(mechanism: str, user: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
    """librdkafka's configs."""
    found: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return found | {"oauth_cb": lambda _: (token(user), time.time() + 500)}
    return found | {"sasl.username": user, "sasl.password": password}


def command_config(directory: Path, mechanism: str, user: str, password: str = PASSWORD) -> Path:
    """The same as a file by Java's names."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path = directory / f"{user}.properties"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={jaas(module, username=user, password=password)}\n"
    )
    return path
