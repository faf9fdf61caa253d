"""Truncates a local log, or replaces it by an empty one at another offset. The next start finishes an interrupted
operation.

A log that ends below the remote end is replaced by an empty log at the remote end, with the epochs and producers from
the bucket. A log that ends below the log start is replaced by an empty log at the log start. A replacement is called a
restart. It is decided once its `.restart` marker is durable; before that the log is unchanged. The marker's name has
the base offset, and its content has the epochs and then the producers. All functions block."""

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
    # No producer file is written yet: a producer file at `offset` would claim that the old log reaches `offset`.
    decided = epochs.to_bytes() + encode_producer_state(producers.at(offset).state())
    replace_in(directory, offset_file(offset, RESTART), decided)
    return finish_restart(directory, offset, interval_bytes)


def pending_restart(names: Iterable[str]) -> int | None:
    """The offset of a restart that is decided but not finished; None if there is none."""
    return next((int(match[1]) for name in names if (match := _MARKER.fullmatch(name)) is not None), None)


def finish_restart(directory: Directory, offset: int, interval_bytes: int) -> Segment:
    """Perform a restart whose marker is durable. It may be repeated from any point. While the marker exists, no other
    file of the directory is read, so one directory sync before the marker's removal makes all names durable."""
    epochs, producers = _read_marker(directory, offset)
    write_whole(directory, EPOCHS_FILE, epochs.to_bytes())
    for name in directory.list():
        place = parse_offset_file(name)
        if swap_base(name) is not None:
            directory.unlink(name)  # left by a failed swap in the old log
        # An old segment may have the same base offset. This segment is removed, too, because it is not empty.
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
    """The marker's content: epochs and producers. An earlier version stored the producers in a file beside the marker;
    the producers are None if that file was renamed already."""
    text, magic, state = read_in(directory, offset_file(offset, RESTART)).partition(PRODUCERS_MAGIC)
    epochs = LeaderEpochs.from_bytes(text)
    if magic:
        return epochs, decode_producer_state(magic + state)
    staged = offset_file(offset, STAGED_PRODUCERS)
    if directory.stat(staged) is None:
        return epochs, None
    return epochs, decode_producer_state(read_in(directory, staged))


def truncate(directory: Directory, segments: Sequence[Segment], keep: int) -> None:
    """Truncate a log to its first `keep` segments (at least one), and the last of them to its `size` and `end_offset`.

    The steps have a fixed order. Producer files above the new end are removed first, because they claim that the log
    reaches so far. Segments are removed next, the newest first. The last segment's tail is cut off at the end. The log
    opens after a crash between any two steps. A producer file at the new end stays, because in a compacted log the
    batches below do not have all of its content. Durable when it returns. Raises OSError.
    """
    directory.sync()  # the last renames of a swap: while `.log.swap` is there, the segment after it must be there
    last = segments[keep - 1]
    remove_proofs_above(directory, last.end_offset)
    dropped = [segment.base_offset for segment in reversed(segments[keep:])]
    drop_segment_files(directory, dropped, new_end=last.end_offset)
    last.file.truncate(last.size)
    last.file.sync()


def remove_proofs_above(directory: Directory, offset: int) -> None:
    """Remove the producer files above `offset`, because each claims that the log was durable up to the file's
    offset."""
    remove_files(directory, producer_files_above(directory.list(), offset))
