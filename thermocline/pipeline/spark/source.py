"""`spark.read.format("thermocline")`, `spark.readStream.format("thermocline")`, `CREATE TABLE … USING thermocline`.

Owns Spark's door to this package. Always true: options are checked when the source is created, so that a mistake shows
at `load()` (a table's, and those of a read with a schema that say neither where nor what: when it is read); an error of
ours shows as one sentence. Must not know tiers, offsets or tasks (`batch.py`, `stream.py`).
Spark's Python data source API: pyspark.sql.datasource (4.1 and later for pushed filters).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from logformat.errors import InvalidRequest
from thermocline.extras import require
from thermocline.pipeline.spark import table_options
from thermocline.pipeline.spark.batch import BatchReader, PushingReader
from thermocline.pipeline.spark.options import Options, check_names, parse_options, says_what
from thermocline.pipeline.spark.projection import full_schema
from thermocline.pipeline.spark.tasks import speak
from thermocline.pipeline.spark.told import runs_worker, told

log = logging.getLogger(__name__)

# The worker in which Spark pushes filters, and only when its conf says so. In the other one a reader that overrides
# pushFilters is an error, so the class is chosen by where we are.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_WRITE_WORKER: Final = "pyspark.sql.worker.write_into_data_source"
_NO_WRITING: Final = (
    'format("thermocline") only reads: topics are written through a broker; use format("kafka") with '
    "kafka.bootstrap.servers and topic"
)


class ThermoclineSource(DataSource):
    """The data source; options as of `options.KNOWN`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]  # Spark's own case-insensitive mapping
        with told():
            if runs_worker(_WRITE_WORKER):
                _refuse_to_write()  # before options are looked at: whoever writes gives others
            given = dict(options)
            self._makes_table = table_options.makes_table(given)
            self._given = table_options.of_new_table(given) if self._makes_table else given
            check_names(self._given)
            if says_what(self._given):
                parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        return "thermocline"

    def schema(self) -> StructType:
        with told():
            schema = full_schema(parse_options(self._given).include_headers)
            return table_options.kept(schema, self._given) if self._makes_table else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        speak()
        with told():
            parsed = self._parsed(schema)
            for name in parsed.without_effect:
                log.warning("option %s has no effect in a batch", name)
            push = parsed.push_filters
            if push is None:
                push = runs_worker(_PUSHDOWN_WORKER)
            return PushingReader(parsed, schema) if push else BatchReader(parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from thermocline.pipeline.spark.stream import StreamReader  # a batch spares its workers the import

        speak()
        with told():
            return StreamReader(self._parsed(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write()

    def _parsed(self, schema: StructType) -> Options:
        require("read", "format('thermocline')", "numpy", "numba")  # where the plan is made; workers ask for themselves
        return parse_options(table_options.joined(schema, self._given))


def _refuse_to_write() -> NoReturn:
    raise InvalidRequest(_NO_WRITING)
