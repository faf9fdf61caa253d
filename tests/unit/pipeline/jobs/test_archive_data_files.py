"""Data files of an archive on a local file system: what is closed is on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from tests.support.pipeline.archive_kit import json_topic, lake, run
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.pipeline.jobs.tables import data_file_storage
from thermocline.pipeline.jobs.tables.data_file_storage import DataFileOutput
from thermocline.pipeline.jobs.values import ValueSpec


def test_a_closed_file_and_every_directory_made_for_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is durable when the one above it is synced after its name was put there, and that is done first."""
    synced: list[str] = []
    really = data_file_storage.sync

    def sync(path: str) -> None:
        really(path)
        synced.append(os.path.relpath(path, tmp_path))

    monkeypatch.setattr(data_file_storage, "sync", sync)
    output = DataFileOutput(f"file://{tmp_path}/data/thermocline/0/a.parquet", {})
    output.sink.write(b"abc")
    assert synced == [".", "data", "data/thermocline"]
    assert output.close() == 3
    assert synced[3:] == ["data/thermocline/0/a.parquet", "data/thermocline/0"]
    DataFileOutput(f"{tmp_path}/data/thermocline/0/b.parquet", {}).close()
    assert synced[5:] == ["data/thermocline/0/b.parquet", "data/thermocline/0"], "what was there is not synced again"


def test_a_commit_to_a_database_is_not_more_durable_than_the_table_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's commit is synced, pyiceberg's metadata and manifests were not: after a power cut the catalog named an
    empty file, and the archive could not be opened."""
    synced: set[str] = set()
    real, commit = os.fsync, Session.commit

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def unsynced() -> list[str]:
        found = [str(one) for one in (tmp_path / "lake").rglob("*") if not one.name.startswith("catalog.db")]
        return [one for one in found if one not in synced]

    left: list[list[str]] = []

    def committed(session: Session) -> None:
        left.append(unsynced())
        commit(session)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Session, "commit", committed)
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=2)
    run(bucket, lake(tmp_path), "js", "ns.js", values=ValueSpec("json", "user string"))
    assert len(left) > 3 and not any(left), left
