"""Drivers in processes of their own, for tests that kill them and let them race.

Without Spark, so that a kill at each step costs a second; the steps are the same. Processes come from a fork server
that has imported everything once.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.compaction.compact import compact
from thermocline.pipeline.jobs.iceberg_catalog import catalog_config
from thermocline.pipeline.jobs.values import ValueSpec

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.pipeline.archive_driver", "pyiceberg.catalog.sql", "pyarrow.parquet"])


def drive(
    url: str, place: Path, topic: str, table: str, values: ValueSpec, bytes_max: int, crash_at: str | None = None
) -> ForkServerProcess:
    """A process that archives into the lake at `place`; dead at `crash_at` (`point[:n]`)."""
    process = _CONTEXT.Process(target=_run, args=(url, place, topic, table, values, bytes_max, crash_at), daemon=True)
    process.start()
    return process


def drive_compact(url: str, place: Path, topic: str, table: str, crash_at: str | None = None) -> ForkServerProcess:
    """A process that compacts the lake at `place`; dead at `crash_at`."""
    process = _CONTEXT.Process(target=_compact, args=(url, place, topic, table, crash_at), daemon=True)
    process.start()
    return process


def _compact(url: str, place: Path, topic: str, table: str, crash_at: str | None) -> None:
    if crash_at is not None:
        os.environ |= {"THERMOCLINE_TESTING": "true", "THERMOCLINE_CRASH_AT": crash_at}
    compact(None, url, topic, table, catalog=catalog_config(warehouse=f"file://{place}/lake"))


def _run(
    url: str, place: Path, topic: str, table: str, values: ValueSpec, bytes_max: int, crash_at: str | None
) -> None:
    if crash_at is not None:
        os.environ |= {"THERMOCLINE_TESTING": "true", "THERMOCLINE_CRASH_AT": crash_at}
    catalog = catalog_config(warehouse=f"file://{place}/lake")
    archive(None, url, topic, table, catalog=catalog, values=values, bytes_max=bytes_max)
