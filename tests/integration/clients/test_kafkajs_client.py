"""KafkaJS as a program uses it: produce in four ways, read by a group, and what its admin client asks.

KafkaJS's own tests are in none of its packages, so they cannot be run from here; this client can.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.kafkajs_package import require_kafkajs, run_program
from tests.support.processes.broker_process import running_broker
from tests.support.repository import ROOT

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

PROGRAM = ROOT / "tests/support/clients/kafkajs_client.js"
RECORDS = 6_000


def kafkajs(work: Path, bootstrap: str) -> dict[str, Any]:
    """What the program prints, with the package installed in `work`."""
    return run_program(require_kafkajs(work), PROGRAM, bootstrap, str(RECORDS))


def test_a_kafkajs_program_from_its_first_topic_to_its_last_group(tmp_path: Path) -> None:
    """Every record once, in order, as it was sent; groups, offsets, configs and deletions as its admin shows them."""
    settings = {"group.initial.rebalance.delay.ms": 0}
    with running_broker(tmp_path / "data", f"file://{tmp_path}/bucket", settings=settings) as broker:
        saw = kafkajs(tmp_path, broker.kafka)
    assert saw["created"] is True and saw["nodes"] == 1
    by_partition: dict[int, list[list[Any]]] = {}
    for row in saw["seen"]:
        by_partition.setdefault(row[0], []).append(row)
    assert set(by_partition) == {0, 1, 2}
    for rows in by_partition.values():
        assert [row[1] for row in rows] == list(range(len(rows)))
        indexes = [int(row[5]) for row in rows]
        assert indexes == sorted(indexes), "records of a partition changed their order"
    records = sorted((int(index), key, value, timestamp) for _, _, key, value, timestamp, index in saw["seen"])
    assert records == [(i, f"key-{i}", f"value {i} {'é' * (i % 50)}", 1_700_000_000_000 + i) for i in range(RECORDS)]
    counts = {str(partition): len(rows) for partition, rows in by_partition.items()}
    assert {str(row["partition"]): int(row["high"]) for row in saw["ends"]} == counts

    assert saw["members"] == 1 and saw["refused"] == "NON_EMPTY_GROUP"
    assert saw["groups"] == [{"groupId": "kafkajs-readers", "protocolType": "consumer"}]
    assert saw["state"] == "Empty"
    committed = {str(row["partition"]): int(row["offset"]) for row in saw["committed"][0]["partitions"]}
    assert committed == counts
    assert {row["partition"]: row["offset"] for row in saw["set"][0]["partitions"]}[0] == "5"
    assert saw["left"] == []

    assert saw["retention"] == "3600000"
    assert {row["partition"]: row["low"] for row in saw["trimmed"]} == {0: "7", 1: "0", 2: "0"}
    assert "kafkajs-events" not in saw["topics"]
