"""`thermocline bucket …` on a directory bucket that was filled as a copier fills it."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from broker.metadata.cluster_content import CLUSTER_FORMAT, ClusterContent, ClusterPage, Controller
from coldstore.keys import METADATA_PREFIX, cluster_key, manifest_key, metadata_key
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.roots.root import RootStore
from coldstore.segments.segment_sections import TRAILER_SIZE, VERSION
from coldstore.stores.directory import DirectoryStore
from logformat.record_batch import LEADER_EPOCH_AT
from logformat.values import NewerFormat
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng
from tests.support.pipeline.history_bucket import HistoryBucket, batch
from tests.support.store.memory_store import upload_of
from tests.support.tier.cold_objects import MadeObject, segment_object
from tests.support.tier.cold_values import TOPIC_ID
from thermocline.cli.bucket.reading import ColdPartition, cold_partitions
from thermocline.cli.main import main
from thermocline.pipeline.jobs.scrub.scrub import scrub

LS_FIELDS = re.findall(
    r"\w+",
    "topic topic_id partition base_offset end_offset leader_epoch log_bytes object_bytes records min_timestamp_ms "
    "max_timestamp_ms crc32c key",
)


@dataclass(frozen=True)
class Filled:
    """Topic `events`, partition 0: [0, 30) live in two segments; an orphan of epoch 1, whose records they hold, and one
    of the root's epoch 2."""

    path: Path
    segments: tuple[MadeObject, MadeObject]
    orphan: str
    pending: str

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def file(self, key: object) -> Path:
        return self.path / str(key)


async def fill(path: Path) -> Filled:
    workers = ThreadWorkers()
    store = DirectoryStore(PosixDisk(), workers, str(path), SeededRng(1))
    segments = (segment_object(0, [10, 10], epoch=2, n=1), segment_object(20, [10], epoch=2, n=2))
    orphan, pending = segment_object(10, [10], epoch=1, n=3), segment_object(30, [5], epoch=2, n=4)
    for made in (*segments, orphan, pending):
        await store.put_segment(str(made.key), upload_of(made.data))
    manifests = ManifestStore(store, TOPIC_ID, 0, SeededRng(2), SystemClock())
    await manifests.create(1, "events", {"retention.ms": "5"}, 100)
    await manifests.claim(2, "events", {"retention.ms": "5"})
    for made in segments:
        entry = made.entry
        await manifests.commit(lambda manifest, entry=entry: manifest.add(entry))  # type: ignore[misc]
    await write_cluster(store, None)
    await store.close()
    workers.close()
    return Filled(path, segments, str(orphan.key), str(pending.key))


async def write_cluster(store: DirectoryStore, page: ClusterPage | None) -> None:
    """`cluster.json` naming no page of metadata, or this one."""
    content = ClusterContent("cluster", Controller(1, "i"), page)
    root = RootStore(store, cluster_key(), CLUSTER_FORMAT, SeededRng(3), SystemClock())
    await root.commit(lambda found: content, epoch=1, claim=True, initial=content)


@pytest.fixture
def bucket(tmp_path: Path) -> Filled:
    return asyncio.run(fill(tmp_path / "bucket"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = main(["bucket", *words])
    return code, capsys.readouterr().out.splitlines()


def test_ls_lists_what_the_manifest_names(bucket: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """The contract's fields; end_offset is exclusive; orphans are not part of the log."""
    code, lines = run(capsys, "ls", bucket.url, "--json")
    rows = [json.loads(line) for line in lines]
    assert code == 0 and [list(row) for row in rows] == [LS_FIELDS] * 2
    assert [(row["base_offset"], row["end_offset"], row["records"]) for row in rows] == [(0, 20, 20), (20, 30, 10)]
    assert [row["key"] for row in rows] == [str(made.key) for made in bucket.segments]
    assert rows[0]["crc32c"] == bucket.segments[0].entry.crc32c and rows[0]["topic_id"] == str(TOPIC_ID)
    assert len(run(capsys, "ls", bucket.url, "--topic", str(TOPIC_ID), "--partition", "0")[1]) == 3
    assert run(capsys, "ls", bucket.url, "--topic", "other", "--json") == (0, [])


def test_dump_log_is_the_original_bytes_and_nothing_else(
    bucket: Filled, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`--log > file` gives a log file that any tool reads."""
    made = bucket.segments[0]
    assert main(["bucket", "dump", bucket.url, str(made.key), "--log"]) == 0
    assert capfdbinary.readouterr().out == made.log


def test_dump_shows_footer_batches_records_and_roots(bucket: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part of an object, and the JSON of a root."""
    key = str(bucket.segments[0].key)
    assert "end_offset           20" in run(capsys, "dump", bucket.url, key)[1]
    assert [line.split()[0] for line in run(capsys, "dump", bucket.url, key, "--batches")[1]] == ["batch"] * 2
    assert len(run(capsys, "dump", bucket.url, key, "--records")[1]) == 22
    root = json.loads("\n".join(run(capsys, "dump", bucket.url, manifest_key(TOPIC_ID, 0))[1]))
    assert root["content"]["topic"] == "events"
    assert main(["bucket", "dump", bucket.url, "no/such/key"]) == 2
    assert main(["bucket", "dump", bucket.url, manifest_key(TOPIC_ID, 1)]) == 1


def test_dump_refuses_damaged_bytes(bucket: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk is checked before it is written out."""
    file = bucket.file(bucket.segments[0].key)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert main(["bucket", "dump", bucket.url, str(bucket.segments[0].key), "--log"]) == 4
    shown = capsys.readouterr()
    assert shown.out == "" and "CRC" in shown.err


def test_manifest_is_shown_for_people_and_as_json(bucket: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """A partition that is not there is exit 1, by name."""
    _, lines = run(capsys, "manifest", bucket.url, "--topic", "events", "--partition", "0")
    text = "\n".join(lines)
    assert "remote_end_offset    30" in text and "2 segments, 30 records" in text and "retention.ms=5" in text
    _, (line,) = run(capsys, "manifest", bucket.url, "--topic", "events", "--partition", "0", "--json")
    assert json.loads(line)["reserved_end_offset"] == 100
    assert main(["bucket", "manifest", bucket.url, "--topic", "events", "--partition", "1"]) == 1


def test_verify_finds_nothing_wrong_but_orphans(bucket: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """Orphans are printed and are no damage."""
    for deep in ([], ["--deep"]):
        code, lines = run(capsys, "verify", bucket.url, "--json", *deep)
        rows = [json.loads(line) for line in lines]
        assert code == 0 and {row["key"]: row["kind"] for row in rows} == {
            bucket.orphan: "orphan, deletable",
            bucket.pending: "orphan, pending",
        }
        code, lines = run(capsys, "verify", bucket.url, *deep)
        assert code == 0 and lines[-1].endswith("0 damaged or missing, 2 other findings (no damage)")


def test_a_bucket_without_topics_is_told_from_a_wrong_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that has just begun has nothing amiss; a directory that is no bucket is not an empty one."""
    other, fresh = tmp_path / "other", tmp_path / "fresh"
    other.mkdir()
    (other / "notes.txt").write_text("no bucket")
    for verb in ("ls", "verify"):
        assert run(capsys, verb, f"file://{other}")[0] == 1
    fresh.mkdir()
    workers = ThreadWorkers()
    store = DirectoryStore(PosixDisk(), workers, str(fresh), SeededRng(1))
    asyncio.run(write_cluster(store, None))
    workers.close()
    assert run(capsys, "ls", f"file://{fresh}")[0] == 0
    code, lines = run(capsys, "verify", f"file://{fresh}")
    assert (code, lines[-1]) == (
        0,
        "0 partitions, every object's size and footer checked: 0 damaged or missing, 0 other findings",
    )
    (fresh / cluster_key()).write_text("{")
    assert run(capsys, "verify", f"file://{fresh}")[0] == 5


def test_verify_of_nothing_is_no_success(bucket: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped URL or topic must not look like a sound bucket."""
    assert run(capsys, "verify", f"file://{tmp_path}/mistyped") == (1, [])
    assert run(capsys, "verify", bucket.url, "--topic", "other") == (1, [])
    assert not (tmp_path / "mistyped").exists()


async def put_cluster(path: Path, page: bytes) -> str:
    """`cluster.json` naming one page of metadata; the page's key."""
    workers = ThreadWorkers()
    store = DirectoryStore(PosixDisk(), workers, str(path), SeededRng(1))
    key = metadata_key(1, 1, UUID(int=1, version=4))
    await write_cluster(store, ClusterPage(key, len(page), crc32c(page), 2))
    await store.put_segment(key, upload_of(page))
    await store.close()
    workers.close()
    return key


@pytest.mark.parametrize("harm", ["none", "page missing", "page damaged", "root damaged", "root gone"])
def test_verify_looks_at_the_clusters_metadata_too(
    bucket: Filled, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it no topic has a name: what `cluster.json` names must be there and whole."""
    page = bucket.path / asyncio.run(put_cluster(bucket.path, b"{}"))
    if harm == "page missing":
        page.unlink()
    elif harm == "page damaged":
        page.write_bytes(b"[]")
    elif harm == "root damaged":
        (bucket.path / cluster_key()).write_bytes(b"{")
    elif harm == "root gone":
        (bucket.path / cluster_key()).unlink()
    code, lines = run(capsys, "verify", bucket.url, "--json")
    damaged = [row for row in map(json.loads, lines) if row["damage"]]
    assert (code, len(damaged)) == ((0, 0) if harm == "none" else (5, 1))
    assert all(row["topic_id"] is None for row in damaged)


@pytest.mark.parametrize("command", [["bucket", "verify"], ["bucket", "gc"], ["scrub", "--dry-run"]])
@pytest.mark.parametrize(("key", "written", "known"), [(cluster_key(), 2, 2), (manifest_key(TOPIC_ID, 0), 1, 2)])
def test_files_of_a_newer_version_are_refused_and_not_damaged(
    bucket: Filled, command: list[str], key: str, written: int, known: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """verify and scrub called them unreadable, exit 5: whoever repairs such a bucket overwrites what is whole."""
    asyncio.run(put_cluster(bucket.path, b"{}"))
    root = bucket.path / key
    data = root.read_bytes()
    assert data.count(b'"format_version":%d' % written) == 1
    root.write_bytes(data.replace(b'"format_version":%d' % written, b'"format_version":%d' % (known + 1)))
    assert main([*command, bucket.url]) == 3
    said = capsys.readouterr()
    assert f"{key} has format {known + 1}, but this version knows {known}; upgrade" in said.err
    assert "unreadable" not in said.out


def test_a_segment_object_of_a_newer_version_is_refused_and_not_damaged(
    bucket: Filled, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trailer passes its CRC, so the version is what was written there."""
    path = bucket.file(bucket.segments[0].key)
    data = bytearray(path.read_bytes())
    covered = len(data) - TRAILER_SIZE
    struct.pack_into(">H", data, covered + 24, VERSION + 1)
    struct.pack_into(">I", data, covered + 28, crc32c(bytes(data[covered : covered + 28])))
    path.write_bytes(data)
    assert main(["bucket", "verify", bucket.url]) == 3
    assert "segment object has version 2, but this program knows 1; upgrade" in capsys.readouterr().err
    with pytest.raises(NewerFormat, match="has version 2, but this program knows 1"):
        scrub(None, bucket.url)


@pytest.mark.parametrize("harm", ["missing", "short", "flip", "swap", "manifest"])
def test_verify_exits_5_on_damage(bucket: Filled, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, cut, bit-rotten (deep), swapped objects, and a manifest that somebody deleted."""
    first, second = (bucket.file(made.key) for made in bucket.segments)
    data = bytearray(first.read_bytes())
    if harm == "missing":
        first.unlink()
    elif harm == "short":
        first.write_bytes(data[:-1])
    elif harm == "flip":
        data[300] ^= 1
        first.write_bytes(data)
    elif harm == "swap":
        other = second.read_bytes()
        second.write_bytes(data)
        first.write_bytes(other)
    else:
        bucket.file(manifest_key(TOPIC_ID, 0)).unlink()
    code, lines = run(capsys, "verify", bucket.url, "--deep", "--json")
    assert code == 5
    assert any(json.loads(line)["damage"] for line in lines)


@pytest.mark.parametrize("epoch", [1, 0, 7])
def test_verify_finds_a_batch_with_a_foreign_leader_epoch(
    tmp_path: Path, epoch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copied as it is, so that every checksum holds: the epochs in the footer say whose batch it should be."""
    history = HistoryBucket(tmp_path)
    history.topic("events")
    made = [bytearray(batch(base, 10)) for base in (0, 10, 20)]
    struct.pack_into(">i", made[2], LEADER_EPOCH_AT, epoch)
    key = history.append("events", 0, [bytes(one) for one in made])
    code, lines = run(capsys, "verify", history.url, "--deep", "--json")
    damaged = [row for row in map(json.loads, lines) if row["damage"]]
    if epoch == 1:
        assert (code, damaged) == (0, [])
    else:
        assert code == 5
        assert [(row["key"], row["offset"], "leader epoch" in row["detail"]) for row in damaged] == [
            (str(key), 20, True)
        ]


def test_gc_lists_first_and_deletes_only_what_nothing_can_name(
    bucket: Filled, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run unless told; what the running broker may still name stays, named objects too."""
    assert run(capsys, "gc", bucket.url)[0] == 0
    assert bucket.file(bucket.orphan).exists()
    _, lines = run(capsys, "gc", bucket.url, "--delete", "--json")
    assert {row["key"]: row["state"] for row in map(json.loads, lines)} == {
        bucket.orphan: "deleted",
        bucket.pending: "pending",
    }
    assert not bucket.file(bucket.orphan).exists() and bucket.file(bucket.pending).exists()
    assert main(["bucket", "verify", bucket.url, "--deep"]) == 0
    _, lines = run(capsys, "gc", bucket.url)
    assert "0 objects deletable" in lines[-2] and "pending" in lines[-1]


def test_gc_judges_cluster_metadata_only_by_cluster_json(bucket: Filled, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `cluster.json` nobody can say what its pages are: pending."""
    (bucket.path / cluster_key()).unlink()
    page = bucket.path / METADATA_PREFIX / f"{7:020d}-1-00000000-0000-4000-8000-000000000001.json"
    page.parent.mkdir(parents=True)
    page.write_bytes(b"{}")
    _, lines = run(capsys, "gc", bucket.url, "--delete", "--json")
    assert {"state": "pending", "bytes": 2, "key": str(page.relative_to(bucket.path))} in map(json.loads, lines)
    assert page.exists()


def test_probe_names_every_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory passes, races included; what it cannot prove by HEAD is read back."""
    code, lines = run(capsys, "probe", f"file://{tmp_path}/b", "--race")
    assert code == 0
    assert any(line.startswith("pass") and "If-None-Match" in line for line in lines)
    assert "one winner" in lines[-2] and "read-back" in lines[-1]


def test_tier_status_can_read_the_bucket(bucket: Filled) -> None:
    """Cold bytes and declared gaps without a broker's word."""
    log_bytes = sum(len(made.log) for made in bucket.segments)
    assert cold_partitions(bucket.url, None) == {("events", 0): ColdPartition(log_bytes, ())}
    assert cold_partitions(bucket.url, "other") == {}


@pytest.mark.parametrize("url", ["/no/scheme", "s3://k:s@bucket", "file:///b?x=y"])
def test_a_bad_url_is_exit_2(url: str) -> None:
    """Before anything is opened."""
    assert main(["bucket", "ls", url]) == 2
