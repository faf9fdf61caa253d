"""SCRAM logins a second: this broker beside Apache Kafka, each login on a connection of its own.

    python bench/logins.py [--seconds 5] [--clients 16] [--addresses 8]

The client is the same for both: it salts the password once, so that a login costs it a few hashes. Broker CPU is told
for each login, because the client takes a core for itself. The clients share some loopback addresses, because this
broker judges 3 000 messages of logins a second of one address (`broker/security/sasl/limits.py`): 1 000 logins,
whatever they cost. Prints a line of JSON for each side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.sides import KAFKA
from broker.config.network.sasl import PasswordLogin
from broker.security.sasl.client_login import ClientLogin, SaltedPasswords, check_answer, check_handshake
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import parse_response_header, request_frame
from broker.wire.message import Message
from broker.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support.processes.broker_process import running_broker
from tests.support.processes.ports import free_port_run

MECHANISM: Final = "SCRAM-SHA-256"
LOGIN: Final = PasswordLogin(MECHANISM, "bench", "bench-password")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_JAAS: Final = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="{LOGIN.username}" password="{LOGIN.password}";'
)


async def _ask(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], key: ApiKey, request: Message) -> Any:
    reader, writer = streams
    version = 1
    writer.write(b"".join(request_frame(key, version, 1, "bench", encode_request(key, version, request))))  # type: ignore[arg-type]
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = memoryview(await reader.readexactly(size))
    _, at = parse_response_header(frame, key, version)
    return decode_response(key, version, frame[at:])


async def log_in(port: int, salted: SaltedPasswords, address: str = "127.0.0.1") -> None:
    streams = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    login = ClientLogin(LOGIN, secrets.token_hex(16), salted)
    check_handshake(MECHANISM, await _ask(streams, ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(MECHANISM)))
    token: bytes | None = login.first_token()
    while token is not None:
        answer = await _ask(streams, ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
        token = login.next_token(check_answer(MECHANISM, answer))
    streams[1].close()


async def measure(port: int, seconds: float, clients: int, addresses: int) -> int:
    """Logins done in `seconds`, after as many of warming up."""
    salted = SaltedPasswords()
    done = 0

    async def client(until_s: float, address: str) -> None:
        nonlocal done
        while time.monotonic() < until_s:
            await log_in(port, salted, address)
            done += 1

    for _ in range(2):
        done, until_s = 0, time.monotonic() + seconds
        await asyncio.gather(*(client(until_s, f"127.0.0.{1 + number % addresses}") for number in range(clients)))
    return done


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def ours(root: Path) -> Iterator[tuple[int, int]]:
    """Port and pid."""
    config = root / "ours.properties"
    config.write_text(
        "listeners=IN://127.0.0.1:0\nlistener.security.protocol.map=IN:SASL_PLAINTEXT\n"
        f"sasl.enabled.mechanisms={MECHANISM}\nlistener.name.in.scram-sha-256.sasl.jaas.config={_JAAS}\n"
        "max.connection.creation.rate=100000\nmax.connections.per.ip=100000\n"
    )
    with running_broker(root / "ours", None, "--config", str(config), listen=None) as broker:
        yield int(broker.kafka.rpartition(":")[2]), broker.pid


@contextmanager
def kafka(root: Path) -> Iterator[tuple[int, int]]:
    """Port and pid."""
    port = free_port_run(3)
    run = root / "kafka"
    settings = (
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1},IN://127.0.0.1:{port + 2}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,IN:SASL_PLAINTEXT\n"
        f"sasl.enabled.mechanisms={MECHANISM}\nlistener.name.in.scram-sha-256.sasl.jaas.config={_JAAS}\n"
    )
    environment = {**os.environ, "KAFKA_PEER_RUN": str(run), "KAFKA_PEER_SETTINGS": settings}
    subprocess.run([KAFKA, "start", str(port), "1"], check=True, env=environment, stdout=subprocess.DEVNULL)
    pid = int((run / "pid-1").read_text())
    try:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        user = UserScramCredentialUpsertion(LOGIN.username, info, LOGIN.password.encode())
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        admin.alter_user_scram_credentials([user])[LOGIN.username].result(30)
        time.sleep(2)  # the user's record reaches the broker's image
        yield port + 2, pid
    finally:
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--clients", type=int, default=16)
    options.add_argument("--addresses", type=int, default=8)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, side in (("kafka", kafka), ("ours", ours)):
            with side(Path(folder)) as (port, pid):
                before = cpu_s(pid)
                logins = asyncio.run(measure(port, asked.seconds, asked.clients, asked.addresses))
                took = cpu_s(pid) - before
            row = {"side": name, "logins_per_s": round(logins / asked.seconds), "cpu_ms": round(took / logins * 500, 3)}
            print(json.dumps(row))


if __name__ == "__main__":
    main()
