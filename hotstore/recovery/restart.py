"""Replacing everything local by an empty log at another offset; a crash in between is finished at the next start.

A log that opens behind the remote end starts there, with the epochs and producers the bucket holds; records below the
log start are dropped the same way. Always true: once the `.restart` marker (the base offset in its name, epochs and
then producers as its content) is durable, the restart happens; before, nothing changed. All functions block. Must not
know: the bucket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from hotstore.file_names import EPOCHS_FILE, SEGMENT_SUFFIXES, STAGED_PRODUCERS, offset_file, parse_offset_file
from hotstore.flush.durability import write_producer_files, write_whole
from hotstore.local_files import drop_segment_files, producer_files_above, remove_files
from hotstore.log.log_config import NEVER
from hotstore.log.producer_state import Producers
from hotstore.log.segment import Segment, create_segment
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import MAGIC as PRODUCERS_MAGIC
from logformat.producer_snapshot import ProducerState, decode_producer_state, encode_producer_state
from seams.disk import Directory, read_in, replace_in

RESTART: Final = ".restart"
_MARKER: Final = re.compile(r"([0-9]{20})\.restart")


def restart_at(
    directory: Directory, offset: int, epochs: LeaderEpochs, producers: Producers, interval_bytes: int
) -> Segment:
    """Drop every local segment and begin an empty one at `offset`; durable when it returns. Raises OSError."""
    # Producers not under their own name yet: a file at `offset` would claim that the old log reaches so far.
    decided = epochs.to_bytes() + encode_producer_state(producers.at(offset).state())
    replace_in(directory, offset_file(offset, RESTART), decided)
    return finish_restart(directory, offset, interval_bytes)


def pending_restart(names: Iterable[str]) -> int | None:
    """The offset of a restart that was decided and not finished."""
    return next((int(match[1]) for name in names if (match := _MARKER.fullmatch(name)) is not None), None)


def finish_restart(directory: Directory, offset: int, interval_bytes: int) -> Segment:
    """Carry out the restart whose marker is durable. May be repeated from any point: while the marker stands nothing
    else here is looked at, so one sync of the directory is enough for all names, before the marker goes."""
    epochs, producers = _decided(directory, offset)
    write_whole(directory, EPOCHS_FILE, epochs.to_bytes())
    for name in directory.list():
        place = parse_offset_file(name)
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


def _decided(directory: Directory, offset: int) -> tuple[LeaderEpochs, ProducerState | None]:
    """What the marker says. One of an earlier version of ours has the producers in a file beside it, which goes when
    they have their own name: None."""
    text, magic, state = read_in(directory, offset_file(offset, RESTART)).partition(PRODUCERS_MAGIC)
    epochs = LeaderEpochs.from_bytes(text)
    if magic:
        return epochs, decode_producer_state(magic + state)
    staged = offset_file(offset, STAGED_PRODUCERS)
    if directory.stat(staged) is None:
        return epochs, None
    return epochs, decode_producer_state(read_in(directory, staged))


def truncate(directory: Directory, segments: Sequence[Segment], keep: int) -> None:
    """Cut a log back to its first `keep` segments (at least one), the last of them to its `size` and `end_offset`.

    What proves more than is left goes first, then whole segments from the newest on, then the tail of the file: any
    prefix of these steps is a log that opens. Durable when it returns. Raises OSError.
    """
    last = segments[keep - 1]
    remove_proofs_above(directory, last.end_offset)
    drop_segment_files(directory, [segment.base_offset for segment in reversed(segments[keep:])])
    last.file.truncate(last.size)
    last.file.sync()


def remove_proofs_above(directory: Directory, offset: int) -> None:
    """Producer files above `offset`, which say that the log was durable up to there."""
    remove_files(directory, producer_files_above(directory.list(), offset))
