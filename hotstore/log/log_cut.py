"""How a log takes another leader's side: a new epoch at its end, a cut back to where two logs agree, a start elsewhere.

Owns the order of what becomes durable. Always true: a cut leaves no epoch that begins at or above the log's new end,
also where no byte goes (KAFKA-10706: a leader that never wrote may have left one); what stays was made durable before
anything goes; a crash at any point leaves a log that opens, cut or not.

Readers: a `LogSlice` outlives a cut, in a connection that is still sending it. A file that lost its end is therefore
never written to again: the log goes on in a new segment. So a slice's bytes are those that were answered, or the file
ends before them, and then the connection is dropped in the middle of its answer (broker/net/send_path.py), as its
client must not be given other records under that answer (D26). Files that go whole stay readable for whoever holds
them. Slices need no check for this, and the send path none.
Must not know: who leads, why the log is cut.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotstore.flush.durability import PendingSeal
from hotstore.log.batch_walk import BatchPlace
from hotstore.log.log_core import LogCore
from hotstore.log.producer_state import Producers
from hotstore.log.segment import build_indexer, create_segment
from hotstore.recovery.producer_files import load_producers
from hotstore.recovery.restart import restart_at, truncate
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry


class LogCut(LogCore):
    """See the module."""

    def begin_epoch(self, leader_epoch: int) -> None:
        """A leader begins: its epoch enters the lineage at the log's end, before any record of it (KIP-279, R2).

        Costs no sync. Raises LeaderEpochFenced where the log knows a later one; the latest one again changes nothing.

        Durable with the epoch's first record, as recovery reads it off that; before, when the checkpoint is written for
        another reason (a roll, a cut). Until then a stop or a power cut forgets the epoch, and nobody can tell:
        an epoch number is given once, so whoever leads next begins a later one at the same end, or below, and an
        epoch without records gives way to it (`LeaderEpochs.assign`). What readers were told of it, "ends at the log's
        end", is what they are then told of the epoch before.
        """
        if leader_epoch < self._leader_epoch:
            raise self._superseded(leader_epoch)
        if leader_epoch > self._leader_epoch:
            self._enter_epoch(leader_epoch, self.log_end_offset)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """*Blocking*, alone: drop every batch that ends above `offset`, and the epochs that begin at or above the new
        end; durable when it returns. At or above the log's end only epochs go.

        At or below the first local batch all of it goes: the log starts anew at `offset`, with the producers where they
        are known. Batches that stay count as seen at `now_ms`, as after a restart: a producer that resends one is told
        so. The recovery-point checkpoint must not be above `offset`: write it first
        (`OffsetCheckpoints.lower_recovery_point`). Flushed end, recovery point and log start come down with it. Raises
        OSError, after which the log must be opened again.
        """
        if offset >= self.log_end_offset:
            self._cut_epochs()
            return
        self._sync_all()  # what stays becomes durable first: the cut must not be the only thing that is
        segments = self._locator.segments
        if offset <= segments[0].base_offset:
            self._start_with_what_is_known(offset)
            return
        last = self._locator.segment_of(offset - 1)
        keep = segments.index(last) + 1
        is_cut = False
        if offset < last.end_offset:
            damage = last.damage
            if damage is not None and damage.offset == offset:  # all before it was read; what follows cannot be walked
                place = BatchPlace(damage.position, 0, offset, offset)
            else:
                place = last.locate(offset, self._locator.cache)
            is_cut = place.position > 0
            if is_cut:
                last.size, last.end_offset = place.position, place.base_offset
            elif keep == 1:
                self._start_with_what_is_known(last.base_offset)
                return
            else:
                keep -= 1
                last = segments[keep - 1]
        self._go_on_after(keep, now_ms, is_cut=is_cut)

    def start_at(self, offset: int, epochs: LeaderEpochs, producers: Iterable[ProducerEntry]) -> None:
        """*Blocking*, alone: drop everything local and begin an empty log at `offset`, with the state the bucket holds.

        A crash in between is finished by the next open. Raises OSError, after which the log must be opened again.
        """
        fresh = Producers(self.config.producer_id_expiration_ms, producers)
        segment = restart_at(self.directory, offset, epochs, fresh, self.config.index_interval_bytes)
        self._locator.replace([segment])
        self._leaving.clear()
        self.producers = fresh
        self._restart(offset, epochs)

    def _cut_epochs(self) -> None:
        epochs = self.epochs.truncate_from_end(self.log_end_offset)
        if epochs is not self.epochs:
            self._become(epochs)
            self._save_epochs()

    def _start_with_what_is_known(self, offset: int) -> None:
        known = self.producer_snapshot_at(offset)
        self.start_at(offset, self.epochs.truncate_from_end(offset), () if known is None else known.producers)

    def _go_on_after(self, keep: int, now_ms: int, *, is_cut: bool) -> None:
        """The first `keep` segments stay, the last of them cut to its size; the log goes on in a new one."""
        kept = self._locator.segments[:keep]
        last = kept[-1]
        if last.damage is not None and last.damage.offset >= last.end_offset:
            last.damage = None  # it went
        end = last.end_offset
        truncate(self.directory, self._locator.segments, keep)
        if is_cut:
            last.indexer = build_indexer(last)
        active = create_segment(self.directory, end, self.config.index_interval_bytes)
        self.directory.sync()
        segments = [*kept, active]
        self._locator.replace(segments)
        self._restart(end, self.epochs.truncate_from_end(end))
        self.producers = load_producers(
            self.directory, self.directory.list(), segments, end,
            self.config.producer_id_expiration_ms, now_ms, self._locator.cache,
        )  # fmt: skip
        # What was kept beside the roll point went with the segment that began there.
        self._durability.owe([PendingSeal(last if is_cut else None, self.producers.at(end))])
        self._save_epochs()

    def _restart(self, end_offset: int, epochs: LeaderEpochs) -> None:
        self.ballast.ahead.drop(self._active)
        self._active = self._locator.active
        self._sealed_bytes = sum(segment.size for segment in self._locator.segments[:-1])
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self._become(epochs)
        self._durability.restart_at(end_offset)
