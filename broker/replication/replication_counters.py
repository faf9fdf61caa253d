"""What replication moved to this broker, and what it did not have to, as plain attributes.

Owns the totals since the start. Always true: bumping one is an attribute store; `bytes_in` are bytes of records, as
answers of leaders carried them, taken or not (Kafka's ReplicationBytesInPerSec). Must not know who shows them.
"""

from __future__ import annotations


class ReplicationCounters:
    """Of one broker. `bytes_skipped`: about how many bytes lie between the old end of a replica's log, or the log
    start, and where it began anew because the bucket holds them; `begun`: how often one did."""

    __slots__ = ("begun", "bytes_in", "bytes_skipped")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_skipped = 0
        self.begun = 0
