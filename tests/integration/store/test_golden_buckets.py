"""Buckets and data directories as brokers of each format left them: opened in place, read from the bucket alone.

Each holds topics `events` (three partitions of 35 records, 30 of them in the bucket alone, the last 5 from a second
life), `plain` (10 records), what is left of the deleted `gone`, the group `readers` at 45 of 90 records, a config set
on the broker; the `page` ones have 140 topics more, whose metadata does not fit `cluster.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from broker.metadata.producer_ids import PER_EPOCH
from tests.support.clients.stock_clients import Written, committed_offset, end_offsets, read_confluent, write_confluent
from tests.support.processes.broker_process import running_broker
from tests.support.processes.site import init_producer_id, thermocline
from tests.support.repository import ROOT
from thermocline.pipeline.history import History

LAST_OF_FORMAT_1 = "c4a3036"  # and of the program that knows no other
OPENED = ".kafka_cleanshutdown"  # goes as soon as any version opens the directory
BUCKETS = ("bucket_v1", "bucket_v1_page", "bucket_v2", "bucket_v2_page")


def extract(archive: tarfile.TarFile, to: Path) -> None:
    if hasattr(tarfile, "data_filter"):  # not in Python 3.11.2
        archive.extractall(to, filter="data")
    else:
        archive.extractall(to)


def extracted(name: str, to: Path) -> Path:
    with tarfile.open(ROOT / "tests" / "golden" / f"{name}.tar.xz") as archive:
        extract(archive, to)
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


@pytest.fixture(scope="module")
def program_of_format_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last version before format 2, out of this repository's own history."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", LAST_OF_FORMAT_1]
    done = subprocess.run(command, capture_output=True, check=False) if shutil.which("git") else None
    if done is None or done.returncode != 0:
        pytest.skip(f"no history here, so no program of format 1: {LAST_OF_FORMAT_1} is not to be had")
    place = tmp_path_factory.mktemp("format-1")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        extract(archive, place)
    return place


@contextlib.contextmanager
def served_by_format_1(sources: Path, place: Path, data_dir: str = "data") -> Iterator[subprocess.Popen[str]]:
    """That program over a golden directory and its bucket; killed at the end unless it ended already."""
    command = [sys.executable, "-m", "thermocline", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command += ["--data-dir", str(place / data_dir), "--bucket", f"file://{place}/bucket"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=sources, text=True, **pipes) as old:  # type: ignore[call-overload]
        try:
            yield old
        finally:
            old.kill()


@pytest.mark.parametrize("data_dir", ["data", "another"])
@pytest.mark.parametrize("name", ["bucket_v2", "bucket_v2_page"])
def test_the_program_of_format_1_refuses_format_2(
    name: str, data_dir: str, program_of_format_1: Path, tmp_path: Path
) -> None:
    """Whoever rolls back to it learns why it does not serve; neither bucket nor directory is another for it, but that
    the directory was opened, and ours goes on."""
    place = extracted(name, tmp_path)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != OPENED}
    with served_by_format_1(program_of_format_1, place, data_dir) as old:
        ready, said = old.communicate(timeout=60)
        assert (ready, old.returncode) == ("", 3), said
    assert "root cluster.json has format 2, this version knows 1; upgrade" in said
    assert {path: path.read_bytes() for path in before} == before
    with running_broker(place / "data", f"file://{place}/bucket") as broker:
        assert end_offsets(broker.kafka, "events", 3) == {0: 35, 1: 35, 2: 35}


def test_the_program_of_format_1_serves_format_1(program_of_format_1: Path, tmp_path: Path) -> None:
    """So nothing but the format is why it does not serve the others."""
    with served_by_format_1(program_of_format_1, extracted("bucket_v1", tmp_path)) as old:
        assert old.stdout is not None
        assert old.stdout.readline().startswith("ready ")
