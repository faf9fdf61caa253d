"""Archivers that are killed at every step, and archivers that race: each offset once, and nothing left behind.

Drivers are processes that die by SIGKILL; a worker of Spark dies in test_archive_job.py.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.support.pipeline.archive_driver import drive
from tests.support.pipeline.archive_kit import (
    JSON,
    data_files,
    is_bad,
    json_batch,
    json_topic,
    lake,
    named_files,
    places,
    rows,
)
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.pipeline.jobs.job_crash_points import POINTS

# With how many passes each point is armed: the second step is killed as well as the first.
CRASHES = {
    "archive.planned": (1, 2),
    "archive.file_open": (2,),
    "archive.file_written": (1, 3),
    "archive.files_written": (1, 2),
    "archive.dead_letters_committed": (1, 2),
    "archive.committed": (1, 2),
    "archive.cleaned": (1,),
}
KILLS = (
    (5000, "archive.dead_letters_committed"),
    (2000, "archive.committed"),
    (3000, "archive.dead_letters_committed:2"),
    (9000, "archive.files_written"),
)
TABLES = ("ns.js", "ns.js_dead_letters")


def test_every_point_of_archive_is_killed_at() -> None:
    assert set(CRASHES) == {point for point in POINTS if point.startswith("archive.")}


def start(bucket: HistoryBucket, place: Path, bytes_max: int, crash_at: str | None = None) -> ForkServerProcess:
    return drive(bucket.url, place, "js", "ns.js", JSON, bytes_max, crash_at)


def exit_code(process: ForkServerProcess) -> int | None:
    process.join(90)
    return process.exitcode


def check(place: Path, ends: Sequence[int]) -> None:
    """Each offset is in one of the tables, once, and every data file is named by one."""
    catalog = lake(place)
    every = [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]
    assert places(rows(catalog, "ns.js")) == [one for one in every if not is_bad(one[1])]
    assert places(rows(catalog, "ns.js_dead_letters")) == [one for one in every if is_bad(one[1])]
    assert data_files(place) == named_files(catalog, *TABLES)


@pytest.mark.parametrize(("point", "passes"), [(p, n) for p, passes in CRASHES.items() for n in passes])
def test_a_driver_killed_at_any_step_is_run_again(tmp_path: Path, point: str, passes: int) -> None:
    """The rerun brings the table to where an undisturbed run would have; what the dead one wrote is used or swept."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=2, records=20)
    dead = start(bucket, tmp_path, 3000, f"{point}:{passes}")
    assert exit_code(dead) == -signal.SIGKILL
    assert exit_code(start(bucket, tmp_path, 3000)) == 0
    check(tmp_path, [80, 80])


def test_killed_again_and_again_with_other_sizes(tmp_path: Path) -> None:
    """Each run dies after its dead letters were committed, each plans other steps: still once."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=3, records=20)
    for bytes_max, point in KILLS:
        assert exit_code(start(bucket, tmp_path, bytes_max, point)) == -signal.SIGKILL
    assert exit_code(start(bucket, tmp_path, 4000)) == 0
    check(tmp_path, [120, 120])


def test_archivers_that_race_write_each_offset_once(tmp_path: Path) -> None:
    """Three processes on one catalog that does not exist yet, with steps of different sizes, while the log grows."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=4, records=20)
    racers = [start(bucket, tmp_path, size) for size in (1500, 2500, 4000)]
    bucket.append("js", 0, [json_batch(160, 20)])
    assert [exit_code(racer) for racer in racers] == [0, 0, 0]
    assert exit_code(start(bucket, tmp_path, 10**9)) == 0
    check(tmp_path, [180, 160])
