"""`spark.read.format("thermocline")` and `spark.readStream.format("thermocline")`.

Owns Spark's door to this package. Always true: options are checked when the source is created, so that a mistake shows
at `load()`. Must not know tiers, offsets or tasks (`batch.py`, `stream.py`).
Spark's Python data source API: pyspark.sql.datasource (4.1 and later for pushed filters).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from thermocline.extras import require
from thermocline.pipeline.spark.batch import BatchReader, PushingReader
from thermocline.pipeline.spark.options import parse_options
from thermocline.pipeline.spark.projection import full_schema
from thermocline.pipeline.spark.tasks import speak

log = logging.getLogger(__name__)

# The worker in which Spark pushes filters, and only when its conf says so. In the other one a reader that overrides
# pushFilters is an error, so the class is chosen by where we are.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class ThermoclineSource(DataSource):
    """The data source; options as of `options.KNOWN`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]  # Spark's own case-insensitive mapping
        self._parsed = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "thermocline"

    def schema(self) -> StructType:
        return full_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        speak()
        require("read", "format('thermocline')", "numpy")  # where the plan is made; workers ask for themselves
        for name in self._parsed.without_effect:
            log.warning("option %s has no effect in a batch", name)
        push = self._parsed.push_filters
        if push is None:
            push = _in_pushdown_worker()
        return PushingReader(self._parsed, schema) if push else BatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from thermocline.pipeline.spark.stream import StreamReader  # a batch spares its workers the import

        speak()
        require("read", "format('thermocline')", "numpy")
        return StreamReader(self._parsed, schema)


def _in_pushdown_worker() -> bool:
    main = sys.modules["__main__"].__spec__
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)
