"""Leader epochs of a log that is being opened. They come from the checkpoint if all batches that were read agree with
it, otherwise from the batches.

Epochs never fall along the log. An epoch that began at the log's end stays, although it has no record. All functions
block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotstore.file_names import EPOCHS_FILE
from hotstore.log.batch_walk import walk_headers
from hotstore.log.segment import IndexCache, Segment
from logformat.errors import Corrupt
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.record_batch import HEADER_SIZE, BatchHeader, CorruptBatch, read_header
from logformat.values import NewerFormat
from seams.files.disk import Directory, read_in, replace_in


class RecoveredEpochs:
    """Call `load` with the trusted segments, `read` with each batch after them, then `through` with the log's end."""

    def __init__(self, directory: Directory, cache: IndexCache) -> None:
        self._directory = directory
        self._cache = cache
        self._epochs = LeaderEpochs()
        self._epoch = -1
        self._checkpointed: EpochStart | None = None
        """The checkpoint's latest epoch. The checkpoint is written before the recovery point passes a later epoch."""

    def load(self, trusted: Sequence[Segment], last_epochs: Mapping[int, int], scan_start: int, log_start: int) -> None:
        """Take the checkpoint's epochs below `scan_start`. If the trusted batches at or above the log start contradict
        them, take the epochs of these batches instead.

        `last_epochs`: the epoch of each trusted segment's last batch, by the segment's base offset. Raises NewerFormat.
        """
        loaded = LeaderEpochs()
        try:
            loaded = LeaderEpochs.from_bytes(read_in(self._directory, EPOCHS_FILE))
            self._checkpointed = loaded.latest
            loaded = loaded.truncate_from_end(scan_start)
            agrees = self._confirms(loaded, trusted, last_epochs, log_start)
        except NewerFormat:
            raise
        except (Corrupt, FileNotFoundError):
            agrees = False
        self._epochs = loaded if agrees else _epochs_of_batches(loaded, trusted)
        self._epoch = -1 if self._epochs.latest is None else self._epochs.latest.epoch

    def _confirms(
        self, epochs: LeaderEpochs, trusted: Sequence[Segment], last_epochs: Mapping[int, int], log_start: int
    ) -> bool:
        """Whether `epochs` agrees with the trusted segments: with their first and last batches, and with the first
        batch of each epoch that starts inside a segment."""
        for segment in trusted:
            if segment.size == 0:
                continue
            first = read_header(segment.file.read_at(0, HEADER_SIZE))
            last = last_epochs[segment.base_offset]
            for offset, epoch in ((segment.base_offset, first.leader_epoch), (segment.end_offset - 1, last)):
                if epoch >= 0 and offset >= log_start and epochs.epoch_for(offset) != epoch:
                    return False
            for epoch, start in epochs.entries:
                if segment.base_offset < start < segment.end_offset:
                    if self._epoch_at(segment, start) != epoch:
                        return False
                    if start > log_start and (
                        segment.locate(start, self._cache).base_offset != start
                        or self._epoch_at(segment, start - 1) == epoch  # the epoch began earlier
                    ):
                        return False
        return True

    def _epoch_at(self, segment: Segment, offset: int) -> int:
        place = segment.locate(offset, self._cache)
        return read_header(segment.file.read_at(place.position, HEADER_SIZE)).leader_epoch

    def read(self, header: BatchHeader, durable: int) -> None:
        """Take the epoch of the next batch. Raises CorruptBatch if the epoch falls, or if a later epoch than the
        checkpoint's latest begins below `durable`.
        """
        epoch = header.leader_epoch
        if epoch == self._epoch or epoch < 0:
            return
        known = -1 if self._checkpointed is None else self._checkpointed.epoch
        if epoch < self._epoch or (known >= 0 and epoch > known and header.base_offset < durable):
            raise CorruptBatch(
                f"batch at offset {header.base_offset} has epoch {epoch} after {self._epoch}, but the checkpoint's "
                f"latest is {known}"
            )
        self._epoch = epoch
        self._epochs = self._epochs.assign(epoch, header.base_offset)

    def through(self, log_end: int) -> LeaderEpochs:
        """The epochs of the batches, and the checkpoint's latest epoch if it began at the log's end and has no record
        yet."""
        epochs, begun = self._epochs.truncate_from_end(log_end), self._checkpointed
        if begun is not None and begun.start_offset == log_end:
            latest = epochs.latest
            if latest is None or latest.epoch < begun.epoch:
                return epochs.assign(*begun)
        return epochs

    def save(self, epochs: LeaderEpochs) -> None:
        """Write the checkpoint if it differs. Raises OSError."""
        has_file = self._directory.stat(EPOCHS_FILE) is not None
        if (epochs.entries or has_file) and (
            not has_file or read_in(self._directory, EPOCHS_FILE) != epochs.to_bytes()
        ):
            replace_in(self._directory, EPOCHS_FILE, epochs.to_bytes())


def _epochs_of_batches(loaded: LeaderEpochs, trusted: Sequence[Segment]) -> LeaderEpochs:
    """The epochs of `loaded` below the trusted segments, then the epochs of every batch in these segments."""
    epochs = loaded.truncate_from_end(trusted[0].base_offset) if trusted else LeaderEpochs()
    for segment in trusted:
        for _, header in walk_headers(segment.file, 0, segment.size):
            latest = epochs.latest
            if header.leader_epoch >= 0 and (latest is None or header.leader_epoch > latest.epoch):
                epochs = epochs.assign(header.leader_epoch, header.base_offset)
    return epochs
