"""What one Spark task does: rows of its parts, from the bucket or from the cluster, in Spark's own Arrow schema.

Owns the worker's side. Always true: everything a task needs travels in `ReadJob` and its parts; a store is opened once
in a worker process and used by all its tasks; what was stepped over is said on the worker's stderr, which Spark keeps.
Must not know planning.
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
from thermocline.pipeline.spark.told import in_spark_worker, told
from thermocline.pipeline.split import Loss, Split

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tail import ConsumerSettings, TailPart

    Part = Split | TailPart
    Task = tuple[Part, ...]

log = logging.getLogger(__name__)

# Of rows: half a near window. A batch is copied several times on its way into Spark: this much is still in a cache
# then, and its memory is used again. 8 MiB make three times the page faults.
BATCH_BYTES: Final = 9 * 128 * 1024


@dataclass(frozen=True, slots=True)
class ReadJob:
    """What is the same for all tasks of a query."""

    bucket: str
    columns: tuple[str, ...]
    target: pa.Schema  # Spark's Arrow schema of these columns
    connection: ConsumerSettings | None
    fail_on_data_loss: bool


def speak() -> None:
    """Let this worker's log have our summaries: Spark keeps them where `spark.sql.pyspark.worker.logging.enabled` is on
    (`spark.tvf.python_worker_logs()`); warnings go to stderr in any case."""
    logging.getLogger("thermocline.pipeline").setLevel(logging.INFO)


def tell(line: str) -> None:
    """A line on stderr of the driver, where Spark's own words go: a plan says what it is going to read."""
    if in_spark_worker():
        print(f"thermocline: {line}", file=sys.stderr, flush=True)


@functools.cache
def spare_collections() -> None:
    """Spark's worker collects garbage after every task, each time over all modules it has imported: 60 ms, a fifth of
    the CPU of a task of 128 MiB. What lives when the first task is done is not looked at again."""
    gc.freeze()


def read_task(job: ReadJob, task: Task | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task; nothing for None, which is Spark's task of an empty read. Errors: `scan`, `read_tail`."""
    speak()
    with told():
        for part in task or ():
            yield from _read_part(job, part)
    spare_collections()


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
            target_bytes=BATCH_BYTES,
        )
    else:
        from thermocline.pipeline.spark.tail import read_tail

        assert job.connection is not None, "a part of the tail without a way to the cluster"
        rows = read_tail(job.connection, part, job.columns, fail_on_data_loss=job.fail_on_data_loss, loss=loss)
    yield from shaped(rows, job.target)
    if not isinstance(part, Split):  # `scan` tells the gaps of a split itself
        for topic, partition, first, end in loss.gaps:
            log.info("%s-%d: the cluster has no records at offsets [%d, %d)", topic, partition, first, end)
    if loss.damage:
        place = f"{part.topic}-{part.partition} [{part.rows.start_offset}, {part.rows.end_offset})"
        log.warning("%s: %d losses stepped over (failOnDataLoss=false)", place, len(loss.damage))


@functools.lru_cache(maxsize=8)
def _store(url: str) -> ArrowStore:
    return open_arrow_store(url)
