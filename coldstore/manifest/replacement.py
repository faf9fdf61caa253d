"""The manifest's edits of compaction: consecutive segments are replaced by others of the same offset range. Pure.

After `replace_segments` the sums and the live hash are right, and every offset is in exactly one segment. Each replaced
object is in `replaced` until `forget_replaced`, so gc keeps it for the grace. If a page lists a replaced segment, the
caller has already written the new page. If the edit is refused, new objects stay unnamed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from coldstore.manifest.manifest import EditRefused, Manifest, PagePointer, RemoteSegment, Totals
from coldstore.manifest.manifest_entries import (
    HASH_MODULUS,
    REPLACED_MAX,
    ReplacedObject,
    check_segment,
    hash_of,
    totals_of,
    totals_of_pages,
)


class PageMove(NamedTuple):
    """The change of a page. `before`: the root's pointer to the page that lists the replaced segments, directly or
    through a lower page. `after`: the pointer that replaces it."""

    before: PagePointer
    after: PagePointer


def replace_segments(
    manifest: Manifest, old: Sequence[RemoteSegment], new: Sequence[RemoteSegment], move: PageMove | None, now_ms: int
) -> Manifest:
    """Replace `old`, which are live and consecutive, by `new`. A repetition changes nothing. `move` is None if `old`
    are in the tail. If this raises EditRefused, the manifest is unchanged."""
    known = {each.uuid for each in manifest.replaced}
    if old and all(segment.uuid in known for segment in old):
        return manifest
    _check(manifest, old, new, known)
    totals = totals_of(new) - totals_of(old)
    if move is None:
        tail, pages = _tail_with(manifest, old, new), manifest.pages
    else:
        tail, pages = manifest.tail, _pages_with(manifest, move, totals, len(new) - len(old))
    live_hash = int(manifest.live_hash, 16) - int(hash_of(old), 16) + int(hash_of(new), 16)
    live = manifest.live + totals
    if live.any_negative:
        raise EditRefused(
            f"{_name(manifest)}: after replacing at {old[0].base_offset} the totals would not balance: {live}"
        )
    kept = tuple(ReplacedObject(s.uuid, s.base_offset, s.leader_epoch, s.object_bytes, max(now_ms, 0)) for s in old)
    return replace(
        manifest,
        added=manifest.added + totals_of(new),
        removed=manifest.removed + totals_of(old),
        live=live,
        live_hash=f"{live_hash % HASH_MODULUS:032x}",
        pages=pages,
        tail=tail,
        replaced=(*manifest.replaced, *kept),
    )


def set_clean_end(manifest: Manifest, offset: int) -> Manifest:
    """Record the offset below which compaction is complete. A lower offset changes nothing. Raises EditRefused beyond
    the remote end."""
    if offset > manifest.remote_end_offset:
        raise EditRefused(
            f"{_name(manifest)}: the clean end {offset} is beyond the remote end {manifest.remote_end_offset}"
        )
    return manifest if offset <= manifest.clean_end_offset else replace(manifest, clean_end_offset=offset)


def forget_replaced(manifest: Manifest, uuids: Collection[UUID]) -> Manifest:
    """Remove replaced objects that were deleted after the grace. A repetition changes nothing."""
    kept = tuple(each for each in manifest.replaced if each.uuid not in uuids)
    return manifest if len(kept) == len(manifest.replaced) else replace(manifest, replaced=kept)


def restart_graces(manifest: Manifest, now_ms: int) -> Manifest:
    """Restart the grace of objects whose replacement time is in the future. This happens after a clock was set back."""
    at = tuple(each if each.since_ms <= now_ms else replace(each, since_ms=now_ms) for each in manifest.replaced)
    return manifest if at == manifest.replaced else replace(manifest, replaced=at)


def room_for_replaced(manifest: Manifest) -> int:
    """Number of objects that may be replaced before older ones have to be deleted."""
    return REPLACED_MAX - len(manifest.replaced)


def _check(
    manifest: Manifest, old: Sequence[RemoteSegment], new: Sequence[RemoteSegment], known: Collection[UUID]
) -> None:
    name = _name(manifest)
    if not old or not new or not _is_chain(old) or not _is_chain(new):
        raise EditRefused(f"{name}: the entries to be replaced, or their replacements, are not consecutive")
    if (old[0].base_offset, old[-1].end_offset) != (new[0].base_offset, new[-1].end_offset):
        raise EditRefused(f"{name}: {new[0].base_offset}…{new[-1].end_offset} is not the range of the old entries")
    if any(segment.uuid in known for segment in (*old, *new)) or {s.uuid for s in old} & {s.uuid for s in new}:
        raise EditRefused(f"{name}: an object would be replaced twice, or a replaced object would be named again")
    if old[0].end_offset <= manifest.log_start_offset or old[0].base_offset < manifest.deletion_cursor:
        raise EditRefused(f"{name}: the log starts at {manifest.log_start_offset} now, above {old[0].base_offset}")
    if old[-1].end_offset > manifest.remote_end_offset:
        raise EditRefused(f"{name}: the bucket ends at {manifest.remote_end_offset}, below {old[-1].end_offset}")
    for segment in new:
        check_segment(segment)
        if segment.leader_epoch != manifest.leader_epoch:
            raise EditRefused(
                f"{name}: object {segment.uuid} has epoch {segment.leader_epoch}, but the manifest has epoch "
                f"{manifest.leader_epoch}"
            )
    if len(old) > room_for_replaced(manifest):
        raise EditRefused(f"{name}: {len(manifest.replaced)} replaced objects wait for the end of their grace")


def _is_chain(segments: Sequence[RemoteSegment]) -> bool:
    return all(a.end_offset == b.base_offset for a, b in pairwise(segments))


def _tail_with(
    manifest: Manifest, old: Sequence[RemoteSegment], new: Sequence[RemoteSegment]
) -> tuple[RemoteSegment, ...]:
    at = manifest.tail_index(old[0].base_offset)
    if manifest.tail[at : at + len(old)] != tuple(old):
        raise EditRefused(
            f"{_name(manifest)}: the tail does not hold the entries to be replaced at {old[0].base_offset}"
        )
    return (*manifest.tail[:at], *new, *manifest.tail[at + len(old) :])


def _pages_with(manifest: Manifest, move: PageMove, totals: Totals, entries: int) -> tuple[PagePointer, ...]:
    before, after = move
    if before not in manifest.pages:
        raise EditRefused(f"{_name(manifest)}: page {before.uuid} is no longer named")
    wanted = totals_of_pages([before]) + totals
    fits = (
        (after.level, after.first_offset, after.end_offset) == (before.level, before.first_offset, before.end_offset)
        and totals_of_pages([after]) == wanted
        and after.entries == before.entries + (0 if before.level else entries)
        and after.epoch == manifest.leader_epoch
        and after.uuid != before.uuid
    )
    if not fits:
        raise EditRefused(f"{_name(manifest)}: page {after.uuid} is not page {before.uuid} with the entries replaced")
    return tuple(after if pointer == before else pointer for pointer in manifest.pages)


def _name(manifest: Manifest) -> str:
    return f"{manifest.topic}-{manifest.partition} ({manifest.topic_id})"
