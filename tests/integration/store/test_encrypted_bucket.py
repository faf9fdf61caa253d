"""An encrypted bucket as operators and clients meet it: brokers, the command line, history readers, wrong keys."""

from __future__ import annotations

from tests.support.clients.stock_clients import Written, create_topic, digest, read_confluent, write_confluent

TOPIC = "orders-of-alice"
COUNT = 400
SECRET = b"account 4711 of Alice"


def some(mark: str, count: int = COUNT) -> list[Written]:
    return [Written(b"key", f"{mark} {n} ".encode() + SECRET * 10) for n in range(count)]


def write(kafka: str) -> str:
    create_topic(kafka, TOPIC, partitions=2, internal_segment_bytes=30_000, local_retention_bytes=1)
    for partition in (0, 1):
        write_confluent(kafka, TOPIC, partition, some(f"p{partition}"), "none", True)
    return digest(read_confluent(kafka, TOPIC, {0: COUNT, 1: COUNT}))
