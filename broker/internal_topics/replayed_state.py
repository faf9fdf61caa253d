"""What an internal log needs of a state that it keeps: the door through which groups, and later transactions, come.

Owns the protocol. A state is what one partition's records add up to, in one leader epoch. Must not know any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from broker.internal_topics.batches import KeyValue


class Live(NamedTuple):
    """The records that say all of a state, as it was at one moment; later changes do not show."""

    records_count: int
    records: Iterator[KeyValue]


class ReplayedState(Protocol):
    """Every call is made on the loop and returns without waiting."""

    def apply(self, records: Sequence[KeyValue]) -> None:
        """Replayed records, in the log's order, some hundreds at a time. Raises Corrupt."""
        ...

    def restore(self) -> Iterator[None]:
        """Everything was replayed: come to life, in steps of about 10 µs; requests are served after the last one."""
        ...

    def live(self) -> Live:
        """What a snapshot has to hold, cut now."""
        ...

    def live_again(self) -> Iterator[KeyValue]:
        """For a rewrite: first a record that changes nothing, then what lives, each record as the state is when it is
        asked for. What comes to life meanwhile may be missing: the log has it above."""
        ...

    def unload(self) -> None:
        """Not led any more, or never fully loaded: answer whoever waits, forget everything. Called once; writes that
        were pending fail after it."""
        ...
