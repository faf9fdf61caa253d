"""The batch reader: planned on the driver over one view of both tiers, read by tasks.

A pushed filter excludes a subset of the rows that Spark's own filter excludes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from logformat.values import TopicPartition
from thermocline.pipeline.spark.explain import FirstPartition
from thermocline.pipeline.spark.options import Options, Position
from thermocline.pipeline.spark.planning import ranges
from thermocline.pipeline.spark.planning.filters import Bounds, bounds_of
from thermocline.pipeline.spark.planning.plan_summary import PlanSummary, held_by, read_by, tail_offsets_of
from thermocline.pipeline.spark.planning.planner import fail_or_log, plan_tasks
from thermocline.pipeline.spark.projection import arrow_schema, columns_of
from thermocline.pipeline.spark.spark_errors import without_traceback
from thermocline.pipeline.spark.tasks import ReadJob, print_plan, read_task
from thermocline.pipeline.spark.tiers import States, Tiers, connection_of

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tasks import Task


class BatchReader(DataSourceReader):
    """One batch. Pickled, so it holds values only."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._positions = options.for_batch()
        self._bounds = Bounds()
        self._pushed = False
        self._job = read_job(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        with without_traceback():
            planned, summary = self._planned()
        print_plan(summary.line())
        tasks: list[Task | None] = [*planned] or [None]  # Spark requires a task even for an empty read
        return [FirstPartition(tasks[0], summary), *map(InputPartition, tasks[1:])]

    def _planned(self) -> tuple[list[Task], PlanSummary]:
        tiers = Tiers(self._options)
        try:
            states = tiers.states(tiers.partitions())
            wanted = batch_ranges(tiers, states, self._positions, self._options)
            tasks = plan_tasks(tiers, states, wanted, self._bounds, self._options)
        finally:
            tiers.close()
        summary = PlanSummary(
            url=self._options.bucket,
            topics=tuple(sorted({tp.topic for tp in states})),
            partitions=len(states),
            read=read_by(tasks),
            held=held_by(states),
            tail_offsets=tail_offsets_of(tasks),
            tasks=len(tasks),
            columns=self._job.columns,
            bounds=self._bounds,
            pushed=self._pushed,
        )
        return tasks, summary

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.value
        return read_task(self._job, task)


class PushingReader(BatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters)
        self._pushed = True
        return filters  # Spark evaluates them again, because bounds may keep more rows


def read_job(options: Options, schema: StructType) -> ReadJob:
    """The constants of a query with this schema. Raises InvalidRequest for unknown columns."""
    columns = columns_of(schema)
    return ReadJob(
        options.bucket,
        columns,
        arrow_schema(schema),
        connection_of(options),
        options.fail_on_data_loss,
        options.read_committed,
    )


def batch_ranges(
    tiers: Tiers, states: States, positions: tuple[Position, Position], options: Options
) -> dict[TopicPartition, tuple[int, int]]:
    """Offsets `[start, end)` of every partition; empty when the start is after the end."""
    starting, ending = positions
    extents = {tp: state.extent for tp, state in states.items()}
    lost: list[str] = []
    found = tiers.first_at(states, ranges.times_to_find(starting, states))
    first = ranges.starts(starting, extents, found, options.no_later_record_is_latest, lost)
    found = tiers.first_at(states, ranges.times_to_find(ending, states))
    last = ranges.ends(ending, extents, found, lost)
    fail_or_log(lost, options.fail_on_data_loss)
    return {tp: (first[tp], max(first[tp], last[tp])) for tp in states}
