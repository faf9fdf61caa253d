"""Buckets and data directories as brokers of each format left them: opened in place, read from the bucket alone.

Each holds topics `events` (three partitions of 35 records, 30 of them in the bucket alone, the last 5 from a second
life), `plain` (10 records), what is left of the deleted `gone`, the group `readers` at 45 of 90 records, a config set
on the broker; the `page` ones have 140 topics more, whose metadata does not fit `cluster.json`.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from broker.metadata.producer_ids import PER_EPOCH
from tests.support.broker_process import running_broker
from tests.support.repository import ROOT
from tests.support.site import init_producer_id, thermocline
from tests.support.stock_clients import Written, committed_offset, end_offsets, read_confluent, write_confluent
from thermocline.pipeline.history import History

BUCKETS = ("bucket_v1", "bucket_v1_page", "bucket_v2", "bucket_v2_page")


def extracted(name: str, to: Path) -> Path:
    with tarfile.open(ROOT / "tests" / "golden" / f"{name}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to


def root_of(place: Path) -> dict:
    return json.loads((place / "bucket" / "cluster.json").read_text())


@pytest.mark.parametrize("name", BUCKETS)
def test_a_golden_bucket_opens_in_place(name: str, tmp_path: Path) -> None:
    """Nothing is missing, offsets and groups go on, producer ids and leader epochs only grow; the bucket is sound, and
    of format 2 from then on."""
    place = extracted(name, tmp_path)
    root = before = root_of(place)
    assert before["format_version"] == int(name.split("_")[1][1:])
    bucket = f"file://{place}/bucket"
    for life in range(2):
        with running_broker(place / "data", bucket) as broker:
            assert root_of(place)["version"] == root["version"] + 1, "a start is one commit"
            ends = {0: 35 + life, 1: 35, 2: 35}
            assert end_offsets(broker.kafka, "events", 3) == ends
            found = read_confluent(broker.kafka, "events", ends)
            values = [(r.partition, r.value) for r in sorted(found, key=lambda r: (r.partition, r.offset))]
            assert values[0] == (0, b"first-0-0-" + b"x" * 300)
            assert [value for partition, value in values if partition == 2][30:] == [
                b"second-2-%d" % n for n in range(5)
            ]
            assert [r.value for r in read_confluent(broker.kafka, "plain", {0: 10})] == [
                b"plain-%d" % n for n in range(10)
            ]
            assert sum(max(committed_offset(broker.kafka, "readers", "events", n), 0) for n in range(3)) == 45
            admin = AdminClient({"bootstrap.servers": broker.kafka})
            topics = admin.list_topics(timeout=20).topics
            assert ("gone" in topics, len(topics)) == (False, 143 if "page" in name else 3)
            wanted = ConfigResource(ResourceType.BROKER, "1")
            assert admin.describe_configs([wanted])[wanted].result(20)["max.connections"].value == "500"
            assert init_producer_id(broker.kafka) >= PER_EPOCH
            write_confluent(broker.kafka, "events", 0, [Written(None, b"new")], "none", True)
            assert broker.stop() == 0
        root = root_of(place)
        assert (root["format_version"], root["epoch"]) == (2, before["epoch"] + life + 1)
        verified = thermocline("bucket", "verify", bucket, "--deep")
        assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize("name", BUCKETS)
def test_a_golden_bucket_is_read_by_those_who_need_no_broker(name: str, tmp_path: Path) -> None:
    """Both formats: the commands about buckets, and history in bulk."""
    place = extracted(name, tmp_path)
    bucket = f"file://{place}/bucket"
    for command in (("ls",), ("verify", "--deep"), ("gc",)):
        done = thermocline("bucket", command[0], bucket, *command[1:])
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    with History.open(bucket) as history:
        topics = history.topics()
        assert {name: topic.partitions for name, topic in topics.items() if not name.startswith("many-")} == {
            "events": 3,
            "plain": 1,
        }
        assert len(topics) == (142 if "page" in name else 2)
        assert [history.partition("events", n).remote_end for n in range(3)] == [30, 30, 30]
