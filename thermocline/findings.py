"""A finding and where it belongs, for people and for programs: what `bucket verify` and `scrub` print.

Owns the words of a line and the names in its JSON, which scripts rely on. Must not know how anything was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from coldstore.inspection.audit import Finding


@dataclass(frozen=True, slots=True)
class Located:
    """A finding and its partition; `topic_id` None: of the cluster's own metadata; `topic` None: nothing names it."""

    finding: Finding
    topic: str | None = None
    topic_id: UUID | None = None
    partition: int | None = None

    def __str__(self) -> str:
        found = self.finding
        where = "cluster metadata" if self.topic_id is None else f"{self.topic or self.topic_id}-{self.partition}"
        where += "" if found.offset is None else f" at offset {found.offset}"
        return f"{found.kind.value:20} {where}: {found.detail}" + (f" ({found.key})" if found.key else "")

    def row(self) -> dict[str, str | int | bool | None]:
        """For a JSON line."""
        found = self.finding
        return {
            "kind": found.kind.value,
            "damage": found.kind.is_damage,
            "topic": self.topic,
            "topic_id": None if self.topic_id is None else str(self.topic_id),
            "partition": self.partition,
            "offset": found.offset,
            "key": found.key,
            "detail": found.detail,
        }
