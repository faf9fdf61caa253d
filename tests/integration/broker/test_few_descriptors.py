"""A topic of more partitions than there are descriptors for: it waits, and all that is open goes on."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.processes.site import Site
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

FEW = 400


def created(bootstrap: str, topic: str, partitions: int, timeout_s: float) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=timeout_s)[topic].result()
    except KafkaException:
        return False
    return True


def written(bootstrap: str, topic: str) -> bool:
    """By a new connection."""
    writer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 20_000, "log_level": 0})
    writer.produce(topic, b"record")
    return int(writer.flush(30)) == 0


def test_logs_and_connections_leave_descriptors_free(tmp_path: Path) -> None:
    """One CreateTopics took all of them: no connection was accepted any more, and no segment could be begun."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    with site.broker() as broker, ExitStack() as held:
        assert created(broker.kafka, "small", 1, 30)
        limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (FEW, limits[1]))
        assert not created(broker.kafka, "large", FEW, 5)
        assert written(broker.kafka, "small")
        wait_until(lambda: "descriptors" in broker.log(), "the log says why", 30)
        host, _, port = broker.kafka.rpartition(":")
        for _ in range(FEW):
            held.enter_context(socket.create_connection((host, int(port)), 10))
        wait_until(lambda: "a connection is refused" in broker.log(), "the log says it", 30)
        held.close()
        wait_until(lambda: written(broker.kafka, "small"), "it goes on", 60)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: len(list(site.data_dir().glob("large-*"))) == FEW, "the large topic is opened", 90)
