"""Java: what VerifiableProducer wrote, VerifiableConsumer reads at the same offsets.

Once hot, once with every sealed segment only in the bucket.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.kafka_tools import kafka_tool, require_kafka
from tests.support.site import Site, wait_copied
from tests.support.stock_clients import create_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

TOPIC = "events"
COUNT = 20_000

Seen = dict[tuple[int, int], str]


def events(text: str, name: str) -> list[dict[str, Any]]:
    """The JSON lines of one kind that a tool printed."""
    lines = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("name") == name]


def produced(kafka: str) -> Seen:
    """(partition, offset) → value of every acknowledged record."""
    text = kafka_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", kafka, "--topic", TOPIC, "--max-messages", str(COUNT), "--acks", "-1"),
    )
    assert not events(text, "producer_send_error")
    return {(e["partition"], e["offset"]): e["value"] for e in events(text, "producer_send_success")}


def consumed(kafka: str, group: str) -> Seen:
    """What VerifiableConsumer saw, from the beginning."""
    text = kafka_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", kafka, "--topic", TOPIC, "--group-id", group, "--verbose"),
        *("--max-messages", str(COUNT), "--reset-policy", "earliest"),
    )
    return {(e["partition"], e["offset"]): e["value"] for e in events(text, "record_data")}


def test_the_java_client_reads_what_it_wrote_hot_and_cold(directory_site: Site) -> None:
    """Same value at every (partition, offset), and no record more."""
    require_kafka()
    site = directory_site
    site.settings["thermocline.reservation.offsets"] = 100_000  # VerifiableProducer does not retry by itself
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, 2, internal_segment_bytes=16384, local_retention_ms=1000)
        written = produced(broker.kafka)
        assert len(written) == COUNT
        assert consumed(broker.kafka, "hot") == written
        wait_copied(broker, TOPIC)
        wait_until(lambda: len(site.local_log_files(TOPIC)) <= 2, "sealed segments gone from the disk")
        assert consumed(broker.kafka, "cold") == written
