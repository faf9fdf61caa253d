"""Changes to objects by commits without an answer: the root may have them, or get them later. Pure.

They are the difference between an edited manifest and the manifest before, so no writer has to tell what it changes.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from coldstore.manifest.manifest import Manifest


class Unanswered(msgspec.Struct, frozen=True):
    """`adds`: the root may name an object that the known manifest does not name. `withdraws`: it may name none.
    `replaces`: objects in whose place it may name compacted ones."""

    adds: bool = False
    withdraws: bool = False
    replaces: frozenset[UUID] = frozenset()

    def with_attempt(self, before: Manifest, after: Manifest) -> Unanswered:
        """These changes, and those of one more attempt, which makes `after` of `before`."""
        replaces = self.replaces
        if after.replaced != before.replaced:
            replaces |= {each.uuid for each in after.replaced} - {each.uuid for each in before.replaced}
        return Unanswered(
            self.adds or after.added != before.added,
            self.withdraws or after.live.segments == 0 < before.live.segments,
            replaces,
        )


NOTHING: Final = Unanswered()
