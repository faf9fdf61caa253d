"""Committed offsets belong to a topic, not to its name: a topic made anew is read from its start."""

from __future__ import annotations

import signal

import pytest
from confluent_kafka import KafkaException

from broker.wire.apis import ApiKey
from broker.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse
from tests.support.clients.stock_clients import commit_offset, committed_offset, create_topic, delete_topic
from tests.support.processes.site import Site, thermocline
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

TOPIC, GROUP, NOTHING_COMMITTED = "again", "readers", -1001
LINES = [f"new {i}" for i in range(50)]


def _read_as_group(bootstrap: str) -> list[str]:
    found = thermocline(
        "consume", "-b", bootstrap, "-t", TOPIC, "-g", GROUP, "-o", "beginning", "-n", str(len(LINES)), "-e"
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def _make_again_and_read(bootstrap: str) -> list[str]:
    create_topic(bootstrap, TOPIC)
    written = thermocline("produce", "-b", bootstrap, "-t", TOPIC, stdin="\n".join(LINES) + "\n")
    assert written.returncode == 0, written.stderr
    assert committed_offset(bootstrap, GROUP, TOPIC, 0) == NOTHING_COMMITTED
    return _read_as_group(bootstrap)


def test_killed_between_the_deletion_and_the_tombstones(directory_site: Site) -> None:
    """The deletion is in the bucket, the tombstones nowhere: 42 records of the new topic were skipped."""
    directory_site.settings["thermocline.testing"] = "true"
    with directory_site.broker(environment={"THERMOCLINE_CRASH_AT": "topic.deleted"}) as broker:
        create_topic(broker.kafka, TOPIC)
        commit_offset(broker.kafka, GROUP, TOPIC, 0, 42)
        with pytest.raises(KafkaException):
            delete_topic(broker.kafka, TOPIC)
        assert broker.wait() == -signal.SIGKILL
    with directory_site.broker() as broker:
        assert _make_again_and_read(broker.kafka) == LINES
        broker.kill()
    with directory_site.broker() as broker:
        assert committed_offset(broker.kafka, GROUP, TOPIC, 0) in (NOTHING_COMMITTED, len(LINES))


def test_a_deletion_that_outlives_its_request(directory_site: Site) -> None:
    """DeleteTopics with a timeout of 1 ms: the answer comes first, then the deletion."""
    with directory_site.broker() as broker:
        create_topic(broker.kafka, TOPIC)
        commit_offset(broker.kafka, GROUP, TOPIC, 0, 42)
        host, _, port = broker.kafka.rpartition(":")

        def deleted() -> bool:
            with WireClient(host, int(port)) as client:  # again where even its beginning took longer than that
                request = DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1)
                client.call(ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse, version_max=5)
            return _is_free(broker.kafka)

        wait_until(deleted, "the topic is gone")
        assert _make_again_and_read(broker.kafka) == LINES


def _is_free(bootstrap: str) -> bool:
    listed = thermocline("topic", "list", "-b", bootstrap)
    assert listed.returncode == 0, listed.stderr
    return TOPIC not in listed.stdout.split()
