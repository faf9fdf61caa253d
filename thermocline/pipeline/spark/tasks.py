"""A Spark task on a worker: the rows of its parts, from the bucket or from the cluster, in Spark's Arrow schema.

A worker process opens a store once for all its tasks. Skipped losses are logged on the worker's stderr, which Spark
keeps.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from thermocline.extras import require
from thermocline.pipeline.arrow_store import ArrowStore, open_arrow_store
from thermocline.pipeline.spark.projection import shaped
from thermocline.pipeline.spark.spark_errors import in_spark_worker, without_traceback
from thermocline.pipeline.split import Loss, Split

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tail import ConsumerSettings, TailPart

    Part = Split | TailPart
    Task = tuple[Part, ...]

log = logging.getLogger(__name__)

# Bytes of rows in a batch, about half a near window. Spark copies a batch several times. A batch of this size stays in
# the CPU cache, and its memory is reused. 8 MiB cause three times the page faults.
BATCH_BYTES: Final = 9 * 128 * 1024


@dataclass(frozen=True, slots=True)
class ReadJob:
    bucket: str
    columns: tuple[str, ...]
    target: pa.Schema  # Spark's Arrow schema of these columns
    connection: ConsumerSettings | None
    fail_on_data_loss: bool
    read_committed: bool = True


def enable_info_log() -> None:
    """Log INFO in this worker. Spark keeps it with `spark.sql.pyspark.worker.logging.enabled`
    (`spark.tvf.python_worker_logs()`); warnings go to stderr in any case.
    """
    logging.getLogger("thermocline.pipeline").setLevel(logging.INFO)


def print_plan(line: str) -> None:
    """Print a line to the driver's stderr, beside Spark's own log."""
    if in_spark_worker():
        print(f"thermocline: {line}", file=sys.stderr, flush=True)


@functools.cache
def freeze_imports() -> None:
    """Exclude everything that lives after the first task from garbage collection. Spark's worker collects after
    every task: 60 ms over all imported modules, a fifth of the CPU of a task of 128 MiB.
    """
    gc.freeze()


def read_task(job: ReadJob, task: Task | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task; none for None (the task of an empty read). Errors: `scan`, `read_planned_tail`."""
    enable_info_log()
    with without_traceback():
        for part in task or ():
            yield from _read_part(job, part)
    freeze_imports()


def _read_part(job: ReadJob, part: Part) -> Iterator[pa.RecordBatch]:
    loss = Loss()
    require("read", "the thermocline source on a Spark worker", "numpy", "numba")
    if isinstance(part, Split):
        from thermocline.pipeline.scan import scan  # the decoder: only workers need it

        rows = scan(
            _store(job.bucket),
            part,
            job.columns,
            fail_on_data_loss=job.fail_on_data_loss,
            loss=loss,
            read_committed=job.read_committed,
            target_bytes=BATCH_BYTES,
        )
    else:
        from thermocline.pipeline.spark.planned_tail import read_planned_tail

        assert job.connection is not None
        rows = read_planned_tail(job.connection, part, job.columns, fail_on_data_loss=job.fail_on_data_loss, loss=loss)
    yield from shaped(rows, job.target)
    if loss.gaps and not isinstance(part, Split):  # `scan` logs the gaps of a split itself
        offsets = sum(end - first for _, _, first, end in loss.gaps)  # most often transaction markers
        log.info("%s: the cluster has no records at %d offsets in %d places", part, offsets, len(loss.gaps))
    if loss.damage:
        place = f"{part.topic}-{part.partition} [{part.rows.start_offset}, {part.rows.end_offset})"
        log.warning("%s: %d losses skipped (failOnDataLoss=false)", place, len(loss.damage))


@functools.lru_cache(maxsize=8)
def _store(url: str) -> ArrowStore:
    return open_arrow_store(url)
