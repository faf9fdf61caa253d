"""Rows of TLS: produce, fetch and handshakes with one certificate (P-256) and one suite (TLS_AES_256_GCM_SHA384).

Topics are made over a plaintext listener beside; the load goes over the one with TLS, on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import loads
from bench.sides import Side, Thermocline, create, delete, kafka_peer
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row
from tests.support.net.certificates import Authority

_SUITE: Final = "TLS_AES_256_GCM_SHA384"


class _Sides(NamedTuple):
    kafka: Side
    ours: Side


_started: dict[Stage, _Sides] = {}


def _sides(stage: Stage) -> _Sides:
    """Both brokers with TLS, started once for all rows."""
    if stage in _started:
        return _started[stage]
    keys = Path(stage.root) / "tls-broker.pem"
    keys.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": Authority().sign("broker").write(keys),
        "ssl.cipher.suites": _SUITE,
        "max.connection.creation.rate": 1_000_000,
    }
    own = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", **settings, **PAGED}
    ours = stage.sides.enter_context(
        Thermocline(stage.root, "tls", settings=own, python=stage.python, listen=None).running()
    )
    if stage.beside is None:
        kafka = stage.sides.enter_context(kafka_peer(settings, tls=True))
        topic = create(kafka, "warm-tls", 4)
        loads.produce(kafka, topic, 4, 16 << 10, seconds=6)
        delete(kafka, topic)
    else:
        kafka = stage.sides.enter_context(
            Thermocline(stage.root, "other-tls", None, None, own, stage.beside, stage.peer_python, None).running()
        )
    _started[stage] = _Sides(kafka, ours)
    return _started[stage]


def produce(name: str, batch: int, nbytes: int, stage: Stage) -> list[Row]:
    kafka, ours = _sides(stage)
    row = Row(
        f"tls-produce-{name}", f"TLS: produce {batch:,} B × 4 connections × 5 in flight", "requests/s", Floor(1.0)
    )

    def run(side: Side) -> Measured:
        def load(topic: str) -> Measured:
            return Measured.requests(loads.produce(side, topic, 4, batch, 1024, seconds=5.0, warm=2.0))

        return stage.writing(side, row.name, 4, load, nbytes)

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


def fetch(floor: float, stage: Stage, *, cold: bool) -> list[Row]:
    kafka, ours = _sides(stage)
    heat = "cold" if cold else "hot"
    row = Row(f"tls-fetch-{heat}", f"TLS: fetch 1 MB, {heat}, 1 connection", "MB/s", Floor(floor))

    def run(side: Side) -> Measured:
        log = stage.log(side, 1, cold=cold)
        return stage.reading(side, lambda: Measured.speed(loads.fetch(side, log.topic, 1, log.end)))

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


def handshakes(floor: float, stage: Stage, *, resumed: bool) -> list[Row]:
    kafka, ours = _sides(stage)
    name = "resumed" if resumed else "handshakes"
    row = Row(f"tls-{name}", f"TLS: {name} a second, 4 connections, P-256", "connections/s", Floor(floor))

    def run(side: Side) -> Measured:
        return stage.settled(lambda: Measured.requests(loads.handshakes(side, resumed=resumed)))

    return stage.compare(row, lambda: run(kafka), lambda: run(ours))


BENCHMARKS: Final[dict[str, Callable[[Stage], list[Row]]]] = {
    "tls-produce-16kb": partial(produce, "16kb", 16 << 10, 4 << 30),
    "tls-produce-1mb": partial(produce, "1mb", 1 << 20, 6 << 30),
    "tls-fetch-hot": partial(fetch, 0.9, cold=False),
    "tls-fetch-cold": partial(fetch, 1.0, cold=True),
    "tls-handshakes": partial(handshakes, 0.5, resumed=False),
    "tls-resumed": partial(handshakes, 0.5, resumed=True),
}
