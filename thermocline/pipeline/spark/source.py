"""Spark's entry point: `spark.read.format("thermocline")`, `readStream`, `CREATE TABLE … USING thermocline`.

Options are checked when the source is created, so that mistakes show at `load()`. Options of a table, and options
without bucket and topics, are checked when the table is read. Spark's Python data source API: pyspark.sql.datasource
(4.1 and later for pushed filters).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType

from logformat.errors import InvalidRequest
from thermocline.extras import require
from thermocline.pipeline.spark.batch import BatchReader, PushingReader
from thermocline.pipeline.spark.options import Options, check_names, names_source, parse_options
from thermocline.pipeline.spark.projection import full_schema
from thermocline.pipeline.spark.spark_errors import runs_worker, without_traceback
from thermocline.pipeline.spark.tasks import enable_info_log

log = logging.getLogger(__name__)

# Spark pushes filters in this worker only, and only if configured. In other workers a reader that overrides pushFilters
# is an error, so the reader's class depends on the worker.
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_WRITE_WORKER: Final = "pyspark.sql.worker.write_into_data_source"
_NO_WRITING: Final = (
    'format("thermocline") only reads: topics are written through a broker; use format("kafka") with '
    "kafka.bootstrap.servers and topic"
)

_OPTIONS_KEY: Final = "thermocline.options"
_MADE_BY_SQL: Final = "provider"  # a table property of Spark, not an option of a reader
_PREFIX: Final = "option."
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key|jaas", re.IGNORECASE)  # Spark's own, and JAAS


class ThermoclineSource(DataSource):
    """The data source, with the options of `options.KNOWN`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]  # Spark's own case-insensitive mapping
        with without_traceback():
            if runs_worker(_WRITE_WORKER):
                _refuse_to_write()  # before the options are checked, because a writer has other options
            given = dict(options)
            self._makes_table = _makes_table(given)
            self._given = _options_of_new_table(given) if self._makes_table else given
            check_names(self._given)
            if names_source(self._given):
                parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        return "thermocline"

    def schema(self) -> StructType:
        with without_traceback():
            schema = full_schema(parse_options(self._given).include_headers)
            return _with_options(schema, self._given) if self._makes_table else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        enable_info_log()
        with without_traceback():
            parsed = self._parsed(schema)
            for name in parsed.without_effect:
                log.warning("option %s has no effect in a batch", name)
            push = parsed.push_filters
            if push is None:
                push = runs_worker(_PUSHDOWN_WORKER)
            return PushingReader(parsed, schema) if push else BatchReader(parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from thermocline.pipeline.spark.stream import StreamReader  # workers of a batch do not need it

        enable_info_log()
        with without_traceback():
            return StreamReader(self._parsed(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        _refuse_to_write()

    def _parsed(self, schema: StructType) -> Options:
        require("read", "format('thermocline')", "numpy", "numba")  # for the driver; each worker checks again
        return parse_options(_options_of_read(schema, self._given))


def _refuse_to_write() -> NoReturn:
    raise InvalidRequest(_NO_WRITING)


# ── options of a table: CREATE TABLE orders USING thermocline OPTIONS (bucket '…', subscribe 'orders') ────────────────
# Spark (4.3) passes them to a Python source only when the table is created; a read gets the columns only. So they are
# stored in the metadata of the first column. Secrets are refused, because schemas are copied.
def _makes_table(given: Mapping[str, str]) -> bool:
    """Whether Spark asks for the columns of a table that is being created."""
    return _MADE_BY_SQL in given


def _options_of_new_table(given: Mapping[str, str]) -> dict[str, str]:
    """The OPTIONS clause among the properties of a new table. Raises InvalidRequest for a location or a secret."""
    if "location" in given:
        raise InvalidRequest("LOCATION has no effect on this source: name the bucket with the option bucket")
    options = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
    for key in sorted(options):
        if _SECRET.search(key):
            raise InvalidRequest(
                f"option {key} would be stored in the catalog, where everyone can read it: leave it out here, and "
                f"give it when you read the table: SELECT … FROM t WITH (`{key}` = '…'), or use CREATE TEMPORARY VIEW"
            )
    return options


def _with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    first, *others = schema.fields
    text = json.dumps(dict(sorted(options.items())))
    return StructType([StructField(first.name, first.dataType, first.nullable, {_OPTIONS_KEY: text}), *others])


def _options_of_read(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a read: the table's, if any, and the query's, which override them."""
    metadata = schema.fields[0].metadata if schema.fields else {}
    found: dict[str, str] = json.loads(metadata.get(_OPTIONS_KEY, "{}"))
    return {**found, **given}
