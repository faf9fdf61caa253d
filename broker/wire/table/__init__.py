"""The compact message table, split by API family.

Owns the facts: which field, of which type, in which versions. Always true: nothing else in the house repeats them.
"""

from __future__ import annotations

from typing import Final

from broker.wire.table import cluster, configs, data, groups, records, topics

TEXTS: Final = (data.TEXT, cluster.TEXT, groups.TEXT, topics.TEXT, configs.TEXT, records.TEXT)
