"""Hides Python's traceback from Spark users when the source raises one of our own errors.

It acts only in a Python worker of Spark, and only for errors whose message has the failure and the remedy. Spark's
worker reads an environment variable when it reports an error, and then ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logformat.errors import ThermoclineError
from thermocline.pipeline.split import DataLoss

_HIDE: Final = "SPARK_HIDE_TRACEBACK"  # spark.sql.execution.pyspark.udf.hideTraceback.enabled sets it for all errors


@contextmanager
def without_traceback() -> Iterator[None]:
    """Errors of our own that leave this block are shown by a Spark worker without a traceback."""
    try:
        yield
    except (ThermoclineError, DataLoss):
        if in_spark_worker():
            os.environ[_HIDE] = "1"
        raise


def in_spark_worker() -> bool:
    """Whether Spark started this process to run Python for it."""
    main = sys.modules["__main__"].__spec__
    return main is not None and main.name.startswith("pyspark.")


def runs_worker(module: str) -> bool:
    main = sys.modules["__main__"].__spec__
    return module in sys.modules or (main is not None and main.name == module)
