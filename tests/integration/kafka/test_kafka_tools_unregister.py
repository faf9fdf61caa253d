"""`kafka-cluster.sh` (ClusterTool) at three brokers beside three nodes of Apache Kafka 4.3.1: who leaves, by name."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka.kafka_console import Said, kafka_console
from tests.support.kafka.kafka_peer import kafka_peers
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(300)]

TOOL = "org.apache.kafka.tools.ClusterTool"
DEAD = 3


def alike(said: Said) -> tuple[int, list[str]]:
    """How it ended and what it said, without ids, ports, stack frames."""
    lines = [line for line in (said.out + said.err).splitlines() if line.strip() and not line.startswith("\tat ")]
    lines = [re.sub(r"(?<=Cluster ID: )\S+", "…", line) for line in lines]
    return said.code, [re.sub(r"\s+", " ", re.sub(r"\b\d{4,5}\b", "PORT", line)).strip() for line in lines]


def is_gone(admin: AdminClient) -> bool:
    """Whether the dead node has no session any more. Its client may ask the dead node first."""
    try:
        return DEAD not in admin.list_topics(timeout=10).brokers
    except KafkaException as failed:
        if failed.args[0].code() != KafkaError._TIMED_OUT:
            raise
        return False


def test_who_left_is_unregistered_as_at_kafka(tmp_path: Path) -> None:
    """A node that nobody knows, one that is dead and holds nothing, the same again. One that runs and holds something
    is the one difference: Kafka lets it go, ours says that it is to be stopped first."""
    require_kafka()
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    with (
        kafka_peers(tmp_path / "kafka", 3) as (kafka, pids),
        kafka_console(tmp_path) as console,
        three(site) as cluster,
    ):

        def both(*words: str) -> tuple[Said, Said]:
            of_kafka, ours = (
                console.run(TOOL, words[0], "--bootstrap-server", address, *words[1:])
                for address in (kafka, cluster.everywhere)
            )
            return of_kafka, ours

        def same(*words: str) -> list[str]:
            of_kafka, ours = both(*words)
            assert alike(ours) == alike(of_kafka), f"{words}\n{of_kafka}\n{ours}"
            return alike(ours)[1]

        admins = [
            AdminClient({"bootstrap.servers": address, "log_level": 0}) for address in (kafka, cluster.everywhere)
        ]
        for admin in admins:
            admin.create_topics([NewTopic("held", 1, replica_assignment=[[2, 1]])])["held"].result(60)
        endpoints = "list-endpoints", "--include-fenced-brokers"
        same("cluster-id")
        assert any("Broker ID 9 is not currently registered" in line for line in same("unregister", "--id", "9"))
        assert len(same("list-endpoints")) == 4
        os.kill(pids[DEAD - 1], signal.SIGKILL)
        cluster.kill(DEAD)
        for admin in admins:
            wait_until(partial(is_gone, admin), "its session ended", 60)
        assert any(line.startswith(f"{DEAD} ") and " fenced " in line for line in same(*endpoints))
        assert same("unregister", "--id", str(DEAD)) == [f"Broker {DEAD} is no longer registered."]
        assert any("is not currently registered" in line for line in same("unregister", "--id", str(DEAD)))
        assert len(same(*endpoints)) == 3
        of_kafka, ours = both("unregister", "--id", "2")
        assert of_kafka.code == 0 and ours.code == 1 and "broker 2 has a session: stop it first" in ours.err
