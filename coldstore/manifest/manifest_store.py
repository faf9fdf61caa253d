"""`ManifestStore`: loads, claims, commits and searches one partition's manifest in a bucket.

It does the I/O for `Manifest` and its pages. A page is in the bucket before a root names it. A root stays within 64
KiB. Nothing is deleted here: the caller deletes unnamed objects after the grace. `may_delete` is true only if no
attempt of this process can still arrive, and a root read after that does not name the object (C3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final
from uuid import UUID

from coldstore.keys import SegmentKey, manifest_key
from coldstore.manifest.manifest import EditRefused, Manifest, PagePointer, RemoteSegment, new_manifest
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.manifest.manifest_pages import (
    PAGE_BYTES_MAX,
    Page,
    decode_page,
    encode_page,
    pointer_table,
    segment_table,
    table_with,
)
from coldstore.manifest.manifest_reader import check_manifest_root
from coldstore.manifest.page_reader import PageCache, PageReader
from coldstore.manifest.replacement import PageMove, replace_segments
from coldstore.manifest.unanswered import NOTHING, Unanswered
from coldstore.object_store import ObjectMissing, ObjectStore, StoreError, Upload, answered_within
from coldstore.roots.root import ENVELOPE_BYTES_MAX, ROOT_BYTES_MAX, Root, RootStore, RootTooLarge
from logformat.errors import Corrupt, Fenced, InvalidRequest
from seams.clock import Clock
from seams.crash_points import reach
from seams.loop.workers import Workers
from seams.rng import Rng

PAGE_ENTRIES_MIN: Final = 4096  # the last page is rewritten with more entries until it has this many
POINTERS_IN_ROOT_MAX: Final = 32  # level-0 pointers (~450 bytes each) in a root before they move to level 1
UNNAMED_MAX: Final = 10_000  # keys remembered for deletion; gc finds the others
CLAIM_BYTES: Final = 8192  # room for a claim's topic name and configs
_FOLD_TRIES: Final = 4
_REPLACE_TRIES: Final = 3

Edit = Callable[[Manifest], Manifest]
MaySend = Callable[[], None]


class ManifestStore:
    """The manifest of `partition` of the topic `topic_id`."""

    def __init__(
        self,
        store: ObjectStore,
        topic_id: UUID,
        partition: int,
        rng: Rng,
        clock: Clock,
        *,
        workers: Workers | None = None,
        page_cache: PageCache | None = None,
        root_bytes_max: int = ROOT_BYTES_MAX,
        page_entries_min: int = PAGE_ENTRIES_MIN,
        pointers_in_root_max: int = POINTERS_IN_ROOT_MAX,
        deadline_s: float = 30.0,
    ) -> None:
        self._store = store
        self._topic_id = topic_id
        self._partition = partition
        self._rng = rng
        self._deadline_s = deadline_s
        self._root: RootStore[Manifest] = RootStore(
            store,
            manifest_key(topic_id, partition),
            MANIFEST_FORMAT,
            rng,
            clock,
            deadline_s=deadline_s,
            validate=self._validate,
            on_newer=lambda root: self.on_newer(root.content),
        )
        self.on_newer: Callable[[Manifest], None] = lambda _: None
        """Called at once with each manifest that becomes the newest one read."""
        self.on_attempt: Callable[[Unanswered], None] = lambda _: None
        """Called with `unanswered` at once when an attempt is made, before it is sent."""
        self._unanswered = NOTHING
        self._reader = PageReader(
            store, topic_id, partition, PageCache() if page_cache is None else page_cache, workers
        )
        # A claim cannot fold, because pages carry the epoch that it is about to set. Other commits therefore leave some
        # room for a claim.
        self._content_bytes_max = root_bytes_max - ENVELOPE_BYTES_MAX - min(CLAIM_BYTES, root_bytes_max // 8)
        self._page_entries_min = page_entries_min
        self._pointers_in_root_max = pointers_in_root_max
        self._epoch: int | None = None
        self._unnamed: list[str] = []
        self._commits = asyncio.Lock()

    # ── reading the root ─────────────────────────────────────────────────────────────────────────────────────────
    @property
    def root(self) -> Root[Manifest] | None:
        """The newest root read; None before the first load."""
        return self._root.known

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest read; None before the first load."""
        known = self._root.known
        return None if known is None else known.content

    @property
    def claimed_epoch(self) -> int | None:
        """The epoch for which this process claimed the partition; None before `claim`."""
        return self._epoch

    @property
    def settled(self) -> bool:
        """See `RootStore.settled`."""
        return self._root.settled

    @property
    def unanswered(self) -> Unanswered:
        """Changes to objects by attempts of this process that may be stored without being in `manifest`."""
        return self._unanswered if self._root.pending else NOTHING

    async def load(self) -> Manifest | None:
        """Read the root now; None if the partition has none. Raises the errors of `RootStore.load`."""
        root = await self._root.load()
        return None if root is None else root.content

    async def reload_if_changed(self) -> bool:
        """Read the root if it changed. Returns whether it changed."""
        return await self._root.load_if_changed() is not None

    def _validate(self, root: Root[Manifest]) -> None:
        check_manifest_root(self._root.key, root, self._topic_id, self._partition)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def create(self, epoch: int, topic: str, configs: dict[str, str], reserved_end: int) -> Manifest:
        """Create the root of a new partition, with its first reservation. A repetition changes nothing.

        This does not set `claimed_epoch`. An existing root of this or a lower epoch gets the epoch, topic and configs,
        and a higher reservation. Raises Fenced if the root has a higher epoch, even if that was claimed just after this
        commit, because the reservation then belongs to another leader."""
        initial = new_manifest(self._topic_id, self._partition, epoch, topic, configs)
        found = await self.load()
        if found is not None and found.leader_epoch == epoch and found.reserved_end_offset >= reserved_end:
            return found
        root = await self._root.commit(
            lambda m: m.claim(epoch, topic, configs).reserve(reserved_end), epoch=epoch, claim=True, initial=initial
        )
        if root.epoch > epoch:
            raise self._overtaken(epoch, root.epoch)
        return root.content

    async def claim(self, epoch: int, topic: str, configs: dict[str, str], also: Edit | None = None) -> Manifest:
        """The first commit of an epoch. After it only this process may commit (C1). `also`: an edit in the same write.

        A log that lost its tail must use only the remote end and the reserved end of this result. Raises Fenced for a
        higher epoch, RootMissing if the partition has no root, and the errors of `RootStore.commit`.
        """
        async with self._commits:

            def edit(manifest: Manifest) -> Manifest:
                claimed = manifest.claim(epoch, topic, configs)
                return claimed if also is None else also(claimed)

            root = await self._commit(edit, epoch, claim=True)
            reach("claim.committed")
            if root.epoch > epoch:
                raise self._overtaken(epoch, root.epoch)
            self._epoch = epoch
            return root.content

    def _overtaken(self, epoch: int, by: int) -> Fenced:
        return Fenced(f"{self._root.key}: epoch {by} was claimed right after epoch {epoch}; stop")

    async def commit(self, edit: Edit, may_send: MaySend | None = None) -> Manifest:
        """Make `edit` (pure, idempotent) durable. Returns the newest known manifest with this edit. `may_send`: see
        `RootStore.commit`.

        If the manifest's epoch is above `claimed_epoch`, the commit succeeded but another broker claimed after it; the
        caller has to stop. Raises the edit's errors on the newest manifest, and the errors of `RootStore.commit`."""
        epoch = self._claimed()
        async with self._commits:
            return (await self._commit(edit, epoch, may_send=may_send)).content

    async def replace(
        self,
        old: Sequence[RemoteSegment],
        new: Sequence[RemoteSegment],
        now_ms: int,
        may_send: MaySend | None = None,
        also: Edit | None = None,
    ) -> Manifest:
        """Replace the consecutive live segments `old` of one page or of the tail by `new`. Their pages are rewritten.
        The edit `also` is in the same write. Raises the errors of `commit`, and EditRefused if `old` are not live or
        are in two pages."""
        epoch = self._claimed()
        async with self._commits:
            for attempt in range(_REPLACE_TRIES):
                before = self.manifest
                if before is None:
                    raise InvalidRequest(f"{self._root.key} is not loaded")
                move, dropped, written = await self._moved_page(before, old, new, epoch)

                def edit(manifest: Manifest, move: PageMove | None = move) -> Manifest:
                    edited = replace_segments(manifest, old, new, move, now_ms)
                    return edited if also is None else also(edited)

                try:
                    root = await self._commit(edit, epoch, may_send=may_send)
                except EditRefused:
                    if self._root.settled:
                        for key in written:
                            self._drop(key)
                    if attempt + 1 == _REPLACE_TRIES or self.manifest == before:
                        raise
                    continue  # the tail moved into a page meanwhile
                for key in dropped:
                    self._drop(key)
                return root.content
        raise AssertionError("the last attempt returns or raises")

    async def _moved_page(
        self, manifest: Manifest, old: Sequence[RemoteSegment], new: Sequence[RemoteSegment], epoch: int
    ) -> tuple[PageMove | None, list[str], list[str]]:
        """Rewrite the page of `old`. Returns the move, the keys of lower pages that are not named any more, and the
        written keys. Returns (None, [], []) if `old` is in the tail.
        """
        tail = manifest.tail
        if tail and old[0].base_offset >= tail[0].base_offset:
            return None, [], []
        top = _first_ending_above(manifest.pages, old[0].base_offset)
        leaf, upper = top, None
        if top is not None and top.level:
            upper = await self._reader.pointers(top)
            leaf = _first_ending_above(upper.pointers, old[0].base_offset)
        if top is None or leaf is None:
            raise EditRefused(f"{self._root.key}: no page holds offset {old[0].base_offset}")
        page = await self._reader.segments(leaf)
        table = await self._reader.blocking(table_with, page, old, new)
        if table is None:
            raise EditRefused(f"{self._root.key}: page {leaf.uuid} does not hold the entries that are to be replaced")
        place = (self._topic_id, self._partition)
        after = await self._put_page(lambda: table, 0, epoch)
        written = [str(after.key(*place))]
        reach("cold.page_written")
        if upper is None:
            return PageMove(top, after), [], written
        pointers = [after if pointer.uuid == leaf.uuid else pointer for pointer in upper.pointers]
        above = await self._put_page(lambda: pointer_table(pointers), 1, epoch)
        return PageMove(top, above), [str(leaf.key(*place))], [*written, str(above.key(*place))]

    async def may_delete(self, key: SegmentKey) -> bool:
        """Whether an unnamed object of this process under `key` can never become part of the log.

        False while an attempt that names it may still arrive, and until the grace is over if a commit named it and
        compaction replaced it. This reads the root, and a page if needed."""
        async with self._commits:
            manifest = await self.load()
            if manifest is None or not self._root.settled or manifest.was_replaced(key.uuid):
                return False
            found = await self.find(key.base_offset)
            return found is None or found.uuid != key.uuid

    def take_unnamed(self) -> list[str]:
        """Keys of pages and snapshots that this process's commits stopped naming since the last call.

        The caller deletes them after the grace for readers of older roots. gc deletes those that are not remembered."""
        taken, self._unnamed = self._unnamed, []
        return taken

    def _claimed(self) -> int:
        if self._epoch is None:
            raise InvalidRequest(f"{self._root.key} was not claimed by this process; claim it before committing")
        return self._epoch

    async def _commit(
        self, edit: Edit, epoch: int, *, claim: bool = False, may_send: MaySend | None = None
    ) -> Root[Manifest]:
        def fitting(manifest: Manifest) -> Manifest:
            edited = edit(manifest)
            if not claim and self._root.content_size(edited) > self._content_bytes_max:
                raise RootTooLarge(f"{self._root.key}: the manifest outgrew its root")
            self._unanswered = self.unanswered.with_attempt(manifest, edited)
            self.on_attempt(self._unanswered)
            return edited

        if not self._root.settled:
            await self._read_once()
        for _ in range(_FOLD_TRIES):
            before = self.manifest
            try:
                root = await self._root.commit(fitting, epoch=epoch, claim=claim, may_send=may_send)
            except RootTooLarge:
                if claim or not await self._fold(epoch):
                    raise
            else:
                await self._note_unnamed(before, root.content)
                return root
        raise RootTooLarge(f"{self._root.key}: folding entries into pages did not make room")

    async def _read_once(self) -> None:
        """Read the root once, because the outcome of the last commit is unknown: the store did not answer before the
        commit's deadline. The caller repeats commits with pauses. Until a read succeeds each of them costs one request,
        not the ten of a commit's own retries. Raises the errors of `load`, and StoreUnavailable without an answer."""
        async with answered_within(self._deadline_s, f"GET {self._root.key}"):
            await self._root.load()

    async def _note_unnamed(self, before: Manifest | None, after: Manifest) -> None:
        if before is None:
            return
        place = (self._topic_id, self._partition)
        kept = {pointer.uuid for pointer in after.pages}
        for pointer in before.pages:
            if pointer.uuid in kept or (not pointer.level and await self._is_below(pointer, after)):
                continue
            self._drop(str(pointer.key(*place)))
            if pointer.level and (pointer.end_offset <= after.deletion_cursor or not after.live.segments):
                await self._drop_leaves(pointer)
        old = before.snapshot
        if old is not None and (after.snapshot is None or after.snapshot.uuid != old.uuid):
            self._drop(str(old.key(*place)))

    async def _is_below(self, leaf: PagePointer, after: Manifest) -> bool:
        """Whether a level-1 page of `after` names `leaf`. True also if that page cannot be read now."""
        for upper in after.pages:
            if upper.level and upper.first_offset <= leaf.first_offset < upper.end_offset:
                try:
                    page = await self._reader.pointers(upper)
                except (StoreError, ObjectMissing, Corrupt):
                    return True
                return any(pointer.uuid == leaf.uuid for pointer in page.pointers)
        return False

    async def _drop_leaves(self, pointer: PagePointer) -> None:
        """Drop all pages below a level-1 page that expired or was withdrawn."""
        try:
            page = await self._reader.pointers(pointer)
        except (StoreError, ObjectMissing, Corrupt):
            return  # gc finds these pages by a listing
        for leaf in page.pointers:
            self._drop(str(leaf.key(self._topic_id, self._partition)))

    def _drop(self, key: str) -> None:
        if len(self._unnamed) < UNNAMED_MAX:
            self._unnamed.append(key)

    # ── folding ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def _fold(self, epoch: int) -> bool:
        """Move the tail into a page. If the root has many pointers, move them into a page of level 1. Returns whether
        anything moved."""
        manifest = self.manifest
        if manifest is None or not manifest.tail:
            return False
        await self._fold_tail(manifest, epoch)
        manifest = self.manifest
        assert manifest is not None
        if sum(1 for pointer in manifest.pages if not pointer.level) > self._pointers_in_root_max:
            await self._fold_pages(manifest, epoch)
        return True

    async def _fold_tail(self, manifest: Manifest, epoch: int) -> None:
        last = manifest.pages[-1] if manifest.pages else None
        if last is not None and (last.level or last.entries >= self._page_entries_min):
            last = None
        before = None if last is None else await self._reader.segments(last)
        pointer = await self._put_page(lambda: segment_table(manifest.tail, before), 0, epoch)
        folded = [segment.uuid for segment in manifest.tail]
        replaced = None if last is None else last.uuid
        await self._name_page(manifest, pointer, lambda m: m.fold_tail(pointer, folded, replaced), epoch)

    async def _fold_pages(self, manifest: Manifest, epoch: int) -> None:
        upper = [pointer for pointer in manifest.pages if pointer.level]
        leaves = [pointer for pointer in manifest.pages if not pointer.level]
        moved = leaves[:-1]  # the last page may still be rewritten
        last = upper[-1] if upper and upper[-1].entries < self._page_entries_min else None
        before = None if last is None else await self._reader.pointers(last)
        pointer = await self._put_page(lambda: pointer_table(moved, before), 1, epoch)
        folded = [page.uuid for page in moved]
        replaced = None if last is None else last.uuid
        await self._name_page(manifest, pointer, lambda m: m.fold_pages(pointer, folded, replaced), epoch)

    async def _put_page(self, table: Callable[[], object], level: int, epoch: int) -> PagePointer:
        uuid = self._rng.uuid()

        def build() -> tuple[PagePointer, bytes, Page]:
            pointer, data = encode_page(table(), level, uuid, epoch)
            return pointer, data, decode_page(data, pointer)  # a page that cannot be read back is not named

        pointer, data, page = await self._reader.blocking(build)
        if len(data) > PAGE_BYTES_MAX:
            raise RootTooLarge(
                f"{self._root.key}: a page of {len(data)} bytes, but at most {PAGE_BYTES_MAX} are allowed"
            )
        upload = Upload(len(data), pointer.crc32c, lambda: iter((data,)))
        key = str(pointer.key(self._topic_id, self._partition))
        try:
            await self._store.put_segment(key, upload)
        except StoreError:
            self._drop(key)  # the object may exist; no root will name it
            raise
        reach("copy.page_written")
        self._reader.remember(pointer, page)
        return pointer

    async def _name_page(self, before: Manifest, pointer: PagePointer, edit: Edit, epoch: int) -> None:
        key = str(pointer.key(self._topic_id, self._partition))
        try:
            root = await self._root.commit(edit, epoch=epoch)
        except EditRefused:
            # The entries were moved meanwhile. If settled, no attempt that names the page can still arrive.
            if self._root.settled:
                self._drop(key)
            return
        await self._note_unnamed(before, root.content)

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────
    async def find(self, offset: int) -> RemoteSegment | None:
        """The segment that holds `offset`, by the newest manifest read; None if the cold tier does not hold it.

        If a page was deleted after its grace, the root is read again. Raises Corrupt, ObjectMissing, StoreError.
        """
        manifest = self.manifest
        if manifest is None:
            return None
        try:
            return await self._find(manifest, offset)
        except ObjectMissing:
            if not await self.reload_if_changed() or self.manifest is None:
                raise
            return await self._find(self.manifest, offset)

    async def _find(self, manifest: Manifest, offset: int) -> RemoteSegment | None:
        if not manifest.coverage_start <= offset < manifest.remote_end_offset:
            return None
        if manifest.tail and offset >= manifest.tail[0].base_offset:
            found = manifest.tail[manifest.tail_index(offset)]
            return found if found.base_offset <= offset else None
        pointer = _first_ending_above(manifest.pages, offset)
        if pointer is not None and pointer.level:
            pointer = _first_ending_above((await self._reader.pointers(pointer)).pointers, offset)
        if pointer is None or offset < pointer.first_offset:
            return None
        return (await self._reader.segments(pointer)).find(offset)

    async def find_by_timestamp(self, timestamp_ms: int, from_offset: int) -> RemoteSegment | None:
        """The first live segment that ends above `from_offset` and has a batch with a timestamp ≥ `timestamp_ms`."""
        manifest = self.manifest
        if manifest is None:
            return None
        start = max(from_offset, manifest.deletion_cursor)
        async for pointer in self._reader.leaves(manifest.pages, start):
            if pointer.max_timestamp_ms >= timestamp_ms:
                found = (await self._reader.segments(pointer)).find_by_timestamp(timestamp_ms, start)
                if found is not None:
                    return found
        for segment in manifest.tail[manifest.tail_index(start) :]:
            if segment.max_timestamp_ms >= timestamp_ms:
                return segment
        return None

    async def leaves(self) -> AsyncIterator[PagePointer]:
        """The level-0 pages of the manifest that is known when this begins. Raises the errors of `find`."""
        if (manifest := self.manifest) is not None:
            async for pointer in self._reader.leaves(manifest.pages, manifest.deletion_cursor):
                yield pointer

    async def segments(self, from_offset: int = 0) -> AsyncIterator[RemoteSegment]:
        """Live segments that end above `from_offset`, in order, of the manifest that is known when this begins."""
        manifest = self.manifest
        if manifest is None:
            return
        start = max(from_offset, manifest.deletion_cursor)
        async for pointer in self._reader.leaves(manifest.pages, start):
            page = await self._reader.segments(pointer)
            for segment in page.rows(page.index(start)):
                yield segment
        for segment in manifest.tail[manifest.tail_index(start) :]:
            yield segment


def _first_ending_above(pointers: Sequence[PagePointer], offset: int) -> PagePointer | None:
    return next((pointer for pointer in pointers if pointer.end_offset > offset), None)
