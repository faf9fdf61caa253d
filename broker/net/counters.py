"""What the TCP side counts, as plain attributes for /metrics to read.

Owns the figures. Always true: only the loop changes them. Must not know what they are called outside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from broker.net.dispatch import CloseReason


@dataclass(slots=True)
class NetCounters:
    """Totals since start, but `connections_open`. Bytes as they cross the socket, prefixes included."""

    connections_open: int = 0
    connections_accepted: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    frames: int = 0
    budget_waits: int = 0  # times a connection was not read because frames in flight had used up their memory
    closes: Counter[CloseReason] = field(default_factory=Counter)
