"""The compact message table, split by API family, and its parsed form.

Owns the facts: which field, of which type, in which versions. Always true: nothing else in the house repeats them.
"""

from __future__ import annotations

from typing import Final

from broker.wire.schema import Schema, parse_all
from broker.wire.table import admin, brokers, cluster, configs, data, groups, records, topics

MESSAGES: Final[dict[str, Schema]] = parse_all(
    (data.TEXT, cluster.TEXT, groups.TEXT, topics.TEXT, configs.TEXT, admin.TEXT, brokers.TEXT, records.TEXT)
)
"""Every message this broker can read and write, by name, in the order of the table."""
