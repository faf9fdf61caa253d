"""Every message this broker can read and write, by name.

Owns the parsed table (`broker.wire.table`); the typed classes made from it are in `broker.wire.generated.messages`.
Always true: names are `ProduceRequest`, `ProduceResponse`, ... and Kafka's own for records (`OffsetCommitValue`).
"""

from __future__ import annotations

from typing import Final

from broker.wire.schema import Schema, parse_all
from broker.wire.table import TEXTS

MESSAGES: Final[dict[str, Schema]] = parse_all(TEXTS)
