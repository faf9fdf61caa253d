"""The columns of Spark's Kafka source as an Arrow schema.

Source of names, order and types: Spark's "Structured Streaming + Kafka Integration Guide". Every batch of rows has
exactly `schema_of(columns)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),  # null where a record has none (-1)
    pa.field("timestampType", pa.int32()),  # 0 CreateTime, 1 LogAppendTime
    pa.field("headers", HEADERS_TYPE),
)
COLUMNS: Final = tuple(field.name for field in FIELDS)
DEFAULT_COLUMNS: Final = COLUMNS[:-1]  # as in Spark's source: headers only with includeHeaders


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of rows with these columns, in this order. Raises KeyError for an unknown name."""
    by_name = {field.name: field for field in FIELDS}
    return pa.schema([by_name[name] for name in columns])
