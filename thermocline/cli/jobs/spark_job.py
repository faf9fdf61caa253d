"""Shared by commands that are Spark jobs: flags, a session for the command, exit codes, and Spark's stderr.

The JVM's output is shown with `--verbose`, or when an unexpected error needs it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from thermocline.cli.terminal.outcome import CommandFailed, Exit

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from thermocline.cli.terminal.output import ProgressLine

OUTPUT_BYTES_MAX = 16 << 10  # bytes printed from the end of the JVM's output


def add_spark(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--master", metavar="M", help="Spark's master (default: local[*], or spark-submit's)")
    parser.add_argument("--verbose", action="store_true", help="show the messages of Spark's JVM")


@contextmanager
def job_errors() -> Iterator[None]:
    """Turn DataLoss into CommandFailed with exit 4."""
    try:
        yield
    except Exception as failed:
        from thermocline.pipeline.split import DataLoss

        if not isinstance(failed, DataLoss):
            raise
        raise CommandFailed(str(failed), Exit.STORAGE_FAILED) from failed


@contextmanager
def maybe_session(
    app_name: str | None, master: str | None, progress: ProgressLine, *, verbose: bool
) -> Iterator[SparkSession | None]:
    """A Spark session for the length of a command; None if `app_name` is None."""
    if app_name is None:
        yield None
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from thermocline.pipeline.spark.session import session

    progress.show("starting Spark")
    with jvm_output() as words:
        try:
            with stderr_to(None if verbose else words):
                spark = session(app_name, master)
        except (PySparkException, Py4JError) as failed:
            raise CommandFailed("Spark did not start; its own messages are above. Is --master right?") from failed
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def jvm_output() -> Iterator[IO[bytes]]:
    """A file for the JVM's output; its end is printed when an error is not one of our own."""
    from logformat.errors import ThermoclineError
    from thermocline.pipeline.jobs.spark_tasks import TasksFailed

    with tempfile.TemporaryFile() as words:
        try:
            yield words
        except Exception as failed:
            if isinstance(failed, TasksFailed) or not isinstance(failed, ThermoclineError):
                words.seek(max(0, words.seek(0, os.SEEK_END) - OUTPUT_BYTES_MAX))
                sys.stderr.write(words.read().decode(errors="replace"))
            raise


@contextmanager
def stderr_to(file: IO[bytes] | None) -> Iterator[None]:
    """Processes that start meanwhile write their stderr to `file`. None changes nothing."""
    if file is None:
        yield
        return
    sys.stderr.flush()
    ours = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
