"""Adapts a log to another leader: a new epoch at its end, truncation to the common part, or a restart at another
offset.

A truncation removes all epochs that begin at or above the new end, even if it removes no byte (KAFKA-10706: a leader
that never wrote may have left one). Kept data is made durable before other data is removed. After a crash at any point
the log can be opened, truncated or not. A connection may still send a `LogSlice` after a truncation, and its client
must not get other records in that response (D26). A truncated file is therefore never written again: the log continues
in a new segment. The slice then has its original bytes, or the file ends within them. In the second case the connection
is closed in the middle of its response (`broker.net.transport_writer`). Removed files stay readable for their readers,
so slices need no check.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotstore.flush.durability import PendingSeal
from hotstore.log.batch_walk import BatchPlace
from hotstore.log.log_core import LogCore
from hotstore.log.producer_state import Producers
from hotstore.log.segment import build_indexer, create_segment
from hotstore.recovery.producer_files import load_producers
from hotstore.recovery.truncation import restart_at, truncate
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry


class LogCut(LogCore):
    """The truncating part of `PartitionLog`."""

    def begin_epoch(self, leader_epoch: int) -> None:
        """Add a new leader's epoch to the lineage at the log's end, before any record of it (KIP-279, R2).

        This costs no sync. Raises LeaderEpochFenced if the log knows a later epoch. If `leader_epoch` is the latest one
        already, nothing changes. The epoch is durable with its first record, from which recovery reads it, or with an
        earlier checkpoint write (a roll, a truncation). Before that a stop or a power cut may lose it without harm. An
        epoch number is assigned once, so the next leader begins a later epoch at the same end or below. That replaces
        an epoch without records (`LeaderEpochs.assign`). Readers that got the log's end as the end of this epoch then
        get the same end for the previous epoch.
        """
        if leader_epoch < self.leader_epoch:
            raise self._superseded(leader_epoch)
        if leader_epoch > self.leader_epoch:
            self._enter_epoch(leader_epoch, self.log_end_offset)

    def cut_end(self, offset: int) -> int:
        """*Blocking*: the end offset that the log would have after `truncate_to(offset)`. It is below `offset` if a
        batch contains `offset` and begins before it, as a filler of a compacted log may. Raises DamagedLog."""
        if not self._locator.segments[0].base_offset < offset < self.log_end_offset:
            return offset
        last = self._locator.segment_of(offset - 1)
        if offset >= last.end_offset or (last.damage is not None and last.damage.offset == offset):
            return offset
        return last.locate(offset, self._locator.cache).base_offset

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """*Blocking*, alone: drop every batch that ends above `offset`, and the epochs that begin at or above the new
        end. Durable when it returns. If `offset` is at or above the log's end, only epochs are dropped.

        If `offset` is at or below the first local batch, all batches are dropped and the log restarts at `offset`, with
        the producers if they are known. Kept batches count as seen at `now_ms`, as after a restart, so a producer that
        resends one gets its offset. Flushed end, recovery point and log start are lowered to the new end. The
        checkpoint of the recovery point must not be above `offset`, so the caller lowers it first
        (`OffsetCheckpoints.lower_recovery_point`). After an OSError the log must be opened again.
        """
        if offset >= self.log_end_offset:
            self._cut_epochs()
            return
        self._sync_all()  # first, so that kept data is durable before the truncation
        segments = self._locator.segments
        if offset <= segments[0].base_offset:
            self._start_with_known_producers(offset)
            return
        last = self._locator.segment_of(offset - 1)
        keep = segments.index(last) + 1
        is_cut = False
        if offset < last.end_offset:
            damage = last.damage
            if damage is not None and damage.offset == offset:  # the bytes before the damage are sound
                place = BatchPlace(damage.position, 0, offset, offset)
            else:
                place = last.locate(offset, self._locator.cache)
            is_cut = place.position > 0
            if is_cut:
                last.size, last.end_offset = place.position, place.base_offset
            elif keep == 1:
                self._start_with_known_producers(last.base_offset)
                return
            else:
                keep -= 1
                last = segments[keep - 1]
        self._continue_after(keep, now_ms, is_cut=is_cut)

    def start_at(self, offset: int, epochs: LeaderEpochs, producers: Iterable[ProducerEntry]) -> None:
        """*Blocking*, alone: drop all local records and begin an empty log at `offset`, with epochs and producers from
        the bucket.

        The next open finishes an interrupted restart. After an OSError the log must be opened again."""
        fresh = Producers(self.config.producer_id_expiration_ms, producers)
        segment = restart_at(self.directory, offset, epochs, fresh, self.config.index_interval_bytes)
        self._locator.replace([segment])
        self._leaving.clear()
        self.producers = fresh
        self._restart(offset, epochs)

    def _cut_epochs(self) -> None:
        epochs = self.epochs.truncate_from_end(self.log_end_offset)
        if epochs is not self.epochs:
            self._set_epochs(epochs)
            self._save_epochs()

    def _start_with_known_producers(self, offset: int) -> None:
        known = self.producer_snapshot_at(offset)
        self.start_at(offset, self.epochs.truncate_from_end(offset), () if known is None else known.producers)

    def _continue_after(self, keep: int, now_ms: int, *, is_cut: bool) -> None:
        """Keep the first `keep` segments, of which the last one is truncated to its new size. Continue in a new
        segment."""
        kept = self._locator.segments[:keep]
        last = kept[-1]
        if last.damage is not None and last.damage.offset >= last.end_offset:
            last.damage = None  # the damaged part was truncated
        end = last.end_offset
        truncate(self.directory, self._locator.segments, keep)
        if is_cut:
            last.indexer = build_indexer(last)
            last.index_damage = last.rebuild_damage = None
        active = create_segment(self.directory, end, self.config.index_interval_bytes)
        self.directory.sync()
        segments = [*kept, active]
        if last.aborted is not None:
            last.aborted = last.aborted.below(end)
        self._locator.replace(segments)
        self._restart(end, self.epochs.truncate_from_end(end))
        # Markers below the cut that are not committed may be removed by the next truncation.
        ended = tuple(self.producers.transactions.ended_below(end))
        self.producers = load_producers(
            self.directory, self.directory.list(), segments, end,
            self.config.producer_id_expiration_ms, now_ms, self._locator.cache,
        )  # fmt: skip
        self.producers.transactions.remember_ended(ended)
        # The end is a roll point now. If the last segment was not cut, its end was a roll point before and has its
        # files already.
        self.durability.add_seals([PendingSeal(last if is_cut else None, self.producers.at(end))])
        self._save_epochs()

    def _restart(self, end_offset: int, epochs: LeaderEpochs) -> None:
        self.era += 1
        self.ballast.preallocation.drop(self._active)
        self._active = self._locator.active
        self._sealed_bytes = sum(segment.size for segment in self._locator.segments[:-1])
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self._set_epochs(epochs)
        self.durability.restart_at(end_offset)
