"""`bucket gc --delete` by hand, where no log can be asked what it holds: the manifest says it, or nothing goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from broker.metadata.rebuild_root import write_rebuilt
from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.segments.segment_sections import TRAILER_SIZE
from tests.support.store.memory_store import upload_of
from tests.support.tier.cold_objects import segment_object
from tests.support.tier.cold_values import TOPIC_ID
from thermocline.cli.bucket.reading import opened
from thermocline.cli.cluster.restore.rebuild_plan import Found, rebuild_plan
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.jobs.scrub.scrub import scrub

NAMED = (segment_object(0, [10, 10], epoch=2, n=1), segment_object(20, [10], epoch=2, n=2))
"""Epoch 0 wrote [0, 20), epoch 2 [20, 30), as the last one's footer says."""
UPLOADED_AGAIN = segment_object(10, [10], epoch=1, n=3)  # a failed upload: the records were copied anew
GIVEN_AGAIN = segment_object(20, [10], epoch=1, n=4)  # of a lost tail: epoch 2 wrote other records there
BEYOND = segment_object(30, [5], epoch=1, n=5)  # named by a newer manifest, of which an earlier version was put back
ACROSS = segment_object(15, [10], epoch=1, n=6)  # begins where all is named, ends where it is not
ORPHANS = (UPLOADED_AGAIN, GIVEN_AGAIN, BEYOND, ACROSS)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with opened(f"file://{tmp_path}") as at:
            for made in (*NAMED, *ORPHANS):
                await at.store.put_segment(str(made.key), upload_of(made.data))
            manifests = ManifestStore(at.store, TOPIC_ID, 0, at.world.rng, at.world.clock)
            await manifests.create(2, "events", {}, 100)
            await manifests.claim(2, "events", {})
            for made in NAMED:
                await manifests.commit(lambda manifest, entry=made.entry: manifest.add(entry))  # type: ignore[misc]

    asyncio.run(fill())
    return tmp_path


def collected(capsys: pytest.CaptureFixture[str], bucket: Path, *words: str) -> dict[str, str]:
    """Key → state, as it is told."""
    assert main(["bucket", "gc", f"file://{bucket}", "--json", *words]) == Exit.DONE
    return {row["key"]: row["state"] for row in map(json.loads, capsys.readouterr().out.splitlines())}


def there(bucket: Path) -> set[SegmentKey]:
    return {made.key for made in (*NAMED, *ORPHANS) if (bucket / str(made.key)).exists()}


def edit(bucket: Path, change: object) -> Manifest:
    async def commit() -> Manifest:
        async with opened(f"file://{bucket}") as at:
            manifests = ManifestStore(at.store, TOPIC_ID, 0, at.world.rng, at.world.clock)
            await manifests.claim(2, "events", {})
            return await manifests.commit(change)  # type: ignore[arg-type]

    return asyncio.run(commit())


def test_gc_by_hand_deletes_no_object_that_may_be_the_only_copy(
    bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It deleted what the broker's collector keeps. What was copied again goes."""
    kept = {str(made.key): "kept" for made in (GIVEN_AGAIN, BEYOND, ACROSS)}
    assert collected(capsys, bucket) == {str(UPLOADED_AGAIN.key): "deletable", **kept}
    assert collected(capsys, bucket, "--delete") == {str(UPLOADED_AGAIN.key): "deleted", **kept}
    assert there(bucket) == {made.key for made in (*NAMED, *ORPHANS)} - {UPLOADED_AGAIN.key}
    assert main(["bucket", "gc", f"file://{bucket}"]) == Exit.DONE
    said = capsys.readouterr().out
    assert "3 kept" in said and "kept: they may be the only copies of records" in said


def test_verify_and_scrub_tell_what_gc_keeps(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They called it deletable, which neither gc by hand nor a broker's collector deletes."""
    told = {key: f"orphan, {state}" for key, state in collected(capsys, bucket).items()}
    assert set(told.values()) == {"orphan, deletable", "orphan, kept"}
    assert main(["bucket", "verify", f"file://{bucket}", "--topic", "events", "--json"]) == Exit.DONE
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["key"]: row["kind"] for row in rows} == told
    scrubbed = scrub(None, f"file://{bucket}", topic="events").findings
    assert {one.finding.key: one.finding.kind.value for one in scrubbed} == told


def test_gc_by_hand_deletes_only_copies_at_an_explicit_word(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bucket", "gc", f"file://{bucket}", "--delete-only-copies"]) == Exit.USAGE
    assert len(there(bucket)) == 6
    capsys.readouterr()
    told = collected(capsys, bucket, "--delete", "--delete-only-copies")
    assert told == {str(made.key): "deleted" for made in ORPHANS}
    assert there(bucket) == {made.key for made in NAMED}


def test_gc_by_hand_needs_no_lineage_below_the_log_start(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What retention took is wanted by nobody, whoever wrote it."""
    edit(bucket, lambda manifest: manifest.set_log_start(25))
    told = collected(capsys, bucket)
    assert {key for key, state in told.items() if state == "kept"} == {str(GIVEN_AGAIN.key), str(BEYOND.key)}


def test_gc_by_hand_keeps_all_where_the_last_footer_cannot_be_read(
    bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody says who wrote what; a root alone says that it ends at 30."""
    path = bucket / str(NAMED[-1].key)
    data = bytearray(path.read_bytes())
    data[-TRAILER_SIZE - 4] ^= 1
    path.write_bytes(data)
    assert set(collected(capsys, bucket, "--delete").values()) == {"kept"}
    assert len(there(bucket)) == 6


@pytest.mark.parametrize("words", [["--delete"], ["--delete", "--delete-only-copies"]])
def test_gc_by_hand_deletes_nothing_of_a_rebuilt_cluster_before_it_is_done(
    bucket: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """R29: as its brokers delete nothing. It may be listed."""
    manifest = edit(bucket, lambda manifest: manifest)

    async def rebuilt() -> None:
        async with opened(f"file://{bucket}") as at:
            image = rebuild_plan([Found(TOPIC_ID, 0, manifest)], {}, 0).image()
            await write_rebuilt(at.store, at.world.rng, "clusterid12345678901ab", image, 7, None)

    asyncio.run(rebuilt())
    assert main(["bucket", "gc", f"file://{bucket}", *words]) == Exit.REFUSED
    assert "cluster rebuild" in capsys.readouterr().err
    assert len(there(bucket)) == 6
    assert "deletable" in collected(capsys, bucket).values()
