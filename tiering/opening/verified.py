"""Which objects of a partition this process saw whole in the store, after the commits that name them.

Always true: what is in it may let local bytes go; nothing of an era that is over is in it; it is bounded, and one
forgotten is verified again before local bytes go. Pure. Must not know the store, nor what is deleted.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from coldstore.manifest.manifest import RemoteSegment

VERIFIED_MAX: Final = 100_000


class Verified:
    """`era` grows when all objects were withdrawn: what was verified in an earlier one means nothing."""

    __slots__ = ("_covered", "_objects", "era")

    def __init__(self) -> None:
        self.era = 0
        self._objects: dict[UUID, tuple[int, int]] = {}  # [base, end) offsets of the object
        self._covered = (-1, -1)  # as asked last, and answered: every fetch of a replica asks

    def note(self, segment: RemoteSegment, era: int) -> None:
        """The object was seen whole in the store, in `era`, after the commit that names it."""
        if era != self.era:
            return
        if len(self._objects) >= VERIFIED_MAX:
            del self._objects[next(iter(self._objects))]
        self._objects[segment.uuid] = (segment.base_offset, segment.end_offset)
        self._covered = (-1, -1)

    def __contains__(self, segment: RemoteSegment) -> bool:
        return self._objects.get(segment.uuid) == (segment.base_offset, segment.end_offset)

    def covered_from(self, start: int) -> int:
        """How far objects reach from `start` on, without a hole."""
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
        """The root names none of them any more: other objects may hold the same offsets one day."""
        self.era += 1
        self._objects.clear()
        self._covered = (-1, -1)

    def forget(self, below: int) -> None:
        """Local bytes below `below` are gone: nothing needs to be remembered about them."""
        gone = [uuid for uuid, (_, end) in self._objects.items() if end <= below]
        for uuid in gone:
            del self._objects[uuid]
        self._covered = (-1, -1)
