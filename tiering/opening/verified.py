"""Verified objects of a partition: this process checked them completely in the store, after the commits that name them.
Pure.

Local bytes that they cover may be deleted. The set is bounded; a dropped object is verified again first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from coldstore.manifest.manifest import RemoteSegment

VERIFIED_MAX: Final = 100_000


@dataclass(slots=True, eq=False)
class Verified:
    """`era` grows with each attempt to withdraw all objects: verifications of an earlier era do not count."""

    era: int = 0
    _objects: dict[UUID, tuple[int, int]] = field(default_factory=dict)  # [base, end) offsets of the object
    _covered: tuple[int, int] = (-1, -1)  # cache of the last result, because every fetch of a replica asks

    def note(self, segment: RemoteSegment, era: int) -> None:
        """The object was verified in the store, in `era`, after the commit that names it."""
        if era != self.era:
            return
        if len(self._objects) >= VERIFIED_MAX:
            del self._objects[next(iter(self._objects))]
        self._objects[segment.uuid] = (segment.base_offset, segment.end_offset)
        self._covered = (-1, -1)

    def __contains__(self, segment: RemoteSegment) -> bool:
        return self._objects.get(segment.uuid) == (segment.base_offset, segment.end_offset)

    def covered_from(self, start: int) -> int:
        """The end of the objects that cover offsets from `start` on without a hole."""
        if self._covered[0] == start:
            return self._covered[1]
        covered = start
        for base, end in sorted(self._objects.values()):
            if base > covered:
                break
            covered = max(covered, end)
        self._covered = start, covered
        return covered

    def forget_all(self) -> None:
        """Forget all objects: the root may name none, and other objects may hold the same offsets later."""
        self.era += 1
        self._objects.clear()
        self._covered = (-1, -1)

    def forget_objects(self, uuids: Iterable[UUID]) -> None:
        """Forget these objects: the root may name their replacements."""
        for uuid in uuids:
            self._objects.pop(uuid, None)
        self._covered = (-1, -1)

    def forget(self, below: int) -> None:
        """Forget the objects below `below`, because the local bytes there are deleted."""
        gone = [uuid for uuid, (_, end) in self._objects.items() if end <= below]
        for uuid in gone:
            del self._objects[uuid]
        self._covered = (-1, -1)
