"""Epochs and producers of a log that begins at the bucket's end, and the claim of such a log.

Epochs and producers come from the footer of the last object, which takes two requests plus at most one manifest page.
They contain only offsets below the end, even if the object reaches further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import ObjectMissing, ObjectStore, answered_within
from coldstore.segments.segment_reader import fetch_footer
from hotstore.recovery.log_creation import Begin
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from logformat.record_batch import INT64_MAX

MOVES_MAX: Final = 2


class ColdStart(NamedTuple):
    """`held_bytes`: approximate log bytes in the bucket below the offset, from `since` on."""

    epochs: LeaderEpochs
    producers: Iterable[ProducerEntry]
    held_bytes: int = 0


Known: TypeAlias = Mapping[tuple[str, int], ColdStart]
"""Cache of the state from objects, by key and offset. Objects never change."""


async def state_at(
    store: ObjectStore,
    manifests: ManifestStore,
    of: tuple[UUID, int],
    offset: int,
    deadline_s: float,
    since: int = 0,
    known: Known | None = None,
) -> ColdStart:
    """The state at `offset`, from the objects below it in the loaded manifest. `known`: results of earlier reads.

    If an object reaches further, later batches of its producers are left out: the replica copies them anyway. Raises
    Retryable (StoreUnavailable), ObjectMissing, Corrupt."""
    for _ in range(MOVES_MAX):
        try:
            return await _state_at(store, manifests, of, offset, deadline_s, since, known)
        except ObjectMissing:
            await manifests.reload_if_changed()  # compaction may have replaced the object
    return await _state_at(store, manifests, of, offset, deadline_s, since, known)


async def _state_at(
    store: ObjectStore,
    manifests: ManifestStore,
    of: tuple[UUID, int],
    offset: int,
    deadline_s: float,
    since: int,
    known: Known | None,
) -> ColdStart:
    entry = await manifests.find(offset - 1) if offset else None
    if entry is None:
        return ColdStart(LeaderEpochs(), ())
    key = entry.key(*of)
    if known is not None and (found := known.get((str(key), offset))) is not None:
        return found
    try:
        async with answered_within(deadline_s, f"GET {key}"):
            footer = await fetch_footer(store, key, entry.object_bytes, entry.log_bytes)
    except ObjectMissing:
        if not is_below_start(manifests.manifest, entry):
            raise
        return ColdStart(LeaderEpochs(), ())
    root = manifests.manifest
    held_bytes = 0 if root is None else root.bytes_between(max(since, root.coverage_start), offset)
    transactions = [
        (of.producer_id, of.producer_epoch, of.first_offset, of.marker_offset) for of in footer.transactions
    ]
    producers = footer.producer_state().as_of(offset, transactions)
    return ColdStart(footer.lineage.truncate_from_end(offset), producers, held_bytes)


def is_below_start(manifest: Manifest | None, entry: RemoteSegment) -> bool:
    """Whether all records of the object are deleted. Then the object may be gone although the root still names it,
    because objects below the log start are deleted before the root is changed."""
    return manifest is not None and entry.end_offset <= manifest.log_start_offset


async def begin_at_end(
    store: ObjectStore,
    manifests: ManifestStore,
    of: tuple[UUID, int],
    manifest: Manifest,
    leader_epoch: int,
    deadline_s: float,
    known: Known | None = None,
) -> Begin:
    """Start of a log at the bucket's end per `manifest`, which `leader_epoch` claimed. `known` and errors: see
    `state_at`."""
    end = manifest.bucket_end_offset
    if not end:
        return Begin()
    epochs, producers, _ = await state_at(store, manifests, of, manifest.remote_end_offset, deadline_s, known=known)
    # The epoch is written now, because otherwise the first record's sync would write the epoch file again.
    return Begin(end, epochs.assign(leader_epoch, end), tuple(producers))


async def claim_and_reserve(
    manifests: ManifestStore, leader_epoch: int, topic: str, configs: dict[str, str], block: int
) -> tuple[Manifest, int]:
    """Claim in one request, and reserve `block` offsets beyond the earlier reserved end; returns the root and that end.

    The new offsets are used only after the hole below them is closed. If a start is interrupted in between, the next
    start has a longer hole, but no offset is assigned twice. Raises as `ManifestStore.claim`."""
    hole_end = 0

    def reserve(manifest: Manifest) -> Manifest:
        nonlocal hole_end
        hole_end = manifest.reserved_end_offset
        end = max(hole_end, manifest.bucket_end_offset)
        return manifest.reserve(min(end + block, INT64_MAX)) if block else manifest

    return await manifests.claim(leader_epoch, topic, configs, reserve), hole_end
