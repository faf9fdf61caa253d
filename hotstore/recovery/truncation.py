"""Truncates a local log, or replaces it by an empty one at another offset. The next start finishes an interrupted
operation.

A log that ends below the remote end restarts there with the epochs and producers from the bucket. Records below the log
start are dropped the same way. The restart happens once its `.restart` marker is durable: the name has the base offset,
the content the epochs, then the producers. Before that the log is unchanged. All functions block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from hotstore.file_names import (
    EPOCHS_FILE,
    SEGMENT_SUFFIXES,
    STAGED_PRODUCERS,
    offset_file,
    parse_offset_file,
    swap_base,
)
from hotstore.flush.durability import write_producer_files, write_whole
from hotstore.local_files import drop_segment_files, producer_files_above, remove_files
from hotstore.log.log_config import NEVER
from hotstore.log.producer_state import Producers
from hotstore.log.segment import Segment, create_segment
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import MAGIC as PRODUCERS_MAGIC
from logformat.producer_snapshot import ProducerState, decode_producer_state, encode_producer_state
from seams.files.disk import Directory, read_in, replace_in

RESTART: Final = ".restart"
_MARKER: Final = re.compile(r"([0-9]{20})\.restart")


def restart_at(
    directory: Directory, offset: int, epochs: LeaderEpochs, producers: Producers, interval_bytes: int
) -> Segment:
    """Drop every local segment and begin an empty one at `offset`; durable when it returns. Raises OSError."""
    # No producer file yet: one at `offset` would claim that the old log reaches so far.
    decided = epochs.to_bytes() + encode_producer_state(producers.at(offset).state())
    replace_in(directory, offset_file(offset, RESTART), decided)
    return finish_restart(directory, offset, interval_bytes)


def pending_restart(names: Iterable[str]) -> int | None:
    """The offset of a decided, unfinished restart."""
    return next((int(match[1]) for name in names if (match := _MARKER.fullmatch(name)) is not None), None)


def finish_restart(directory: Directory, offset: int, interval_bytes: int) -> Segment:
    """Perform a restart whose marker is durable. It may be repeated from any point. While the marker exists no other
    file here is read, so one directory sync is enough for all names before it is removed."""
    epochs, producers = _read_marker(directory, offset)
    write_whole(directory, EPOCHS_FILE, epochs.to_bytes())
    for name in directory.list():
        place = parse_offset_file(name)
        if swap_base(name) is not None:
            directory.unlink(name)  # a cleaned segment of the old log, of a swap that failed
        # An old segment may have the same base: its file is not empty, its indexes would not fit.
        if place is not None and (place[0] != offset or place[1] in SEGMENT_SUFFIXES):
            directory.unlink(name)
    if producers is not None:
        write_producer_files(directory, Producers(NEVER, producers.producers).at(offset))
    segment = create_segment(directory, offset, interval_bytes)
    directory.sync()
    directory.unlink(offset_file(offset, RESTART))
    directory.sync()
    return segment


def _read_marker(directory: Directory, offset: int) -> tuple[LeaderEpochs, ProducerState | None]:
    """The marker's content. An earlier version stored the producers in a file beside the marker; None if that was
    renamed."""
    text, magic, state = read_in(directory, offset_file(offset, RESTART)).partition(PRODUCERS_MAGIC)
    epochs = LeaderEpochs.from_bytes(text)
    if magic:
        return epochs, decode_producer_state(magic + state)
    staged = offset_file(offset, STAGED_PRODUCERS)
    if directory.stat(staged) is None:
        return epochs, None
    return epochs, decode_producer_state(read_in(directory, staged))


def truncate(directory: Directory, segments: Sequence[Segment], keep: int) -> None:
    """Truncate a log to its first `keep` segments (at least one), the last of them to its `size` and `end_offset`.

    Producer files above the end are removed first, because they claim more than remains, then segments from the newest
    on, then the file's tail. After any prefix of these steps the log opens. Producer files at the end stay, because in
    a compacted log the batches below do not have all of their content. Durable when it returns. Raises OSError.
    """
    last = segments[keep - 1]
    remove_proofs_above(directory, last.end_offset)
    dropped = [segment.base_offset for segment in reversed(segments[keep:])]
    drop_segment_files(directory, dropped, new_end=last.end_offset)
    last.file.truncate(last.size)
    last.file.sync()


def remove_proofs_above(directory: Directory, offset: int) -> None:
    """Remove producer files above `offset`, which claim that the log was durable up to there."""
    remove_files(directory, producer_files_above(directory.list(), offset))
