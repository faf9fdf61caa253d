"""What others need to know of a topic: which one has the name now, and how many partitions it has.

Must not know where topics are kept, nor who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias
from uuid import UUID


class TopicFacts(NamedTuple):
    """`partitions`: how many."""

    topic_id: UUID
    partitions: int


TopicLookup: TypeAlias = Callable[[str], TopicFacts | None]
"""By name; None when there is no such topic."""
