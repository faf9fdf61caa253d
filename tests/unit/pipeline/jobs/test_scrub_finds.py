"""Scrub finds every corruption that is planted, names object and offset, and is quiet about a whole bucket.

In this process; the same on Spark is in tests/integration/pipeline/test_scrub_job.py.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from coldstore.inspection.audit import FindingKind
from coldstore.keys import CLUSTER_KEY, MetadataKey, PageKey, SegmentKey, SnapshotKey, manifest_key, parse_key
from coldstore.object_store import Got, ObjectInfo
from coldstore.roots.root_format import RootCodec, RootFormat
from logformat.errors import InvalidRequest
from logformat.record_batch import LEADER_EPOCH_AT
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.findings import Located
from thermocline.pipeline.arrow_store import ArrowStore
from thermocline.pipeline.jobs.scrub import scrub as scrub_module
from thermocline.pipeline.jobs.scrub.scrub import ScrubReport, scrub
from thermocline.pipeline.jobs.scrub.scrub_journal import Journal
from thermocline.pipeline.jobs.scrub.scrub_view import PartitionInspection, Place, inspect_partition, places
from thermocline.pipeline.jobs.scrub.scrub_worker import Blob, ScrubDone, ScrubTask
from thermocline.pipeline.jobs.spark_tasks import InProcess

SEEDS = 120
TOPIC_ID = UUID(int=7)
ONCE = ("missing", "missing page", "missing manifest", "swapped", "truncated", "emptied", "grown", "cluster")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> HistoryBucket:
    """Two topics, pages on two levels, segments of several chunks, a declared gap's worth of everything."""
    bucket = HistoryBucket(tmp_path_factory.mktemp("whole"), pages=True)
    bucket.topic("events", 2)
    bucket.fill("events", 0, [[20, 30]] * 30, value_bytes=60)
    bucket.fill("events", 1, [[40] * 5, [60]], value_bytes=200)
    bucket.topic("other", 1)
    bucket.fill("other", 0, [[5], [5]])
    sum_cluster(bucket)
    return bucket


class Cluster(msgspec.Struct):
    cluster_id: str
    controller: dict[str, object]
    page: None
    folded: int
    records: list[dict[str, object]]


def sum_cluster(bucket: HistoryBucket) -> None:
    """The kit writes `cluster.json` by hand; a broker writes its checksum too."""
    assert bucket.path is not None
    path = bucket.path / "cluster.json"
    codec = RootCodec(RootFormat(2, {2: Cluster}))
    root = codec.decode("cluster.json", Got(path.read_bytes(), "", path.stat().st_size))
    path.write_bytes(codec.encode(root.version, root.epoch, root.ring, root.content))


@dataclass(frozen=True)
class Planted:
    """What was done to which object; `offsets` are those a finding must name, where it names one."""

    what: str
    keys: tuple[str, ...]


def keys_of(root: Path, kind: type) -> list[str]:
    names = (str(found.relative_to(root)) for found in sorted(root.rglob("*")) if found.is_file())
    return [name for name in names if isinstance(parse_key(name), kind)]


def live_pages(root: Path) -> list[str]:
    """Pages that a manifest names: writers leave those they replaced until the grace is over."""
    unnamed = {one.finding.key for one in scrub(None, f"file://{root}").findings}
    return [key for key in keys_of(root, PageKey) if key not in unnamed]


def flip(path: Path, rng: random.Random, first: int, end: int) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(first, end)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def log_bytes(path: Path) -> int:
    data = path.read_bytes()
    return int.from_bytes(data[-40:-32], "big")


def plant(root: Path, pages: list[str], rng: random.Random) -> Planted:
    segments = keys_of(root, SegmentKey)
    manifests = [name for name in keys_of(root, object) if name.endswith("manifest.json")]
    segment = rng.choice(segments)
    path = root / segment
    what = rng.choice((*("log", "footer", "manifest", "page") * 2, *ONCE))
    if what == "log":
        flip(path, rng, 0, log_bytes(path))
    elif what == "footer":
        flip(path, rng, log_bytes(path), path.stat().st_size)
    elif what in ("manifest", "cluster", "page"):
        segment = (
            rng.choice(manifests) if what == "manifest" else rng.choice(pages) if what == "page" else "cluster.json"
        )
        flip(root / segment, rng, 0, (root / segment).stat().st_size)
    elif what == "missing":
        path.unlink()
    elif what == "missing page":
        segment = rng.choice(pages)
        (root / segment).unlink()
    elif what == "missing manifest":
        segment = rng.choice(manifests)
        (root / segment).unlink()
    elif what == "swapped":
        other = rng.choice([one for one in segments if one != segment])
        mine, theirs = path.read_bytes(), (root / other).read_bytes()
        path.write_bytes(theirs)
        (root / other).write_bytes(mine)
        return Planted(what, (segment, other))
    elif what == "truncated":
        path.write_bytes(path.read_bytes()[: -rng.randrange(1, path.stat().st_size)])
    elif what == "emptied":
        path.write_bytes(b"")
    else:
        path.write_bytes(path.read_bytes() + bytes(rng.randrange(1, 100)))
    return Planted(what, (segment,))


def test_a_whole_bucket_has_nothing_to_say(whole: HistoryBucket) -> None:
    """And every live object was read to its end."""
    report = scrub(None, whole.url)
    assert not report.damage
    assert {one.finding.kind for one in report.findings} <= {FindingKind.ORPHAN_PENDING}, "pages that were replaced"
    assert report.partitions == 3 and report.objects == 34
    assert whole.path is not None
    read = sum((whole.path / key).stat().st_size for key in keys_of(whole.path, SegmentKey))
    assert report.object_bytes == read


@pytest.mark.not_fast
@pytest.mark.parametrize("part", range(4))
def test_every_planted_corruption_is_found_and_named(whole: HistoryBucket, tmp_path: Path, part: int) -> None:
    """Bits flipped at random places of segments, footers, manifests and pages; objects missing, swapped, cut, grown.

    Replay one: Random(seed).
    """
    assert whole.path is not None
    pages = live_pages(whole.path)
    for seed in range(part, SEEDS, 4):
        root = tmp_path / f"{seed}" / "bucket"
        shutil.copytree(whole.path, root)
        planted = plant(root, pages, random.Random(seed))
        report = scrub(None, f"file://{root}")
        check(planted, report, seed)
        shutil.rmtree(root)


def check(planted: Planted, report: ScrubReport, seed: int) -> None:
    told = f"seed {seed}: {planted}\n{report}"
    assert report.damage, told
    if planted.what == "missing manifest":
        place = planted.keys[0].split("/")
        assert any((str(one.topic_id), str(one.partition)) == (place[1], place[2]) for one in report.damage), told
        return
    for key in planted.keys:
        about = [one for one in report.damage if one.finding.key == key]
        assert about, told
        named = parse_key(key)
        if isinstance(named, SegmentKey):
            assert all(one.finding.offset is not None for one in about), told
            assert min(one.finding.offset or 0 for one in about) >= named.base_offset, told
    others = [one for one in report.damage if one.finding.key not in planted.keys and one.finding.key is not None]
    assert not others, told


# ── what exactly is said ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def bucket(tmp_path: Path) -> HistoryBucket:
    made = HistoryBucket(tmp_path)
    made.topic("events")
    made.fill("events", 0, [[100] * 10, [100]], value_bytes=100)
    return made


def damage(bucket: HistoryBucket) -> list[Located]:
    return scrub(None, bucket.url).damage


def test_the_batch_that_is_damaged_is_named(bucket: HistoryBucket) -> None:
    """Two bits in one object: the first by its batch, the second by its chunk."""
    first, _ = bucket.segments("events", 0)
    key = first.key(bucket._ids["events"], 0)
    batch_bytes = first.log_bytes // 10
    bucket.flip(key, 3 * batch_bytes + 200)
    bucket.flip(key, 8 * batch_bytes + 200)
    found = damage(bucket)
    assert [one.finding.kind for one in found] == [FindingKind.DAMAGED] * 2
    assert found[0].finding.offset == 300
    assert found[1].finding.offset is not None and 700 <= found[1].finding.offset <= 800
    assert all(one.topic == "events" and one.partition == 0 and one.finding.key == str(key) for one in found)


@pytest.mark.parametrize("epoch", [0, 7])
@pytest.mark.parametrize("footer_is_whole", [True, False])
def test_a_batch_copied_with_a_foreign_leader_epoch_is_found(
    bucket: HistoryBucket, epoch: int, footer_is_whole: bool
) -> None:
    """Older and younger than the log's: the four bytes lie outside the batch's CRC, and every checksum of the object
    was made of them as they are. Without a footer only what its manifest entry says of epochs can tell."""
    from tests.support.pipeline.history_bucket import batch

    good = [batch(1100, 10), batch(1110, 10), batch(1120, 10)]
    foreign = bytearray(good[2])
    struct.pack_into(">i", foreign, LEADER_EPOCH_AT, epoch)
    if footer_is_whole:
        key = bucket.append("events", 0, [*good[:2], bytes(foreign)])
    else:
        key = bucket.append("events", 0, good, damage=good[0] + good[1] + bytes(foreign))
        bucket.flip(key, bucket.object_path(key).stat().st_size - 1)
    found = damage(bucket)
    assert all(one.finding.key == str(key) and one.finding.kind is FindingKind.DAMAGED for one in found)
    assert any(one.finding.offset == 1120 and "leader epoch" in one.finding.detail for one in found)


def test_a_batch_sealed_damaged_is_found_though_every_checksum_of_the_copy_holds(bucket: HistoryBucket) -> None:
    """Chunk CRCs made of bytes that were wrong already: the batch's own CRC tells."""
    from tests.support.pipeline.history_bucket import batch

    good = batch(1100, 10)
    bad = bytearray(good)
    bad[70] ^= 1
    bucket.append("events", 0, [good], damage=bytes(bad))
    (found,) = damage(bucket)
    assert found.finding.offset == 1100


def test_a_hole_and_an_overlap_in_the_books_are_found(bucket: HistoryBucket) -> None:
    """Two objects whose batches are whole, but whose offsets do not tile: the manifest is refused, by its key."""
    path = bucket.manifest_path("events", 0)
    text = path.read_text()
    path.write_text(text.replace('"base_offset":1000', '"base_offset":1001'))
    (found,) = damage(bucket)
    assert found.finding.kind is FindingKind.UNREADABLE and found.finding.key == str(
        path.relative_to(bucket.path or "")
    )


def test_an_orphan_is_told_and_is_no_damage(bucket: HistoryBucket) -> None:
    assert bucket.path is not None
    first, _ = bucket.segments("events", 0)
    key = first.key(bucket._ids["events"], 0)
    orphan = SegmentKey(key.topic_id, 0, 0, 0, UUID(int=99, version=4))
    shutil.copy(bucket.path / str(key), bucket.path / str(orphan))
    stranger = bucket.path / "topics" / "readme.txt"
    stranger.write_text("not ours")
    report = scrub(None, bucket.url)
    assert not report.damage
    assert {(one.finding.kind, one.finding.key) for one in report.findings} == {
        (FindingKind.ORPHAN_KEPT, str(orphan)),  # nothing named says what a leader of epoch 0 had
        (FindingKind.UNKNOWN, "topics/readme.txt"),
    }


def test_one_topic_only_and_unknown_ones(bucket: HistoryBucket) -> None:
    bucket.topic("other")
    (key,) = bucket.fill("other", 0, [[10]])
    bucket.flip(key, 70)
    assert not scrub(None, bucket.url, topic="events").damage
    assert scrub(None, bucket.url, topic="other").damage
    with pytest.raises(InvalidRequest, match="no topic nothing"):
        scrub(None, bucket.url, topic="nothing")


def test_an_empty_directory_is_not_a_bucket_that_was_found_whole(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no objects of Thermocline"):
        scrub(None, f"file://{tmp_path}/nothing")


def test_a_dry_run_reads_no_object(bucket: HistoryBucket) -> None:
    first, _ = bucket.segments("events", 0)
    bucket.flip(first.key(bucket._ids["events"], 0), 300)
    report = scrub(None, bucket.url, dry_run=True)
    assert not report.findings and report.objects == 2 and "objects to read" in str(report)


# ── beside a live broker ─────────────────────────────────────────────────────────────────────────────────────────────
class Meanwhile(InProcess):
    """Something happens after the roots were read and before the objects are."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def run(self, function, tasks, progress):  # type: ignore[no-untyped-def]
        self._act()
        return super().run(function, tasks, progress)


def test_what_expires_while_it_is_read_is_no_damage(bucket: HistoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "SparkTasks", lambda spark: Meanwhile(lambda: bucket.expire("events", 0, 1000)))
    report = scrub(object(), bucket.url)  # type: ignore[arg-type]
    assert not report.damage


@pytest.mark.parametrize("then", ["stays", "is deleted", "loses its manifest"])
def test_a_topic_made_while_it_lists_is_no_damage(
    bucket: HistoryBucket, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The cluster has it and the listing does not: it was called missing, and a second run said otherwise."""
    assert bucket.path is not None
    manifests: list[str] = []

    def listed(store: ArrowStore) -> object:
        found = places(store)
        manifests.append(manifest_key(bucket.topic("new"), 0))
        return found

    def looked(store: ArrowStore, place: Place, listing: Sequence[ObjectInfo] | None) -> PartitionInspection:
        if then != "stays" and manifest_key(*place) in manifests:
            shutil.rmtree((bucket.path / manifest_key(*place)).parent)  # type: ignore[operator]
            if then == "is deleted":
                bucket.delete("new")
        return inspect_partition(store, place, listing)

    monkeypatch.setattr(scrub_module, "places", listed)
    monkeypatch.setattr(scrub_module, "inspect_partition", looked)
    report = scrub(None, bucket.url)
    assert [one.finding.key for one in report.damage] == (manifests if then == "loses its manifest" else [])
    assert all((one.finding.kind, one.topic) == (FindingKind.MISSING, "new") for one in report.damage)


def test_a_bucket_without_cluster_json_is_damaged(bucket: HistoryBucket) -> None:
    """It read as a whole bucket, exit 0, though no broker serves any of it."""
    assert bucket.path is not None
    (bucket.path / CLUSTER_KEY).unlink()
    (found,) = scrub(None, bucket.url).damage
    assert (found.finding.kind, found.finding.key) == (FindingKind.MISSING, CLUSTER_KEY)
    assert not scrub(None, bucket.url, topic="events").damage


# ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────────
class Dies(InProcess):
    """The second wave never comes back."""

    def __init__(self) -> None:
        self.waves = 0

    def run(self, function, tasks, progress):  # type: ignore[no-untyped-def]
        self.waves += 1
        if self.waves == 2:
            raise KeyboardInterrupt
        return super().run(function, tasks, progress)


def test_a_killed_scrub_goes_on_where_it_was(
    bucket: HistoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read and whole is not read again, what was damaged is told; an ended scrub begins anew."""
    bucket.fill("events", 0, [[10], [10], [10]], base=1100)
    segments = bucket.segments("events", 0)
    bucket.flip(segments[0].key(bucket._ids["events"], 0), 300)
    journal = tmp_path / "journal"
    monkeypatch.setattr(scrub_module, "WAVE_TASKS", 2)
    monkeypatch.setattr(scrub_module, "SparkTasks", lambda spark: Dies())
    with pytest.raises(KeyboardInterrupt):
        scrub(object(), bucket.url, journal=str(journal), task_bytes=1)  # type: ignore[arg-type]
    with journal.open("ab") as file:
        file.write(b'{"key":"cut sh')
    shutil.copytree(tmp_path / "bucket", tmp_path / "copy")
    before = journal.read_bytes()
    with pytest.raises(InvalidRequest, match=f"is the journal of {bucket.url}, not of file://{tmp_path}/copy"):
        scrub(None, f"file://{tmp_path}/copy", journal=str(journal))
    assert journal.read_bytes() == before, "the same keys, other objects: nothing was believed, nothing noted"
    report = scrub(None, bucket.url, journal=str(journal), task_bytes=1)
    assert (report.skipped, report.objects) == (1, 4) and len(report.damage) == 1
    assert not journal.exists()
    again = scrub(None, bucket.url, journal=str(journal), task_bytes=1)
    assert again.objects == 5 and len(again.damage) == 1


@pytest.mark.parametrize("key", [MetadataKey(3, 1, TOPIC_ID), SnapshotKey(TOPIC_ID, 1, 7, 3, TOPIC_ID)])
def test_a_page_or_snapshot_that_was_read_is_not_read_again(tmp_path: Path, key: MetadataKey | SnapshotKey) -> None:
    topic_id, partition = (TOPIC_ID, 1) if isinstance(key, SnapshotKey) else (None, 0)
    task = ScrubTask("file:///b", topic_id, partition, (), (Blob(str(key), 9, 9), Blob("another", 9, 9)))
    Journal(str(tmp_path / "journal"), "file:///b").note([ScrubDone(task, [], [str(key)])])
    journal = Journal(str(tmp_path / "journal"), "file:///b")
    assert journal.left_of(task) == replace(task, blobs=task.blobs[1:]) and journal.skipped == 1


def test_a_scrub_that_goes_on_does_not_repeat_damage_that_was_mended(
    bucket: HistoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal told it again, of an object that was restored under its own key meanwhile, and never looked at it."""
    bucket.fill("events", 0, [[10], [10], [10]], base=1100)
    damaged = bucket.segments("events", 0)[0].key(bucket._ids["events"], 0)
    bucket.flip(damaged, 300)
    journal = tmp_path / "journal"
    monkeypatch.setattr(scrub_module, "WAVE_TASKS", 4)
    monkeypatch.setattr(scrub_module, "SparkTasks", lambda spark: Dies())
    with pytest.raises(KeyboardInterrupt):
        scrub(object(), bucket.url, journal=str(journal), task_bytes=1)  # type: ignore[arg-type]
    bucket.flip(damaged, 300)  # back
    report = scrub(None, bucket.url, journal=str(journal), task_bytes=1)
    assert not report.damage and report.skipped + report.objects == 5


def test_damage_in_a_journal_of_before_is_not_believed(tmp_path: Path) -> None:
    """Its lines said what was found; a later one, of the same object and without findings, counts."""
    file = tmp_path / "journal"
    task = ScrubTask("file:///b", None, 0, (), (Blob("one", 9, 9), Blob("two", 9, 9)))
    Journal(str(file), "file:///b").note([])
    with file.open("ab") as lines:
        for key in ("one", "two"):
            lines.write(b'{"key":"%s","findings":[["damaged",null,"a bit"]]}\n' % key.encode())
        lines.write(b'{"key":"two","findings":[]}\n')
    assert Journal(str(file), "file:///b").left_of(task) == replace(task, blobs=task.blobs[:1])


def test_a_journal_whose_first_line_was_cut_short_is_begun_again(bucket: HistoryBucket, tmp_path: Path) -> None:
    """And a file that is no journal is left alone."""
    journal = tmp_path / "journal"
    scrubbed = Journal(str(journal), bucket.url)
    scrubbed.note([])
    head = journal.read_bytes()
    for have in (0, 1, len(head) - 1, len(head)):
        journal.write_bytes(head[:have])
        Journal(str(journal), bucket.url).note([])
        assert journal.read_bytes().startswith(head)
        assert scrub(None, bucket.url, journal=str(journal)).skipped == 0
    journal.write_bytes(b"dear diary\n")
    with pytest.raises(InvalidRequest, match="is not a journal of a scrub"):
        scrub(None, bucket.url, journal=str(journal))
    assert journal.read_bytes() == b"dear diary\n"
