"""Limits of single listeners beside Apache Kafka 4.3.1 (KIP-402, KIP-612): the same crowd comes to both.

A connection that has to wait is open for its peer (the kernel accepted it), so a time is that of its first response.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kafka.kafka_peer import kafka_with
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_process import running_broker
from tests.support.processes.ports import free_port_run

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

HERE = "127.0.0.1"
RATE = 5
MOST = 3
CROWD = 75
LIMITS = f"""
listener.name.slow.max.connection.creation.rate={RATE}
listener.name.few.max.connections={MOST}
"""
API_VERSIONS = bytes.fromhex("0000000a0012000000000001ffff")
WAIT_S = 60.0


class Listeners(NamedTuple):
    """Addresses: of the brokers' listener, of one with a rate, of one with few connections."""

    plain: tuple[str, int]
    slow: tuple[str, int]
    few: tuple[str, int]


def listeners(names: dict[str, int], spare: str = "") -> str:
    every = ",".join(f"{name}://{HERE}:{port}" for name, port in names.items())
    protocols = ",".join(f"{name}:PLAINTEXT" for name in (*names, "CONTROLLER"))
    return f"""
listeners={every}{spare}
advertised.listeners={every}
listener.security.protocol.map={protocols}
inter.broker.listener.name=PLAINTEXT
{LIMITS}"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Listeners, Listeners]]:
    """Kafka's and ours."""
    require_kafka()
    folder: Path = tmp_path_factory.mktemp("listeners")
    port, own = free_port_run(4), free_port_run(3)
    kafkas = {"PLAINTEXT": port, "SLOW": port + 2, "FEW": port + 3}
    ours = {"PLAINTEXT": own, "SLOW": own + 1, "FEW": own + 2}
    (folder / "server.properties").write_text(listeners(ours))
    with (
        kafka_with(folder / "kafka", port, listeners(kafkas, f",CONTROLLER://{HERE}:{port + 1}")),
        running_broker(folder / "data", None, "--config", str(folder / "server.properties"), listen=None),
    ):
        yield tuple(  # type: ignore[misc]
            Listeners(*((HERE, number) for number in names.values())) for names in (kafkas, ours)
        )


@contextlib.contextmanager
def crowd(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    """So many connections that have sent a request."""
    with contextlib.ExitStack() as ends:
        sockets = [ends.enter_context(socket.create_connection(address, timeout=WAIT_S)) for _ in range(count)]
        for each in sockets:
            each.sendall(API_VERSIONS)
        yield sockets


def answered(sockets: list[socket.socket], within_s: float, most: int | None = None) -> dict[int, float]:
    """Seconds until each was answered, by its place in the list: those of `within_s`, or the first `most`."""
    found: dict[int, float] = {}
    began_s = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for number, each in enumerate(sockets):
            selector.register(each, selectors.EVENT_READ, number)
        while len(found) < (len(sockets) if most is None else most):
            left_s = began_s + within_s - time.monotonic()
            if left_s <= 0:
                break
            for key, _ in selector.select(left_s):
                assert key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                found[key.data] = time.monotonic() - began_s
                selector.unregister(key.fileobj)
    return found


def test_a_listener_holds_a_crowd_back_and_the_others_let_it_in(both: tuple[Listeners, Listeners]) -> None:
    """A stated difference: Kafka lets the connections of eleven seconds in at once, and then one a second. Ours lets
    those of one second in at once, and the rest evenly at the rate."""
    found = []
    for side in both:
        with crowd(side.slow, CROWD) as waiting, crowd(side.plain, CROWD) as free:
            assert len(answered(free, 3.0)) == CROWD, side
            times = sorted(answered(waiting, WAIT_S).values())
        assert len(times) == CROWD, (side, times)
        found.append(times)
    kafkas, ours = found
    assert kafkas[11 * RATE - 1] < 1.0 and kafkas[11 * RATE + 5] > 3.0, kafkas
    evenly = [max(number + 1 - RATE, 0) / RATE for number in range(CROWD)]
    assert ours == pytest.approx(evenly, abs=0.7), ours


def test_a_listener_has_so_many_connections_and_the_next_waits_for_one_to_end(
    both: tuple[Listeners, Listeners],
) -> None:
    for side in both:
        with crowd(side.few, MOST) as inside:
            assert len(answered(inside, 10.0)) == MOST, side
            with crowd(side.few, 2) as outside:
                assert answered(outside, 1.0) == {}, side
                inside[0].close()
                assert len(answered(outside, 10.0, most=1)) == 1, side
                inside[1].close()
                inside[2].close()
