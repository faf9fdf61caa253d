"""Syncs whose answers a test gives, each in the turn of the loop in which it says so."""

from __future__ import annotations

from collections.abc import Sequence

from seams.files.disk import File
from seams.files.syncs import Synced


class InHand:
    """In the place of a world's syncs."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Synced]] = []
        """How many files each call named, and whom to answer; the oldest first."""

    def sync(self, files: Sequence[File], synced: Synced) -> None:
        self.asked.append((len(files), synced))

    def answer(self, failure: OSError | None = None) -> None:
        """Answer the oldest call, for all its files alike."""
        count, synced = self.asked.pop(0)
        synced([failure] * count)
