"""What commands that are Spark jobs share: flags, a session that ends with the command, and what a failure means.

Owns the mapping of the pipeline's own errors to exit codes, and what Spark's JVM may say on stderr: nothing, unless it
was asked to (`--verbose`) or something broke that only its words explain. Must not know what a job does.
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

WORDS_MAX = 16 << 10  # of what the JVM said, its last ones


def add_spark(parser: argparse._ActionsContainer) -> None:
    """`--master` and `--verbose`."""
    parser.add_argument("--master", metavar="M", help="of Spark (default: local[*], or spark-submit's)")
    parser.add_argument("--verbose", action="store_true", help="show what Spark's JVM says")


@contextmanager
def job_errors() -> Iterator[None]:
    """Data loss is exit 4."""
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
    """A session for the length of a command; None without a name."""
    if app_name is None:
        yield None
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from thermocline.pipeline.spark.session import session

    progress.show("starting Spark")
    with kept_words() as words:
        try:
            with stderr_to(None if verbose else words):
                spark = session(app_name, master)
        except (PySparkException, Py4JError) as failed:
            raise CommandFailed("Spark did not start; its own words stand above. Is --master right?") from failed
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def kept_words() -> Iterator[IO[bytes]]:
    """A file for what the JVM says; shown when something fails that is not told in one line of ours."""
    from logformat.errors import ThermoclineError
    from thermocline.pipeline.jobs.spark_tasks import TasksFailed

    with tempfile.TemporaryFile() as words:
        try:
            yield words
        except Exception as failed:
            if isinstance(failed, TasksFailed) or not isinstance(failed, ThermoclineError):
                words.seek(max(0, words.seek(0, os.SEEK_END) - WORDS_MAX))
                sys.stderr.write(words.read().decode(errors="replace"))
            raise


@contextmanager
def stderr_to(file: IO[bytes] | None) -> Iterator[None]:
    """What a process started meanwhile says on stderr goes there, as long as it lives. None: nothing changes."""
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
