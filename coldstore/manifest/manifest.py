"""Manifest: the list of one partition's objects in the cold tier, and its edits. Pure (docs/formats/manifest.md).

Every manifest that `check` passes, and the result of every edit, has these properties:
- Segments cover `[first live base, remote_end_offset)` without overlap, and without a hole at or above the log start.
- `added − removed = live` for bytes, records and segments; `live_hash` is the sum of the live entries' hashes (C13).
- Log start and deletion cursor never fall. The remote end falls only by `withdraw`. Edits are idempotent by ids and
  offsets, because a commit of unknown outcome is repeated (C29).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from coldstore.manifest.manifest_entries import (
    GAPS_IN_ROOT_MAX,
    HASH_MODULUS,
    ZERO_HASH,
    PagePointer,
    RemoteSegment,
    ReplacedObject,
    SnapshotPointer,
    Totals,
    check_page,
    check_ranges,
    check_replaced,
    check_segment,
    hash_of,
    join_gaps,
    totals_of,
    totals_of_pages,
)
from logformat.errors import Corrupt, Fenced, InvalidRequest
from logformat.record_batch import INT32_MAX, INT64_MAX

__all__ = [
    "EditRefused",
    "Manifest",
    "PagePointer",
    "RemoteSegment",
    "SnapshotPointer",
    "Totals",
    "new_manifest",
]

_TIERED: Final = "remote.storage.enable"


class EditRefused(InvalidRequest):
    """The manifest does not have the state that the edit needs. The caller reads it again and decides again."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a partition's root.

    `log_start_offset`: first readable offset in any tier. `deletion_cursor`: end of the last segment whose object was
    deleted. Entries that end at or below it are dead, even if an immutable page lists them. `remote_end_offset`:
    exclusive end of the offsets in the cold tier. `reserved_end_offset`: offsets below it may have been assigned.
    `pages`: level 1 first, then level 0, by offset. `tail`: the newest segments, by offset. `clean_end_offset`: end of
    the compacted offsets; of several records of a key in them, only the last is left. `replaced`: objects that
    compaction replaced and that are not deleted yet. The module `replacement` edits `clean_end_offset` and `replaced`.
    """

    topic_id: UUID
    topic: str
    partition: int
    leader_epoch: int
    configs: dict[str, str] = {}
    log_start_offset: int = 0
    deletion_cursor: int = 0
    remote_end_offset: int = 0
    reserved_end_offset: int = 0
    added: Totals = Totals()
    removed: Totals = Totals()
    live: Totals = Totals()
    live_hash: str = ZERO_HASH
    gaps: tuple[tuple[int, int], ...] = ()
    pages: tuple[PagePointer, ...] = ()
    tail: tuple[RemoteSegment, ...] = ()
    snapshot: SnapshotPointer | None = None
    clean_end_offset: int = 0
    replaced: tuple[ReplacedObject, ...] = ()

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def coverage_start(self) -> int:
        """First offset that the cold tier holds; `remote_end_offset` if it holds none."""
        if self.pages:
            return max(self.deletion_cursor, self.pages[0].first_offset)
        return self.tail[0].base_offset if self.tail else self.remote_end_offset

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp in the cold tier; −1 if it is empty. Expired segments of a live page count too."""
        newest = [page.max_timestamp_ms for page in self.pages] + [segment.max_timestamp_ms for segment in self.tail]
        return max(newest, default=-1)

    @property
    def bucket_end_offset(self) -> int:
        """End offset of a log that is restored from the bucket alone. The reserved end may be higher."""
        return max(self.remote_end_offset, self.log_start_offset, self.snapshot.end_offset if self.snapshot else 0)

    def was_replaced(self, uuid: UUID) -> bool:
        """Whether compaction replaced the object, and its grace is not over."""
        return any(each.uuid == uuid for each in self.replaced)

    def bytes_between(self, start: int, end: int) -> int:
        """Log bytes in [start, end). An object or page that is partly outside counts by its share of offsets."""
        held = [(segment.base_offset, segment.end_offset, segment.log_bytes) for segment in self.tail]
        held += [(page.first_offset, page.end_offset, page.log_bytes) for page in self.pages]
        common = ((min(last, end) - max(first, start), last - first, size) for first, last, size in held)
        return sum(size * offsets // span for offsets, span, size in common if offsets > 0)

    def tail_index(self, offset: int) -> int:
        """Index in `tail` of the first segment that ends above `offset`; the length of `tail` if there is none."""
        return bisect_right(self.tail, offset, key=lambda segment: segment.end_offset)

    # ── edits ────────────────────────────────────────────────────────────────────────────────────────────────────
    def claim(self, epoch: int, topic: str, configs: dict[str, str]) -> Manifest:
        """The first edit of an epoch. If `configs` switch tiering off, only `switch_off` records that. Raises Fenced if
        the manifest has a higher epoch."""
        if epoch < self.leader_epoch:
            raise Fenced(
                f"{self._name}: the manifest has epoch {self.leader_epoch}, but this leader has {epoch}; stop tiering "
                "the partition"
            )
        said = self.configs if self.is_switched_off_by(configs) else configs
        return replace(self, leader_epoch=epoch, topic=topic, configs=said)

    def set_topic(self, topic: str, configs: dict[str, str]) -> Manifest:
        return replace(self, topic=topic, configs=configs)

    def is_switched_off_by(self, configs: Mapping[str, str]) -> bool:
        """Whether these configs switch tiering off and this root does not record that yet."""
        return _is_off(configs) and not _is_off(self.configs)

    def switch_off(self, topic: str, configs: dict[str, str], local_start: int) -> Manifest:
        """Tiering was switched off: the log start moves to the leader's local start (KIP-950). The root records the
        switch, so the log start moves only once. A later leader may have less on its disk (ADR 26)."""
        if not self.is_switched_off_by(configs):
            return self
        return self.set_topic(topic, configs).set_log_start(local_start)

    def add(self, segment: RemoteSegment) -> Manifest:
        """Add a segment at the remote end. A repetition changes nothing. The segment may begin above the remote end
        only if all skipped offsets are below the log start."""
        if any(known.uuid == segment.uuid for known in self.tail):
            return self
        check_segment(segment)
        if segment.leader_epoch != self.leader_epoch:
            raise EditRefused(
                f"{self._name}: object {segment.uuid} has epoch {segment.leader_epoch}, but the manifest has epoch "
                f"{self.leader_epoch}; copy it again under a new name"
            )
        self._check_start(segment)
        totals = totals_of([segment])
        return replace(
            self,
            tail=(*self.tail, segment),
            remote_end_offset=segment.end_offset,
            added=self.added + totals,
            live=self.live + totals,
            live_hash=f"{(int(self.live_hash, 16) + segment.identity_hash()) % HASH_MODULUS:032x}",
            gaps=join_gaps(self.gaps, segment.gaps)[-GAPS_IN_ROOT_MAX:],
        )

    def _check_start(self, segment: RemoteSegment) -> None:
        base, end = segment.base_offset, self.remote_end_offset
        if base != end and not end < base <= self.log_start_offset:
            raise EditRefused(
                f"{self._name}: segment [{base}, {segment.end_offset}) does not begin at the remote end {end}"
            )

    def set_log_start(self, offset: int) -> Manifest:
        """Hide offsets below `offset` from readers. A lower offset changes nothing."""
        _check_offset(offset)
        return self if offset <= self.log_start_offset else replace(self, log_start_offset=offset)

    def set_rewritten_start(self, offset: int) -> Manifest:
        """Set the log start of an internal topic that is rewritten from `offset` on. A snapshot must cover all records
        below `offset`, because after the loss of all disks the log begins with the snapshot.
        """
        if offset > self.log_start_offset and (self.snapshot is None or offset > self.snapshot.end_offset):
            raise EditRefused(f"{self._name}: no snapshot reaches offset {offset}, where the log is to start")
        return self.set_log_start(offset)

    def expire(self, removed: Sequence[RemoteSegment]) -> Manifest:
        """Advance the deletion cursor past `removed`, the oldest live segments, whose objects were deleted.

        All end at or below the log start. Segments below the cursor are skipped, so a repetition changes nothing.
        Entries of the tail are compared one by one. The caller has checked the entries of pages."""
        fresh = [segment for segment in removed if segment.end_offset > self.deletion_cursor]
        if not fresh:
            return self
        cursor = fresh[-1].end_offset
        if cursor > self.log_start_offset or cursor > self.remote_end_offset:
            raise EditRefused(
                f"{self._name}: cannot expire up to {cursor}, because the log starts at {self.log_start_offset}"
            )
        at = self.tail_index(cursor)
        dead = self.tail[:at]
        is_replaced = at < len(self.tail) and self.tail[at].base_offset < cursor  # by a larger object
        if is_replaced or tuple(fresh[len(fresh) - len(dead) :]) != dead or (dead and len(fresh) < len(dead)):
            raise EditRefused(f"{self._name}: expired segments up to {cursor} differ from the manifest's tail")
        self._check_oldest(fresh)
        self._check_whole_pages(fresh, cursor)
        totals = totals_of(fresh)
        live = self.live - totals
        live_hash = f"{(int(self.live_hash, 16) - int(hash_of(fresh), 16)) % HASH_MODULUS:032x}"
        if live.any_negative or (live.segments == 0) != (live == Totals() and live_hash == ZERO_HASH):
            raise EditRefused(f"{self._name}: after expiring up to {cursor} the totals would not balance: {live}")
        return replace(
            self,
            deletion_cursor=cursor,
            removed=self.removed + totals,
            live=live,
            live_hash=live_hash,
            gaps=tuple(gap for gap in self.gaps if gap[1] > cursor),
            pages=tuple(page for page in self.pages if page.end_offset > cursor),
            tail=self.tail[at:],
        )

    def withdraw(self, live: Sequence[RemoteSegment]) -> Manifest:
        """Remove all segments: tiering was switched off, and the local log holds all records from the log start on.

        `live` has all live segments, as the caller read them. Their objects may be deleted after the grace for readers
        of older roots. The remote end falls to the base of the segment that holds the log start. A copy can begin there
        if tiering is switched on again. It may not be able to begin at the log start, which may be inside a batch. A
        repetition changes nothing. Raises EditRefused if `live` does not match the totals, e.g. after a copy."""
        if self.live.segments == 0:
            return self
        if totals_of(live) != self.live or hash_of(live) != self.live_hash:
            raise EditRefused(f"{self._name}: the live segments changed while they were withdrawn")
        start = self.log_start_offset
        holder = next((segment for segment in live if segment.end_offset > start), None)
        remote_end = self.remote_end_offset if holder is None else min(holder.base_offset, start)
        return replace(
            self,
            removed=self.removed + self.live,
            live=Totals(),
            live_hash=ZERO_HASH,
            remote_end_offset=remote_end,
            clean_end_offset=min(self.clean_end_offset, remote_end),
            gaps=(),
            pages=(),
            tail=(),
        )

    def _check_oldest(self, fresh: Sequence[RemoteSegment]) -> None:
        """Check that the segments in `fresh` are above the cursor and do not overlap. Equal sums then prove that no
        segment is missing."""
        end = self.deletion_cursor
        for segment in fresh:
            if segment.base_offset < end:
                raise EditRefused(f"{self._name}: expired segment at offset {segment.base_offset} begins below {end}")
            end = segment.end_offset

    def _check_whole_pages(self, fresh: Sequence[RemoteSegment], cursor: int) -> None:
        """Check each page that expires completely: its sums must match those of its segments."""
        for page in self.pages:
            if self.deletion_cursor <= page.first_offset and page.end_offset <= cursor:
                inside = [s for s in fresh if page.first_offset <= s.base_offset < page.end_offset]
                if totals_of(inside) != totals_of_pages([page]):
                    raise EditRefused(f"{self._name}: the expired entries are not those of page {page.uuid}")

    def reserve(self, end: int) -> Manifest:
        """Reserve the offsets below `end`, so that they may be assigned. A lower end changes nothing."""
        _check_offset(end)
        return self if end <= self.reserved_end_offset else replace(self, reserved_end_offset=end)

    def release_reservation(self, end: int) -> Manifest:
        """Lower the reservation to `end`, the log's end.

        Raises EditRefused if `end` is not the end in the bucket (`bucket_end_offset`), because otherwise offsets could
        be assigned twice."""
        if end != self.bucket_end_offset:
            raise EditRefused(
                f"{self._name}: the log ends at {end}, but the bucket ends at {self.bucket_end_offset}; the "
                "reservation stays"
            )
        return self if end >= self.reserved_end_offset else replace(self, reserved_end_offset=end)

    def set_snapshot(self, pointer: SnapshotPointer) -> Manifest:
        """Name a newer snapshot of an internal topic. A repetition changes nothing."""
        if self.snapshot == pointer:
            return self
        if pointer.epoch != self.leader_epoch:
            raise EditRefused(
                f"{self._name}: the snapshot has epoch {pointer.epoch}, but the manifest has epoch {self.leader_epoch}"
            )
        if self.snapshot is not None and pointer.end_offset < self.snapshot.end_offset:
            raise EditRefused(f"{self._name}: snapshot at {pointer.end_offset} is older than the manifest's snapshot")
        return replace(self, snapshot=pointer)

    def fold_tail(self, page: PagePointer, folded: Sequence[UUID], replaced: UUID | None) -> Manifest:
        """Move the first segments of the tail (`folded`, in order) into `page`. It also has all entries of the page
        `replaced`."""
        moved = self.tail[: len(folded)]
        if [segment.uuid for segment in moved] != list(folded) or not moved:
            raise EditRefused(f"{self._name}: the tail changed while page {page.uuid} was written")
        ranges = (moved[0].base_offset, moved[-1].end_offset)
        pages = self._with_page(page, 0, ranges, totals_of(moved), len(moved), replaced, len(self.pages))
        return replace(self, pages=pages, tail=self.tail[len(moved) :])

    def fold_pages(self, page: PagePointer, folded: Sequence[UUID], replaced: UUID | None) -> Manifest:
        """Move the first level-0 pointers (`folded`, in order) into `page` of level 1. It also has all entries of the
        page `replaced`."""
        first = sum(1 for pointer in self.pages if pointer.level)
        moved = self.pages[first : first + len(folded)]
        if [pointer.uuid for pointer in moved] != list(folded) or not moved:
            raise EditRefused(f"{self._name}: the pages changed while page {page.uuid} was written")
        ranges = (moved[0].first_offset, moved[-1].end_offset)
        pages = self._with_page(page, 1, ranges, totals_of_pages(moved), len(moved), replaced, first)
        return replace(self, pages=(*pages, *self.pages[first + len(moved) :]))

    def _with_page(
        self,
        page: PagePointer,
        level: int,
        ranges: tuple[int, int],
        totals: Totals,
        entries: int,
        replaced: UUID | None,
        end: int,
    ) -> tuple[PagePointer, ...]:
        """`pages[:end]` with `page` appended. If `replaced` is given, `page` takes its place. The sums must match."""
        before = self.pages[:end]
        first = ranges[0]
        if replaced is not None:
            if not before or before[-1].uuid != replaced or before[-1].level != level:
                raise EditRefused(f"{self._name}: page {replaced} is no longer the last one")
            first, entries = before[-1].first_offset, entries + before[-1].entries
            totals = totals + totals_of_pages(before[-1:])
            before = before[:-1]
        fits = (page.level, page.first_offset, page.end_offset, page.entries) == (level, first, ranges[1], entries)
        if not fits or totals_of_pages([page]) != totals or page.epoch != self.leader_epoch:
            raise EditRefused(f"{self._name}: page {page.uuid} does not match the entries that it should replace")
        return (*before, page)

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition} ({self.topic_id})"

    def check(self) -> None:
        """Raise Corrupt, with the broken rule, if edits cannot have made this manifest."""
        numbers = (self.log_start_offset, self.deletion_cursor, self.remote_end_offset, self.reserved_end_offset)
        if not all(0 <= n <= INT64_MAX for n in numbers) or not 0 <= self.partition <= INT32_MAX:
            raise Corrupt(f"manifest of {self._name}: offsets {numbers} or the partition are out of range")
        if not 0 <= self.leader_epoch <= INT32_MAX:
            raise Corrupt(f"manifest of {self._name}: epoch {self.leader_epoch} is out of range")
        if self.deletion_cursor > min(self.log_start_offset, self.remote_end_offset):
            raise Corrupt(f"manifest of {self._name}: objects at or above the log start are marked deleted")
        if not 0 <= self.clean_end_offset <= self.remote_end_offset:
            raise Corrupt(f"manifest of {self._name}: its clean end {self.clean_end_offset} is beyond its remote end")
        check_replaced(self.replaced, f"manifest of {self._name}")
        self._check_tiles()
        self._check_books()
        check_ranges(self.gaps, 0, self.remote_end_offset, f"gaps of {self._name}")

    def _check_tiles(self) -> None:
        end: int | None = None
        level = 1
        for page in self.pages:
            check_page(page)
            if page.level > level or (end is not None and not self._follows(page.first_offset, end)):
                raise Corrupt(f"manifest of {self._name}: page at {page.first_offset} is out of order")
            end, level = page.end_offset, page.level
        for segment in self.tail:
            check_segment(segment)
            if end is not None and not self._follows(segment.base_offset, end):
                raise Corrupt(f"manifest of {self._name}: segment at {segment.base_offset} does not follow {end}")
            end = segment.end_offset
        if end is not None and (end != self.remote_end_offset or end <= self.deletion_cursor):
            raise Corrupt(
                f"manifest of {self._name}: entries end at {end}, but the remote end is {self.remote_end_offset}"
            )

    def _follows(self, base: int, end: int) -> bool:
        return base == end or end < base <= self.log_start_offset

    def _check_books(self) -> None:
        sides = (self.added, self.removed, self.live)
        if any(side.any_negative for side in sides) or self.added - self.removed != self.live:
            raise Corrupt(f"manifest of {self._name}: added − removed ≠ live: {sides}")
        try:
            live_hash = int(self.live_hash, 16)
        except ValueError as broken:
            raise Corrupt(f"manifest of {self._name}: the live hash {self.live_hash[:40]!r} is not valid") from broken
        if not 0 <= live_hash < HASH_MODULUS or len(self.live_hash) != len(ZERO_HASH):
            raise Corrupt(f"manifest of {self._name}: the live hash {self.live_hash[:40]!r} is not valid")
        in_tail = totals_of(self.tail)
        in_pages = totals_of_pages(self.pages)
        if (self.live - in_tail).any_negative or (in_tail + in_pages - self.live).any_negative:
            raise Corrupt(
                f"manifest of {self._name}: live totals {self.live} do not fit {in_tail} in the tail and {in_pages} in "
                "pages"
            )
        if not self.pages and (self.live != in_tail or self.live_hash != hash_of(self.tail)):
            raise Corrupt(
                f"manifest of {self._name}: there are no pages, but the tail differs from the live totals or hash"
            )


def _is_off(configs: Mapping[str, str]) -> bool:
    return configs.get(_TIERED, "").lower() == "false"


def _check_offset(offset: int) -> None:
    if not 0 <= offset <= INT64_MAX:
        raise InvalidRequest(f"offset {offset} is out of range")


def new_manifest(topic_id: UUID, partition: int, epoch: int, topic: str, configs: dict[str, str]) -> Manifest:
    """The manifest of an empty partition."""
    return Manifest(topic_id=topic_id, topic=topic, partition=partition, leader_epoch=epoch, configs=configs)
