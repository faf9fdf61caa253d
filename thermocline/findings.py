"""A finding with its topic and partition, as `bucket verify` and `scrub` print it: a line for people, or a JSON row."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from coldstore.inspection.audit import Finding


@dataclass(frozen=True, slots=True)
class Located:
    """A finding and its partition. `topic_id` None: cluster metadata. `topic` None: the name is unknown."""

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
        """The names are part of the `--json` contract."""
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
