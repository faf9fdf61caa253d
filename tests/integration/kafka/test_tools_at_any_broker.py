"""Kafka's own tools ask any of three brokers: each says the same, refusals too, also after the one that decided died.

What the tools say of one broker is compared with Apache Kafka in `test_kafka_tools_beside.py`; groups are in
`test_group_command_peer.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka.kafka_console import KafkaConsole, kafka_console
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
OF_TOPIC = ("--entity-type", "topics", "--entity-name")

ASKED: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (0, TOPICS, ("--list",)),
    (0, TOPICS, ("--describe", "--topic", "made-.*")),
    (0, TOPICS, ("--describe", "--under-min-isr-partitions")),
    (1, TOPICS, ("--describe", "--topic", "nowhere")),
    (1, TOPICS, ("--create", "--topic", "made-0")),
    (1, TOPICS, ("--create", "--topic", "too-many", "--replication-factor", "4")),
    (1, TOPICS, ("--alter", "--topic", "made-0", "--partitions", "1")),
    (0, CONFIGS, ("--describe", *OF_TOPIC, "made-0")),
    (1, CONFIGS, ("--alter", *OF_TOPIC, "made-0", "--add-config", "nonsense=1")),
    (1, CONFIGS, ("--alter", *OF_TOPIC, "nowhere", "--add-config", "retention.ms=1")),
    (0, GROUPS, ("--list",)),
    (0, OFFSETS, ("--topic-partitions", "made-.*")),
)
"""Exit codes as Apache Kafka's, and what must be the same at each broker."""


def _all_say_the_same(cluster: Three, console: KafkaConsole) -> None:
    addresses = cluster.everywhere.split(",")
    for code, tool, words in ASKED:
        said = {}
        for node_id in sorted(cluster.alive()):
            found = console.run(tool, "--bootstrap-server", addresses[node_id - 1], *words)
            asked = f"--bootstrap-server {addresses[node_id - 1]}"  # said again where a tool fails
            said[node_id] = (found.code, sorted(found.out.splitlines()), _causes(found.err.replace(asked, "")))
        (first, *others) = said.values()
        assert first[0] == code and all(other == first for other in others), (tool, words, said)


def _causes(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.strip() and not line.startswith("\tat "))


def test_any_broker_takes_what_one_decides_also_when_that_one_died(directory_site: Site, tmp_path: Path) -> None:
    """Topics and configs through each broker in turn; then the controller is killed, and its successor asked at once
    through whoever is left."""
    require_kafka()
    with three(directory_site) as cluster, kafka_console(tmp_path) as console:
        addresses = cluster.everywhere.split(",")

        def made(node_id: int, name: str, replicas: int = 3) -> None:
            create = ("--create", "--topic", name, "--partitions", "3", "--replication-factor", str(replicas))
            said = console.run(TOPICS, "--bootstrap-server", addresses[node_id - 1], *create)
            assert said.code == 0, said
            alter = ("--alter", *OF_TOPIC, name, "--add-config", f"retention.ms={1000 * node_id}")
            said = console.run(CONFIGS, "--bootstrap-server", addresses[node_id - 1], *alter)
            assert said.code == 0, said

        for node_id in (1, 2, 3):
            made(node_id, f"made-{node_id - 1}")
        cluster.wait(cluster.is_whole, "every replica in sync", 90)
        _all_say_the_same(cluster, console)

        controller = cluster.controller()
        cluster.kill(controller)
        left = sorted(cluster.alive())
        for node_id in left:
            console.run(TOPICS, "--bootstrap-server", addresses[node_id - 1], "--describe")  # whatever it says by now
        cluster.wait_active(*left, timeout_s=90)
        made(left[0], "made-3", len(left))
        assert cluster.controller() in left
        cluster.wait(lambda: all(row.leader in left for row in cluster.rows("made-3")), "leaders", 90)
        cluster.wait(lambda: all(row.leader in left for row in cluster.rows("made-0")), "leaders", 90)
        _all_say_the_same(cluster, console)
