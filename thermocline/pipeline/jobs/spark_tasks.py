"""Runs one function over many small values, on Spark or in this process, with progress.

Values and results are small and picklable; bulk bytes stay in the workers. An error that a retry cannot cure is raised
as itself at once. Spark retries all others; they end as TasksFailed with the worker's last message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast
from uuid import uuid4

from logformat.errors import Corrupt, InvalidRequest, ThermoclineError
from logformat.values import NewerFormat
from thermocline.pipeline.split import DataLoss

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_FINAL: Final = (DataLoss, NewerFormat, Corrupt, InvalidRequest)  # NewerFormat comes first, because it is a Corrupt
_POLL_S: Final = 0.25
_STOP_S: Final = 10.0
_INTERVAL_S: Final = 0.2  # of lines of progress

Progress = Callable[[int, int], None]  # tasks done, of how many


class TasksFailed(ThermoclineError):
    """Spark gave up: a worker died, or retries failed. Nothing was committed; run again."""


class TaskRunner(Protocol):
    @property
    def parallelism(self) -> int: ...

    def run(self, function: Callable[[T], R], tasks: Sequence[T], progress: Progress) -> list[R]:
        """Results in the tasks' order. Raises DataLoss, NewerFormat, Corrupt, InvalidRequest as the function did, or
        TasksFailed.
        """
        ...


class InProcess:
    """One task after the other, in this process: for a dry run, for tests, for a machine without Java."""

    parallelism = 1

    def run(self, function: Callable[[T], R], tasks: Sequence[T], progress: Progress) -> list[R]:
        answers = []
        for number, task in enumerate(tasks):
            progress(number, len(tasks))
            answers.append(function(task))
        return answers


@dataclass(frozen=True, slots=True)
class _Answer(Generic[R]):
    value: R | None
    error: Exception | None


class _Caught(Generic[T, R]):
    """Returns final errors as values. A class, so that it pickles by name."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function

    def __call__(self, task: T) -> _Answer[R]:
        try:
            return _Answer(self._function(task), None)
        except _FINAL as final:
            kind = next(known for known in _FINAL if isinstance(final, known))
            return _Answer(None, kind(str(final)))  # a subclass may not pickle, and its cause never does


class SparkTasks:
    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def parallelism(self) -> int:
        return int(self._context.defaultParallelism)

    def run(self, function: Callable[[T], R], tasks: Sequence[T], progress: Progress) -> list[R]:
        from pyspark import InheritableThread

        if not tasks:
            return []
        group = f"thermocline-{uuid4()}"
        answers: list[_Answer[R]] = []
        failures: list[BaseException] = []

        def work() -> None:
            try:
                self._context.setJobGroup(group, "thermocline", interruptOnCancel=True)
                spread = self._context.parallelize(tasks, len(tasks))
                answers.extend(spread.map(_Caught(function)).collect())
            except BaseException as failed:  # noqa: BLE001 - handed to the caller's thread
                failures.append(failed)

        worker = InheritableThread(target=work)
        worker.daemon = True
        worker.start()
        try:
            self._watch(worker, group, len(tasks), progress)
        except KeyboardInterrupt:
            self._context.cancelJobGroup(group)
            worker.join(_STOP_S)
            raise
        if failures:
            raise TasksFailed(_last_words(failures[0])) from failures[0]
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return [cast(R, answer.value) for answer in answers]

    def _watch(self, worker: threading.Thread, group: str, count: int, progress: Progress) -> None:
        tracker = self._context.statusTracker()
        while worker.is_alive():
            worker.join(_POLL_S)
            done = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in [] if info is None else info.stageIds:
                    seen = tracker.getStageInfo(stage)
                    done += 0 if seen is None else seen.numCompletedTasks
            progress(min(done, count), count)


def _last_words(failed: BaseException) -> str:
    """The line of a worker's traceback with the error, without the Java part."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
    errors = [line for line in lines if _is_error(line)]
    message = errors[-1] if errors else (lines[0] if lines else repr(failed))
    return f"the tasks failed: {message[:1000]}; nothing of this step was committed: run the job again"


def _is_error(line: str) -> bool:
    name, colon, _ = line.partition(":")
    return (
        bool(colon) and name.replace(".", "").replace("_", "").isalnum() and not name.startswith(("at ", "org.apache"))
    )


class ThrottledProgress:
    """Progress for people: at most one line in `_INTERVAL_S`."""

    def __init__(self, show: Callable[[str], None], what: str) -> None:
        self._show = show
        self._what = what
        self._shown_at = 0.0

    def __call__(self, done: int, count: int) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _INTERVAL_S:
            self._shown_at = now
            self._show(f"{self._what}: {done} of {count} tasks")
