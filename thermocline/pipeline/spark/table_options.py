"""Options of a table in Spark SQL: `CREATE TABLE orders USING thermocline OPTIONS (bucket '…', subscribe 'orders')`.

Owns how they survive. Spark (4.3) hands the options of a table to a Python source once, when the table is made, and
when it is read only its columns; so the options stand in the metadata of the first column. Always true: what an OPTIONS
clause says is all there, but for secrets, which are refused: a schema is copied to whatever is made of it. Pure. Must
not know what an option means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from logformat.errors import InvalidRequest

KEY: Final = "thermocline.options"
_MADE_BY_SQL: Final = "provider"  # a table property of Spark's that no reader's option is called
_PREFIX: Final = "option."
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key|jaas", re.IGNORECASE)  # Spark's own, and JAAS


def makes_table(given: Mapping[str, str]) -> bool:
    """Whether Spark asks for the columns of a table that is being made."""
    return _MADE_BY_SQL in given


def of_new_table(given: Mapping[str, str]) -> dict[str, str]:
    """The OPTIONS clause among the properties of a new table. InvalidRequest for a location or a secret."""
    if "location" in given:
        raise InvalidRequest("LOCATION means nothing to this source: name the bucket with the option bucket")
    options = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
    for key in sorted(options):
        if _SECRET.search(key):
            raise InvalidRequest(
                f"option {key} would stand in the catalog for everyone to read: leave it out here, and give it where "
                f"the table is read: SELECT … FROM t WITH (`{key}` = '…'), or use CREATE TEMPORARY VIEW"
            )
    return options


def kept(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema with the options in it."""
    first, *others = schema.fields
    text = json.dumps(dict(sorted(options.items())))
    return StructType([StructField(first.name, first.dataType, first.nullable, {KEY: text}), *others])


def joined(schema: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a read: those of the table, if it is one, and those given with the query, which win."""
    metadata = schema.fields[0].metadata if schema.fields else {}
    found: dict[str, str] = json.loads(metadata.get(KEY, "{}"))
    return {**found, **given}
