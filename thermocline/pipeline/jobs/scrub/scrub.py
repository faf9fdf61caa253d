"""The driver of a scrub: reads and checks every byte of every live object of a bucket, in parallel.

The driver reads the listing, roots and pages; tasks read the objects. Before damage is reported the roots are read
again, because a live broker may have expired the object. A scrub writes nothing to the bucket, so it may run beside a
broker or another scrub, and be killed at any point. With a journal a killed scrub resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coldstore.inspection.audit import Finding, FindingKind
from coldstore.keys import manifest_key
from coldstore.manifest.manifest_entries import RemoteSegment
from logformat.errors import Corrupt, InvalidRequest
from logformat.values import NewerFormat
from thermocline.findings import Located
from thermocline.pipeline.history import History
from thermocline.pipeline.jobs.report import Cell, summary_table
from thermocline.pipeline.jobs.scrub.scrub_journal import Journal
from thermocline.pipeline.jobs.scrub.scrub_view import (
    PartitionInspection,
    Place,
    check_ours,
    inspect_metadata,
    inspect_partition,
    places,
    still_named,
)
from thermocline.pipeline.jobs.scrub.scrub_worker import Blob, ScrubTask, run_task
from thermocline.pipeline.jobs.spark_tasks import InProcess, SparkTasks, TaskRunner, ThrottledProgress
from thermocline.units import show_rate, show_seconds, show_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES: Final = 512 << 20  # objects of one task: a Spark task costs 16-45 ms, and reads 1-2 GB/s
TASK_BYTES_MIN: Final = 64 << 20
WAVE_TASKS: Final = 64  # tasks per core between two journal writes; a killed scrub repeats at most these tasks


@dataclass(slots=True)
class ScrubReport:
    url: str
    dry_run: bool
    findings: list[Located] = field(default_factory=list)
    partitions: int = 0
    objects: int = 0
    object_bytes: int = 0
    skipped: int = 0  # objects that the previous run read, by its journal
    tasks: int = 0
    seconds: float = 0.0

    @property
    def damage(self) -> list[Located]:
        """The findings that make the exit code 5."""
        return [one for one in self.findings if one.finding.kind.is_damage]

    def lines(self) -> Sequence[tuple[str, Cell]]:
        read = f"{self.objects:,} ({show_size(self.object_bytes)})"
        return [
            ("bucket", self.url),
            ("partitions", self.partitions),
            ("objects to read" if self.dry_run else "objects read", read),
            ("read before (journal)", self.skipped or None),
            ("speed", None if self.dry_run else show_rate(self.object_bytes, self.seconds)),
            ("took", show_seconds(self.seconds)),
            ("damaged or missing", len(self.damage)),
            ("other findings", len(self.findings) - len(self.damage)),
        ]

    def row(self) -> dict[str, Cell]:
        """The last JSON line, after the lines of the findings."""
        return {
            "kind": "summary",
            "bucket": self.url,
            "dry_run": self.dry_run,
            "partitions": self.partitions,
            "objects": self.objects,
            "object_bytes": self.object_bytes,
            "read_before": self.skipped,
            "damaged": len(self.damage),
            "other_findings": len(self.findings) - len(self.damage),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), summary_table(self.lines())])


def scrub(
    spark: SparkSession | None,
    bucket: str,
    *,
    topic: str | None = None,
    dry_run: bool = False,
    journal: str | None = None,
    task_bytes: int = TASK_BYTES,
    progress: Callable[[str], None] | None = None,
) -> ScrubReport:
    """Read and check every live object of `bucket`, or of one topic (name or id) in it.

    `dry_run` reads roots, pages and listing only, and counts the bytes to read. `journal`: a local file with the
    objects already read and sound; a killed scrub resumes from it, a finished scrub deletes it. Without `spark` this
    process does the work. Raises InvalidRequest (unknown topic; no Thermocline bucket), NewerFormat (this version
    cannot check it), StoreError, AccessRefused, TasksFailed.
    """
    runner: TaskRunner = InProcess() if spark is None else SparkTasks(spark)
    show = progress or (lambda text: None)
    with History.open(bucket) as history:
        return _Scrubber(history, bucket, runner, show, topic, task_bytes).run(dry_run=dry_run, journal=journal)


class _Scrubber:
    def __init__(
        self,
        history: History,
        bucket: str,
        runner: TaskRunner,
        show: Callable[[str], None],
        topic: str | None,
        task_bytes: int,
    ) -> None:
        self._history = history
        self._store = history.store
        self._bucket = bucket
        self._runner = runner
        self._show = show
        self._topic = topic
        self._task_bytes = task_bytes
        self._report = ScrubReport(history.store.url, dry_run=False)

    def run(self, *, dry_run: bool, journal: str | None) -> ScrubReport:
        started = time.monotonic()
        report = self._report
        report.dry_run = dry_run
        self._show("reading roots and pages")
        seen, others, blobs = self._inspect()
        tasks = list(_tasks(self._bucket, seen, blobs, self._share(seen)))
        found: list[tuple[Place | None, Finding]] = []
        if dry_run:
            report.objects = sum(len(task.segments) + len(task.blobs) for task in tasks)
            report.object_bytes = sum(task.object_bytes for task in tasks)
        else:
            found = self._read(tasks, Journal(journal, self._report.url) if journal else None)
        report.partitions = len(seen)
        report.findings += others
        report.findings += self._confirmed(seen, found)
        report.findings.sort(key=_order)
        report.seconds = time.monotonic() - started
        return report

    # ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────
    def _inspect(self) -> tuple[list[PartitionInspection], list[Located], list[Blob]]:
        check_ours(self._store)
        listings, strangers = places(self._store)
        living = self._living()
        seen = self._history.map(lambda place: inspect_partition(self._store, place, listings[place]), listings)
        unlisted = [place for place in living if place not in listings]  # created meanwhile, or without a manifest
        seen += self._history.map(lambda place: inspect_partition(self._store, place, None), unlisted)
        self._report_rootless([one for one in seen if one.manifest is None and not one.damaged], living)
        blobs: list[Blob] = []
        others: list[Located] = []
        if self._topic is None:
            findings, blobs = inspect_metadata(self._store)
            others = [Located(one) for one in findings]
            others += [Located(Finding(FindingKind.UNKNOWN, one.key, None, f"{one.size} bytes")) for one in strangers]
        else:
            seen = [one for one in seen if self._topic in (one.topic, living.get(_place(one)), str(one.topic_id))]
            if not seen:
                raise InvalidRequest(f"{self._store.url} holds no topic {self._topic}: nothing was scrubbed")
        for one in seen:
            one.topic = one.topic or living.get(_place(one))
        return seen, others, blobs

    def _report_rootless(self, seen: Sequence[PartitionInspection], before: Mapping[Place, str]) -> None:
        """A partition that exists before and after the inspection, without a manifest, has lost its manifest."""
        seen = [one for one in seen if _place(one) in before]
        after = self._living() if seen else {}
        for one in seen:
            if _place(one) in after:
                text = "cluster.json lists the partition, but the bucket has no manifest of it"
                one.findings.append(Finding(FindingKind.MISSING, manifest_key(*_place(one)), None, text))

    def _living(self) -> dict[Place, str]:
        """Partitions of cluster.json, which must have a manifest; empty when it cannot be read."""
        try:
            topics = self._history.topics().values()
        except NewerFormat:
            raise
        except (Corrupt, InvalidRequest):
            return {}  # `inspect_metadata` reports it
        return {(one.topic_id, p): one.topic for one in topics for p in range(one.partitions)}

    def _share(self, seen: Sequence[PartitionInspection]) -> int:
        """Bytes of a task, so few that the last tasks finish at about the same time."""
        total = sum(segment.object_bytes for one in seen for segment in one.segments)
        even = total // (3 * max(1, self._runner.parallelism))
        return min(self._task_bytes, max(TASK_BYTES_MIN, even))

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _read(self, tasks: Sequence[ScrubTask], journal: Journal | None) -> list[tuple[Place | None, Finding]]:
        report = self._report
        found: list[tuple[Place | None, Finding]] = []
        if journal is not None:
            tasks = [left for task in tasks if (left := journal.left_of(task)) is not None]
            report.skipped = journal.skipped
        wave = max(1, self._runner.parallelism) * (WAVE_TASKS if journal is not None else len(tasks) or 1)
        for at in range(0, len(tasks), wave):
            some = tasks[at : at + wave]
            progress = ThrottledProgress(self._show, f"reading {show_size(sum(task.object_bytes for task in some))}")
            done = self._runner.run(run_task, some, progress)
            for one in done:
                report.objects += len(one.read)
                report.object_bytes += one.task.object_bytes
                found += [(_place_of(one.task), finding) for finding in one.findings]
            report.tasks += len(some)
            if journal is not None:
                journal.note(done)
        if journal is not None:
            journal.remove()
        return found

    def _confirmed(
        self, seen: Sequence[PartitionInspection], found: Sequence[tuple[Place | None, Finding]]
    ) -> Iterator[Located]:
        """Every finding with its partition, without damage of objects that are no longer named."""
        by_place: dict[Place | None, list[Finding]] = {}
        for place, finding in found:
            by_place.setdefault(place, []).append(finding)
        for one in seen:
            read = by_place.get(_place(one), [])
            if any(finding.kind.is_damage for finding in read):
                read = still_named(self._store, _place(one), read)
            for finding in [*one.findings, *read]:
                yield Located(finding, one.topic, one.topic_id, one.partition)
        if damaged := by_place.get(None):  # the controller may have written a new page meanwhile
            _, now = inspect_metadata(self._store)
            named = {blob.key for blob in now}
            for finding in damaged:
                if finding.key in named:
                    yield Located(finding)


def _place(one: PartitionInspection) -> Place:
    return one.topic_id, one.partition


def _place_of(task: ScrubTask) -> Place | None:
    return None if task.topic_id is None else (task.topic_id, task.partition)


def _order(one: Located) -> tuple[bool, str, int, int, str]:
    found = one.finding
    at = -1 if found.offset is None else found.offset
    return (not found.kind.is_damage, one.topic or str(one.topic_id or ""), one.partition or 0, at, found.key or "")


def _tasks(
    bucket: str, seen: Sequence[PartitionInspection], blobs: Sequence[Blob], task_bytes: int
) -> Iterator[ScrubTask]:
    """Tasks of consecutive objects of one partition. The largest come first, so that no large task remains alone at the
    end.
    """
    tasks = [ScrubTask(bucket, None, 0, (), tuple(blobs))] if blobs else []
    for one in seen:
        taken: list[RemoteSegment] = []
        taken_bytes = 0
        for segment in one.segments:
            if taken and taken_bytes + segment.object_bytes > task_bytes:
                tasks.append(ScrubTask(bucket, one.topic_id, one.partition, tuple(taken)))
                taken, taken_bytes = [], 0
            taken.append(segment)
            taken_bytes += segment.object_bytes
        if taken or one.snapshots:
            tasks.append(ScrubTask(bucket, one.topic_id, one.partition, tuple(taken), tuple(one.snapshots)))
    yield from sorted(tasks, key=lambda task: -task.object_bytes)
