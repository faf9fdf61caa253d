"""Data files of an archive on a local file system: what is closed is on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thermocline.pipeline.jobs.tables import data_file_storage
from thermocline.pipeline.jobs.tables.data_file_storage import DataFileOutput


def test_a_closed_file_and_every_directory_made_for_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is durable when the one above it is synced after its name was put there, and that is done first."""
    synced: list[str] = []
    really = data_file_storage._sync

    def sync(path: str) -> None:
        really(path)
        synced.append(os.path.relpath(path, tmp_path))

    monkeypatch.setattr(data_file_storage, "_sync", sync)
    output = DataFileOutput(f"file://{tmp_path}/data/thermocline/0/a.parquet", {})
    output.sink.write(b"abc")
    assert synced == [".", "data", "data/thermocline"]
    assert output.close() == 3
    assert synced[3:] == ["data/thermocline/0/a.parquet", "data/thermocline/0"]
    DataFileOutput(f"{tmp_path}/data/thermocline/0/b.parquet", {}).close()
    assert synced[5:] == ["data/thermocline/0/b.parquet", "data/thermocline/0"], "what was there is not synced again"
