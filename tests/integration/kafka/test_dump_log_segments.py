"""Kafka's `DumpLogSegments --deep-iteration` accepts every local file and the log bytes of every object."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from broker.groups.records import CommittedOffset, OffsetKey, offset_record
from broker.internal_topics.batches import batch_of
from tests.support.clients.stock_clients import Written, create_topic, write_confluent
from tests.support.kafka.kafka_tools import kafka_tool, require_kafka
from tests.support.processes.site import Site, wait_copied

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

TOPIC = "events"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The tool begins to count at −1, so every segment that does not start at 0 is announced as "Non-consecutive", with the
# one pair "-1 is followed by <base>"; Kafka's own segments are too. Any other pair is a complaint.
_COMPLAINTS = re.compile(r"mismatch|^\s+\d+ is followed by|invalid|corrupt|exception|does not", re.IGNORECASE)
_FINE = re.compile(r"isvalid: true|sanity check passed", re.IGNORECASE)


def dump(*files: Path) -> str:
    """DumpLogSegments over some files of one directory; AssertionError for anything it complains about."""
    names = ",".join(str(file) for file in files)
    found = kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", names)
    complaints = [line for line in found.splitlines() if _COMPLAINTS.search(line) and not _FINE.search(line)]
    assert not complaints, complaints[:5]
    return found


def test_kafka_reads_every_local_file_and_every_object(directory_site: Site, tmp_path: Path) -> None:
    """All codecs, several segments, clean and after a roll: logs, indexes, producer snapshots; then the objects."""
    require_kafka()
    site = directory_site
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, internal_segment_bytes=65536, local_retention_ms=-2)
        for number, codec in enumerate(CODECS):
            records = [
                Written(b"%d" % n, b"%d-" % n + bytes(700), 1_700_000_000_000 + n, (("codec", codec.encode()),))
                for n in range(number * 200, number * 200 + 200)
            ]
            write_confluent(broker.kafka, TOPIC, 0, records, codec, True)
        wait_copied(broker, TOPIC)
        keys = sorted(key for key in site.bucket.listing() if "/segments/" in key)
        assert broker.stop() == 0
    partition = site.data_dir() / f"{TOPIC}-0"
    local = [
        file
        for ending in ("log", "index", "timeindex", "snapshot")
        for file in sorted(partition.glob(f"*.{ending}"))
        if file.stat().st_size or ending == "log"
    ]
    assert len([file for file in local if file.suffix == ".log"]) > 3
    assert "baseOffset" in dump(*local)
    assert len(keys) > 2
    for key in keys:
        base = key.rsplit("/", 1)[1].split("-")[0]
        log_file = tmp_path / f"{base}.log"
        with log_file.open("wb") as out:
            command = [sys.executable, "-m", "thermocline", "bucket", "dump", site.bucket.url, key, "--log"]
            subprocess.run(command, stdout=out, check=True, timeout=60)
        assert "baseOffset" in dump(log_file), key


def test_kafka_reads_a_commit_with_a_retention_of_its_own(tmp_path: Path) -> None:
    """Written with the topic id, which Kafka's version 1 has no room for, and a tagged field that Kafka skips."""
    require_kafka()
    value = CommittedOffset(5, 1, "m", 1_000, expire_at_ms=123_456, topic_id=UUID(int=7))
    log_file = tmp_path / f"{0:020}.log"
    log_file.write_bytes(batch_of([offset_record(OffsetKey("g", "t", 0), value)], 1_000))
    found = kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(log_file))
    (payload,) = re.findall(r"payload: (\{.*\})", found)
    topic_id = base64.urlsafe_b64encode(value.topic_id.bytes).decode().rstrip("=")
    said = {"offset": 5, "leaderEpoch": 1, "metadata": "m", "commitTimestamp": 1_000, "topicId": topic_id}
    assert json.loads(payload) == {"version": "4", "data": said}
