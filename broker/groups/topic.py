"""`__consumer_offsets` as a topic: all that groups know of it besides its log.

Owns the protocol, nothing else. Must not know the controller, nor how partitions are opened.
"""

from __future__ import annotations

from typing import Final, Protocol

OFFSETS_TOPIC: Final = "__consumer_offsets"


class OffsetsTopic(Protocol):
    """The internal topic (design 5). Partitions count from 0."""

    @property
    def partitions(self) -> int:
        """offsets.topic.num.partitions; constant for the life of the topic."""
        ...

    def is_offline(self, index: int) -> bool:
        """This broker is to lead that partition and cannot: it is damaged, or its log failed."""
        ...

    def leader(self, index: int) -> int:
        """The node that leads that partition, and coordinates its groups; NO_LEADER while there is none."""
        ...

    async def ensure_created(self) -> None:
        """The topic exists, and what could be opened of it is led, when this returns; cheap when it is so. Raises
        Retryable (try again later), Fenced, InvalidRequest."""
        ...
