"""`spark.read.format("thermocline")` and `spark.readStream.format("thermocline")`.

Owns Spark's door to this package, and the batch read. Always true: options are checked when the source is created, so
that a mistake shows at `load()`; a batch reads one view of both tiers, taken once while it is planned.
Spark's Python data source API: pyspark.sql.datasource (4.1 and later for pushed filters).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from logformat.values import TopicPartition
from thermocline.pipeline.spark import ranges
from thermocline.pipeline.spark.filters import Bounds, bounds_of
from thermocline.pipeline.spark.options import Options, Position, parse_options
from thermocline.pipeline.spark.planning import fail_or_tell, plan_tasks
from thermocline.pipeline.spark.projection import arrow_schema, columns_of, full_schema
from thermocline.pipeline.spark.tasks import ReadJob, read_task, speak
from thermocline.pipeline.spark.tiers import States, Tiers, connection_of

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tasks import Task

log = logging.getLogger(__name__)

# The worker in which Spark pushes filters, and only when its conf says so. In the other one a reader that overrides
# pushFilters is an error, so the class is chosen by where we are.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class ThermoclineSource(DataSource):
    """The data source; options as of `options.KNOWN`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]  # Spark's own case-insensitive mapping
        self._parsed = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "thermocline"

    def schema(self) -> StructType:
        return full_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        speak()
        for name in self._parsed.without_effect:
            log.warning("option %s has no effect in a batch", name)
        push = self._parsed.push_filters
        if push is None:
            push = _in_pushdown_worker()
        return PushingReader(self._parsed, schema) if push else BatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from thermocline.pipeline.spark.stream import StreamReader

        speak()
        return StreamReader(self._parsed, schema)


class BatchReader(DataSourceReader):
    """One batch: planned on the driver, read by tasks. Pickled: holds values only."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._positions = options.for_batch()
        self._bounds = Bounds()
        self._job = read_job(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        tiers = Tiers(self._options)
        try:
            states = tiers.states(tiers.partitions())
            wanted = batch_ranges(tiers, states, self._positions, self._options)
            return [InputPartition(task) for task in plan_tasks(tiers, states, wanted, self._bounds, self._options)]
        finally:
            tiers.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.value
        return read_task(self._job, task)


class PushingReader(BatchReader):
    """The same with Spark's filters as bounds of the plan."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters)
        return filters  # Spark evaluates them again: bounds may keep more


def read_job(options: Options, schema: StructType) -> ReadJob:
    """What tasks of a query with this schema need. InvalidRequest on columns that are not ours."""
    columns = columns_of(schema)
    return ReadJob(options.bucket, columns, arrow_schema(schema), connection_of(options), options.fail_on_data_loss)


def batch_ranges(
    tiers: Tiers, states: States, positions: tuple[Position, Position], options: Options
) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets `[start, end)` of every partition; empty where the start lies behind the end."""
    starting, ending = positions
    extents = {tp: state.extent for tp, state in states.items()}
    lost: list[str] = []
    found = tiers.first_at(states, ranges.times_to_find(starting, states))
    first = ranges.starts(starting, extents, found, options.no_later_record_is_latest, lost)
    found = tiers.first_at(states, ranges.times_to_find(ending, states))
    last = ranges.ends(ending, extents, found, lost)
    fail_or_tell(lost, options.fail_on_data_loss)
    return {tp: (first[tp], max(first[tp], last[tp])) for tp in states}


def _in_pushdown_worker() -> bool:
    main = sys.modules["__main__"].__spec__
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)
