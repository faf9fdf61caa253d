"""Objects of one pass: gives each as a local file, or only its footer.

Before and after each read the pass checks that it may continue. Objects that are read twice stay in the scratch
directory while there is room. An object that is missing is damage only if it is still live. This module does not
decide which records stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from coldstore.manifest.manifest import RemoteSegment
from coldstore.object_store import ObjectMissing, answered_within
from coldstore.segments.segment_object import SegmentFooter
from coldstore.segments.segment_reader import fetch_committed_footer
from logformat.errors import Retryable
from seams.files.disk import File
from tiering.cleaning.cold_rewrite import fetch_object
from tiering.cleaning.scratch import ColdCleaning, ScratchFiles
from tiering.partition_state import TieredPartition


class PolicyChanged(Retryable):
    """The topic is no longer compacted or tiered, or its objects changed."""


class PassObjects:
    """`check`: raises when the pass may not go on. All calls raise its errors, and Corrupt, ObjectMissing,
    Fenced, Retryable, OSError."""

    def __init__(
        self, partition: TieredPartition, shared: ColdCleaning, files: ScratchFiles, check: Callable[[], None]
    ) -> None:
        self._partition: Final = partition
        self._shared: Final = shared
        self._files: Final = files
        self._check: Final = check
        self._footers: dict[UUID, SegmentFooter] = {}
        """Footers of the objects that are kept as files."""

    async def whole(self, entry: RemoteSegment, *, is_read_again: bool) -> tuple[File, SegmentFooter]:
        """The object as a local file, which is valid until the next call, and its footer."""
        footer, files, shared = self._footers.get(entry.uuid), self._files, self._shared
        if footer is not None:
            return files.kept[entry.uuid].file, footer
        file = files.source
        if is_read_again:
            file = await shared.step(shared.room_for, files, entry.uuid, entry.object_bytes)
        footer = await self._fetch(entry, file)
        if file is not files.source:
            self._footers[entry.uuid] = footer
        return file, footer

    async def done(self, entry: RemoteSegment) -> None:
        """Free the object's file: it will not be read again."""
        if self._footers.pop(entry.uuid, None) is not None:
            await self._shared.step(self._shared.drop_kept, self._files, entry.uuid)

    async def footer(self, entry: RemoteSegment) -> SegmentFooter:
        """The object's footer alone, by one request."""
        self._check()
        partition, size = self._partition, entry.object_bytes - entry.log_bytes
        key = entry.key(partition.topic_id, partition.partition)
        try:
            async with answered_within(partition.limits.store_timeout_s, f"GET {key}"):
                footer = await fetch_committed_footer(partition.store, key, entry)
        except ObjectMissing:
            await self._check_still_live(entry)
            raise
        self._shared.counters.read_bytes += size
        await self._shared.took(size)
        return footer

    async def _fetch(self, entry: RemoteSegment, file: File) -> SegmentFooter:
        self._check()
        partition, shared = self._partition, self._shared
        key = entry.key(partition.topic_id, partition.partition)
        try:
            footer = await fetch_object(shared, partition.store, key, entry, file, partition.limits.upload_timeout_s)
        except ObjectMissing:
            await self._check_still_live(entry)
            raise
        await shared.took(entry.object_bytes)
        self._check()
        return footer

    async def _check_still_live(self, entry: RemoteSegment) -> None:
        if not await self._partition.is_live(entry):
            raise PolicyChanged(f"object {entry.uuid} was replaced, or expired, during the pass")
