"""Message table by API family: fields, types and versions of every message. It is parsed here."""

from __future__ import annotations

from typing import Final

from broker.wire.schema import Schema, parse_all
from broker.wire.table import (
    admin,
    brokers,
    cluster,
    configs,
    data,
    groups,
    quotas,
    records,
    security,
    topics,
    transactions,
)

MESSAGES: Final[dict[str, Schema]] = parse_all(
    (
        data.TEXT,
        cluster.TEXT,
        groups.TEXT,
        topics.TEXT,
        configs.TEXT,
        admin.TEXT,
        brokers.TEXT,
        transactions.TEXT,
        quotas.TEXT,
        security.TEXT,
        records.TEXT,
    )
)
"""Every message this broker can read and write, by name, in the order of the table."""
