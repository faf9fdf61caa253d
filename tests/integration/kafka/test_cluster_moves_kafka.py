"""`thermocline cluster drain` and `rebalance` on four nodes of Apache Kafka 4.3.1: the same plan, the same requests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients.writing import Writing
from tests.support.kafka.kafka_peer import kafka_peers
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import json_lines, thermocline

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(400)]


def test_kafka_is_drained_and_levelled(tmp_path: Path) -> None:
    """Local bytes are what moves there, and nothing is said of a bucket; a node that is drained holds nothing."""
    require_kafka()
    with kafka_peers(tmp_path / "kafka", 4) as (kafka, _):
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_topics([NewTopic("orders", 8, 3)])["orders"].result(60)
        writing = Writing(kafka, "orders")
        writing.write("x" * 1000, 1000)
        writing.flush()

        def run(*words: str) -> tuple[list[dict], str]:
            done = thermocline("cluster", *words, "--yes", "--json", "-b", kafka, timeout_s=120)
            assert done.returncode == 0, done.stderr
            return json_lines(done.stdout), done.stderr

        def held() -> Counter[int]:
            found = admin.list_topics(timeout=30).topics.values()
            return Counter(node for topic in found for each in topic.partitions.values() for node in each.replicas)

        plan, said = run("drain", "4")
        assert plan and all(4 in move["from"] and 4 not in move["to"] for move in plan)
        assert all(move["cold_bytes"] is None for move in plan)
        sizes = {(move["topic"], move["partition"]): move["hot_bytes"] for move in plan}
        assert all(size > 1_000_000 for name, size in sizes.items() if name == ("orders", 0))
        assert held()[4] == 0 and "broker 4 holds nothing" in said
        plan, _ = run("rebalance")
        assert {node for move in plan for node in move["to"]} >= {4}
        assert max(held().values()) - min(held()[node] for node in (1, 2, 3, 4)) <= 1
        plan, said = run("rebalance")
        assert plan == [] and "nothing moves" in said
