"""The stream: micro-batches of exact offset ranges over both tiers.

Owns what Spark asks a stream source: where it starts, how far the next batch goes, which tasks read it. Always true: a
batch is named by offsets alone, so that a restart reads the same rows whatever tier they lie in then; offsets only
grow; a partition that appears later is read from its first offset; nothing is skipped in silence. Must not know how
rows are read.
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
from thermocline.pipeline.spark import ranges
from thermocline.pipeline.spark.admission import admit, pending
from thermocline.pipeline.spark.batch import read_job
from thermocline.pipeline.spark.filters import Bounds
from thermocline.pipeline.spark.offsets import OffsetsJson, PartitionOffsets, Progress
from thermocline.pipeline.spark.options import Options
from thermocline.pipeline.spark.planning import fail_or_tell, plan_tasks
from thermocline.pipeline.spark.tasks import read_task
from thermocline.pipeline.spark.tiers import PartitionState, Tiers
from thermocline.pipeline.spark.told import told
from thermocline.pipeline.spark.watch import Watch

if TYPE_CHECKING:
    from thermocline.pipeline.spark.tasks import Task

BACKLOG_KEY: Final = "@backlog"  # in what is reported; no topic can be named so
States = Mapping[TopicPartition, PartitionState]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream's driver side; a copy without connections travels to the workers for `read`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._starting = options.for_stream()
        self._job = read_job(options, schema)
        self._watch: Watch | None = None
        self._target: dict[TopicPartition, PartitionState] | None = None  # availableNow: nothing after this is read
        self._admitted_at: float | None = None
        self._at: PartitionOffsets = {}  # where the newest batch that Spark knows of ends

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────
    @told()
    def initialOffset(self) -> OffsetsJson:
        """Where a stream without a checkpoint starts."""
        states = self._states()
        lost: list[str] = []
        found = self._watched().tiers.first_at(states, ranges.times_to_find(self._starting, states))
        extents = {tp: state.extent for tp, state in states.items()}
        no_later = self._options.no_later_record_is_latest
        starts = ranges.starts(self._starting, extents, found, no_later, lost)
        fail_or_tell(lost, self._options.fail_on_data_loss)
        return Progress(starts, _ids(states)).to_json()

    @told()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsJson:
        """The end of the next batch: as far as there is something, within the limit. `start` when there is nothing."""
        progress = Progress.from_json(start)
        states = self._states() if self._target is None else self._target
        starts, lost = resumed(progress, states)
        self._at = starts
        ends = {tp: state.extent.end for tp, state in states.items()}
        if self._options.bootstrap_servers is not None:
            lost += [
                f"{tp}: the stream is at {starts[tp]}, the cluster ends at {end}"
                for tp, end in ends.items()
                if starts[tp] > end
            ]
        fail_or_tell(lost, self._options.fail_on_data_loss)
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

    @told()
    def reportLatestOffset(self) -> dict[str, Any]:
        """For Spark's progress report: where the log ends, and how far the stream is behind it."""
        states = self._states()
        value = Progress({tp: state.extent.end for tp, state in states.items()}, _ids(states)).to_json()
        return {**value, BACKLOG_KEY: backlog(self._at, states)}

    @told()
    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is the whole of this run, in as many batches as the limit makes."""
        self._target = dict(self._states())

    def _shall_wait(self, waiting: int, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger: wait for more, for at most maxTriggerDelay. Never for a run that has an end."""
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
    @told()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks for the offsets from `start` to `end`, which may be a batch that an earlier run planned."""
        goal = Progress.from_json(end)
        states = self._states()  # also in a run that has an end: `end` says how far, and this knows the newest seam
        beyond = [tp for tp, offset in goal.offsets.items() if tp in states and offset > states[tp].extent.end]
        if beyond or any(tp not in states for tp in goal.offsets):
            states = self._watched().look()  # the batch was planned by a run that saw more
        elif self._has_tail(goal, states):
            states = self._watched().rediscover()  # the tail is read by name: it must be the topic the offsets are of
        starts, lost = resumed(Progress.from_json(start), states)
        wanted = {}
        for tp, offset in goal.offsets.items():
            if tp not in states:
                lost.append(f"{tp}: the partition is gone; a batch up to its offset {offset} was promised")
            elif goal.topic_ids.get(tp.topic) not in (None, states[tp].topic_id):
                lost.append(f"{tp}: the topic was deleted and made again; a batch of the old one was promised")
            else:
                wanted[tp] = (starts[tp], ranges.inside(tp, offset, states[tp].extent, "end", lost))
        fail_or_tell(lost, self._options.fail_on_data_loss)
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

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _states(self) -> States:
        return self._watched().latest()

    def _watched(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(Tiers(self._options), time.monotonic)
        return self._watch


def resumed(progress: Progress, states: States) -> tuple[dict[TopicPartition, int], list[str]]:
    """Where to go on in each partition that exists, and a line for each whose past or place was lost.

    A partition the stream has not seen, and every one of a topic that was made again, starts at its first offset; that
    is 0, or its beginning was lost.
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
            lost.append(f"{tp}: the topic was deleted and made again; the stream was at {at} of the old one")
            at = None
        elif at is None and state.extent.start > 0:
            what = "the partition is new to the stream, and its log starts at"
            lost.append(f"{tp}: {what} {state.extent.start} already; the offsets before it were not read (retention)")
        starts[tp] = state.extent.start if at is None else at
    return starts, lost


def backlog(at: PartitionOffsets, states: States) -> dict[str, int]:
    """What lies behind the newest batch: offsets that can hold records, and about how many bytes of log they are.

    A partition the stream has not begun counts whole. Bytes are by the mean record of the partition in the bucket, 0
    where the bucket has none of it.
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
