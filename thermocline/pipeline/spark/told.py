"""What a user of Spark sees when the source refuses: the sentence, without Python's stack above it.

Owns when a stack is left out. Always true: only for errors of the house, whose message says what happened and what to
do, and only in a Python worker of Spark's; whatever is not known keeps its stack. Spark's worker asks its environment
whether to hide the stack when it reports an error, and ends then, so that what is set here outlives nothing.
Must not know what any error means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logformat.errors import ThermoclineError
from thermocline.pipeline.split import DataLoss

_HIDE: Final = "SPARK_HIDE_TRACEBACK"  # as spark.sql.execution.pyspark.udf.hideTraceback.enabled sets it for all


@contextmanager
def told() -> Iterator[None]:
    """An error of the house leaves a Spark worker without its stack."""
    try:
        yield
    except (ThermoclineError, DataLoss):
        if in_spark_worker():
            os.environ[_HIDE] = "1"
        raise


def in_spark_worker() -> bool:
    """Whether this process was started by Spark to run Python for it: there is no user's program in it."""
    main = sys.modules["__main__"].__spec__
    return main is not None and main.name.startswith("pyspark.")


def runs_worker(module: str) -> bool:
    """Whether this process runs that worker module of Spark's: each has a daemon, or a process, of its own."""
    main = sys.modules["__main__"].__spec__
    return module in sys.modules or (main is not None and main.name == module)
