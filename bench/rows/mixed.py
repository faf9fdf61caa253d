"""Rows of produce latency while eight readers replay what is cold."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench import loads
from bench.sides import Side
from bench.stage import Stage
from bench.table import Floor, Measured, Row

READERS: Final = 8
PRODUCE_BYTES_PER_S: Final = 20_000_000
READ_BYTES_PER_S: Final = 20_000_000  # each
BATCH: Final = 16 << 10
SECONDS: Final = 8.0


def p99(side: Side, topic: str, acks: str) -> Measured:
    """Produce at 20 MB/s in requests of 16 KiB over 4 connections, open loop."""
    rate = PRODUCE_BYTES_PER_S / BATCH
    return Measured.p99(loads.produce(side, topic, 4, BATCH, 1024, acks=acks, rate=rate, seconds=SECONDS, warm=2.0))


def replaying(acks: str, stage: Stage) -> list[Row]:
    """Ours with readers: against ours without, and against Kafka (acks=1, no fsync) with the same readers."""
    ours = stage.synced
    kafka = stage.peer_of(ours)
    name = f"mixed-acks{acks}"
    work = f"p99 of produce, acks={acks}, at 20 MB/s while {READERS} readers replay cold at 20 MB/s each"
    alone = Row(f"{name}/without", f"{work}; beside: ours without readers", "ms", Floor(3.0, lower_is_better=True))
    peer = Row(f"{name}/kafka", f"{work}; Kafka acks=1", "ms", Floor(1.0, lower_is_better=True))
    read: dict[str, list[float]] = {kafka.name: [], ours.name: []}
    logs = {side.name: stage.log(side, READERS, cold=True) for side in (kafka, ours)}

    def beside_readers(side: Side, acks: str) -> Measured:
        return stage.writing(side, name, 4, lambda topic: replay(side, topic, acks))

    def replay(side: Side, topic: str, acks: str) -> Measured:
        rate = READERS * READ_BYTES_PER_S / loads.FETCH
        log = logs[side.name]
        with loads.fetching(side, log.topic, READERS, log.end, rate=rate, seconds=SECONDS + 3.0, w=1.0) as readers:
            found = p99(side, topic, acks)
            read[side.name].append(readers.finish().mb_per_s)
        return Measured(found.value)

    def both() -> None:
        found = beside_readers(ours, acks)
        alone.ours.append(found)
        peer.ours.append(found)

    def without() -> Measured:
        return stage.writing(ours, name, 4, lambda topic: Measured(p99(ours, topic, acks).value))

    if stage.beside is not None:
        return stage.compare(peer, lambda: beside_readers(kafka, acks), lambda: beside_readers(ours, acks))
    stage.rounds_of(
        [alone, peer],
        lambda: peer.peer.append(beside_readers(kafka, "1")),
        lambda: alone.peer.append(without()),
        both,
    )
    reached = ", ".join(
        f"{name} {' '.join(f'{rate:.0f}' for rate in rates[-len(peer.ours) :])}" for name, rates in read.items()
    )
    peer.notes = f"the readers reached MB/s: {reached}"
    return [alone, peer]


BENCHMARKS: Final = {"mixed-acks1": partial(replaying, "1"), "mixed-acksall": partial(replaying, "all")}
