"""The stream reader: micro-batches of exact offset ranges over both tiers.

A batch is identified by offsets alone, so a restart reads the same rows, from the tier that has them at that time.
Offsets only grow. A partition that appears later is read from its first offset. Offsets are never skipped silently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from logformat.values import TopicPartition
from thermocline.pipeline.spark.batch import read_job
from thermocline.pipeline.spark.options import Options
from thermocline.pipeline.spark.planning import ranges
from thermocline.pipeline.spark.planning.admission import admit, pending
from thermocline.pipeline.spark.planning.filters import Bounds
from thermocline.pipeline.spark.planning.offsets import OffsetsJson, PartitionOffsets, Progress
from thermocline.pipeline.spark.planning.planner import fail_or_log, plan_tasks
from thermocline.pipeline.spark.spark_errors import without_traceback
from thermocline.pipeline.spark.tasks import read_task
from thermocline.pipeline.spark.tiers import PartitionState, Tiers, Watch

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tasks import Task

BACKLOG_KEY: Final = "@backlog"  # in the progress report; not a valid topic name
States = Mapping[TopicPartition, PartitionState]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side of one stream. A copy without connections is pickled to the workers for `read`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._starting = options.for_stream()
        self._job = read_job(options, schema)
        self._watch: Watch | None = None
        self._target: dict[TopicPartition, PartitionState] | None = None  # end of an availableNow run
        self._admitted_at: float | None = None
        self._at: PartitionOffsets = {}  # end of the newest batch

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────
    @without_traceback()
    def initialOffset(self) -> OffsetsJson:
        states = self._states()
        lost: list[str] = []
        found = self._watched().tiers.first_at(states, ranges.times_to_find(self._starting, states))
        extents = {tp: state.extent for tp, state in states.items()}
        no_later = self._options.no_later_record_is_latest
        starts = ranges.starts(self._starting, extents, found, no_later, lost)
        fail_or_log(lost, self._options.fail_on_data_loss)
        if any(start > states[tp].extent.end for tp, start in starts.items()):
            self._watched().refresh()  # otherwise `latestOffset` would see an end below the start
        return Progress(starts, _ids(states)).to_json()

    @without_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsJson:
        """End of the next batch, within the limit; `start` when nothing is pending."""
        progress = Progress.from_json(start)
        states = self._states() if self._target is None else self._target
        starts, lost = resumed(progress, states)
        self._at = starts
        ends = {tp: state.extent.end for tp, state in states.items()}
        if self._options.bootstrap_servers is not None:
            lost += [
                f"{tp}: the stream is at offset {starts[tp]}, but the cluster ends at {end}"
                for tp, end in ends.items()
                if starts[tp] > end
            ]
        fail_or_log(lost, self._options.fail_on_data_loss)
        gaps = {tp: state.gaps for tp, state in states.items()}
        waiting = sum(pending(starts[tp], ends[tp], gaps[tp]) for tp in starts)
        if self._shall_wait(waiting, limit):
            return progress.to_json()
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        admitted = admit(starts, ends, rows_max, gaps)
        self._admitted_at = time.monotonic()
        self._at = admitted
        return Progress(admitted, _ids(states)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @without_traceback()
    def reportLatestOffset(self) -> dict[str, Any]:
        """For Spark's progress report: the end of the log, and the backlog."""
        states = self._states()
        value = Progress({tp: state.extent.end for tp, state in states.items()}, _ids(states)).to_json()
        return {**value, BACKLOG_KEY: backlog(self._at, states)}

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        """The run ends at the present end of the log, in as many batches as the limit requires."""
        self._target = dict(self._states())

    def _shall_wait(self, waiting: int, limit: ReadLimit) -> bool:
        """Whether fewer than minOffsetsPerTrigger offsets are pending, and maxTriggerDelay has not passed. A run with
        an end never waits."""
        least = self._options.min_offsets_per_trigger
        if (
            least is None
            or self._target is not None
            or isinstance(limit, ReadAllAvailable)
            or self._admitted_at is None
        ):
            return False
        waited_ms = (time.monotonic() - self._admitted_at) * 1000
        return waiting < least and waited_ms < self._options.max_trigger_delay_ms

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────
    @without_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks for the offsets from `start` to `end`, which may be a batch that an earlier run planned."""
        goal = Progress.from_json(end)
        states = self._states()  # uses the newest seams, also in an availableNow run
        beyond = [tp for tp, offset in goal.offsets.items() if tp in states and offset > states[tp].extent.end]
        if beyond or any(tp not in states for tp in goal.offsets):
            states = self._watched().refresh()  # the run that planned the batch had a newer view
        elif self._has_tail(goal, states):
            states = self._watched().rediscover()  # the tail is read by name, so check the topic id
        starts, lost = resumed(Progress.from_json(start), states)
        wanted = {}
        for tp, offset in goal.offsets.items():
            if tp not in states:
                lost.append(f"{tp}: the partition is gone; a batch up to its offset {offset} was planned")
            elif goal.topic_ids.get(tp.topic) not in (None, states[tp].topic_id):
                lost.append(f"{tp}: the topic was deleted and created again; a batch of the old one was planned")
            else:
                wanted[tp] = (starts[tp], ranges.inside(tp, offset, states[tp].extent, "end", lost))
        fail_or_log(lost, self._options.fail_on_data_loss)
        tiers = self._watched().tiers
        return [InputPartition(task) for task in plan_tasks(tiers, states, wanted, Bounds(), self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.value
        return read_task(self._job, task)

    def _has_tail(self, goal: Progress, states: States) -> bool:
        return self._watched().tiers.has_cluster and any(
            offset > states[tp].seam or states[tp].cold is None for tp, offset in goal.offsets.items()
        )

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.tiers.close()
            self._watch = None

    def _states(self) -> States:
        return self._watched().latest()

    def _watched(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(Tiers(self._options), time.monotonic)
        return self._watch


def resumed(progress: Progress, states: States) -> tuple[dict[TopicPartition, int], list[str]]:
    """The offset at which each existing partition resumes, and a line for each partition that is gone or lost offsets.

    A new partition, and every partition of a topic that was created again, starts at its first offset. If this offset
    is not 0, offsets were lost.
    """
    starts: dict[TopicPartition, int] = {}
    lost = [
        f"{tp}: the partition is gone; the stream was at {at}"
        for tp, at in progress.offsets.items()
        if tp not in states
    ]
    for tp, state in states.items():
        at = progress.offsets.get(tp)
        known, now = progress.topic_ids.get(tp.topic), state.topic_id
        if at is not None and known is not None and now is not None and known != now:
            lost.append(f"{tp}: the topic was deleted and created again; the stream was at {at} of the old one")
            at = None
        elif at is None and state.extent.start > 0:
            what = "the stream has not read this partition before, and its log starts at"
            lost.append(f"{tp}: {what} {state.extent.start} already; the offsets before it were not read (retention)")
        starts[tp] = state.extent.start if at is None else at
    return starts, lost


def backlog(at: PartitionOffsets, states: States) -> dict[str, int]:
    """Offsets after the newest batch, without gaps, and their estimated bytes of log.

    A partition that the stream has not begun counts whole. Bytes use the mean record size in the bucket; 0 if the
    bucket has no record.
    """
    offsets = size = 0
    for tp, state in states.items():
        behind = pending(at.get(tp, state.extent.start), state.extent.end, state.gaps)
        offsets += behind
        if state.cold is not None and state.cold.manifest.live.records:
            live = state.cold.manifest.live
            size += behind * live.log_bytes // live.records
    return {"offsets": offsets, "bytes": size}


def _ids(states: States) -> dict[str, Any]:
    return {tp.topic: state.topic_id for tp, state in states.items() if state.topic_id is not None}
