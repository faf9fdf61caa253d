"""The state a log begins with where the bucket has what lies below: its lineage of leader epochs and its producers.

Owns where that state is read: in the footer of the last object; two requests, a page of the manifest at most besides;
and the claim of a log that begins there.
Always true: it names nothing at or above that offset, also where the object reaches further; where the bucket holds
nothing it is empty. Must not know what begins there, or why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import ObjectStore, StoreUnavailable
from coldstore.segments.segment_reader import fetch_footer
from hotstore.recovery.log_creation import Begin
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from logformat.record_batch import INT64_MAX


class ColdStart(NamedTuple):
    """`held_bytes`: about how many bytes of log the bucket holds below the offset, from another one on."""

    epochs: LeaderEpochs
    producers: Iterable[ProducerEntry]
    held_bytes: int = 0


Known: TypeAlias = Mapping[tuple[str, int], ColdStart]
"""What an object says at an offset, by its key. Objects never change."""


async def state_at(
    store: ObjectStore,
    manifests: ManifestStore,
    of: tuple[UUID, int],
    offset: int,
    deadline_s: float,
    since: int = 0,
    known: Known | None = None,
) -> ColdStart:
    """At `offset`, by what the loaded manifest names below it. Of an object that reaches further, its producers' last
    batches are left out where they come later: who copies what follows meets them again. `known`: what objects that
    were read before say.

    Raises Retryable (StoreUnavailable), ObjectMissing, Corrupt."""
    entry = await manifests.find(offset - 1) if offset else None
    if entry is None:
        return ColdStart(LeaderEpochs(), ())
    key = entry.key(*of)
    if known is not None and (found := known.get((str(key), offset))) is not None:
        return found
    try:
        async with asyncio.timeout(deadline_s):
            footer = await fetch_footer(store, key, entry.object_bytes, entry.log_bytes)
    except TimeoutError as late:
        raise StoreUnavailable(f"GET {key}: no answer in {deadline_s} s") from late
    held_bytes = 0 if manifests.manifest is None else _held_between(manifests.manifest, since, offset)
    return ColdStart(footer.lineage.truncate_from_end(offset), footer.producer_state().as_of(offset), held_bytes)


async def begin_at_end(
    store: ObjectStore,
    manifests: ManifestStore,
    of: tuple[UUID, int],
    manifest: Manifest,
    leader_epoch: int,
    deadline_s: float,
    known: Known | None = None,
) -> Begin:
    """Of a log that begins where the bucket ends, as `manifest` says it, which `leader_epoch` claimed. `known`, and
    what it raises: see `state_at`."""
    end = manifest.bucket_end_offset
    if not end:
        return Begin()
    epochs, producers, _ = await state_at(store, manifests, of, manifest.remote_end_offset, deadline_s, known=known)
    # In the same write: claimed by now, and else the first record's sync would write the file again.
    return Begin(end, epochs.assign(leader_epoch, end), tuple(producers))


async def claim_and_reserve(
    manifests: ManifestStore, leader_epoch: int, topic: str, configs: dict[str, str], block: int
) -> tuple[Manifest, int]:
    """One request for what a log takes that begins where the bucket ends: the claim, and `block` offsets more than were
    reserved before; the root, and what was. The new ones are given only once the hole up to there is closed: a start
    that ends in between leaves the next one a longer hole, no offset that is given twice. Raises as
    `ManifestStore.claim`."""
    hole_end = 0

    def reserve(manifest: Manifest) -> Manifest:
        nonlocal hole_end
        hole_end = manifest.reserved_end_offset
        end = max(hole_end, manifest.bucket_end_offset)
        return manifest.reserve(min(end + block, INT64_MAX)) if block else manifest

    return await manifests.claim(leader_epoch, topic, configs, reserve), hole_end


def _held_between(manifest: Manifest, start: int, end: int) -> int:
    """Of an object, or a page, that reaches out of [start, end), its share by offsets."""
    start = max(start, manifest.coverage_start)
    held = [(segment.base_offset, segment.end_offset, segment.log_bytes) for segment in manifest.tail]
    held += [(page.first_offset, page.end_offset, page.log_bytes) for page in manifest.pages]
    common = ((min(last, end) - max(first, start), last - first, size) for first, last, size in held)
    return sum(size * offsets // span for offsets, span, size in common if offsets > 0)
