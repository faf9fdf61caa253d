"""Replacing everything local by an empty log at another offset; a crash in between is finished at the next start.

A log that opens behind the remote end starts there, with the epochs and producers the bucket holds; records below the
log start are dropped the same way. Always true: once the `.restart` marker (the base offset in its name, the epochs as
its content) is durable, the restart happens; before, nothing changed. All functions block. Must not know: the bucket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from hotstore.durability import write_producer_files
from hotstore.file_names import EPOCHS_FILE, STAGED_PRODUCERS, offset_file, parse_offset_file
from hotstore.local_files import drop_segment_files, producer_files_above, remove_files
from hotstore.log_config import NEVER
from hotstore.producer_state import Producers
from hotstore.segment import Segment, create_segment
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import decode_producer_state, encode_producer_state
from seams.disk import Disk, read_file, replace_file

RESTART: Final = ".restart"
_MARKER: Final = re.compile(r"([0-9]{20})\.restart")


def restart_at(
    disk: Disk, directory: str, offset: int, epochs: LeaderEpochs, producers: Producers, interval_bytes: int
) -> Segment:
    """Drop every local segment and begin an empty one at `offset`; durable when it returns. Raises OSError."""
    # Not under their own name yet: a producer file at `offset` would claim that the old log reaches so far.
    staged = f"{directory}/{offset_file(offset, STAGED_PRODUCERS)}"
    replace_file(disk, staged, encode_producer_state(producers.at(offset).state()))
    replace_file(disk, f"{directory}/{offset_file(offset, RESTART)}", epochs.to_bytes())
    return finish_restart(disk, directory, offset, interval_bytes)


def pending_restart(names: Iterable[str]) -> int | None:
    """The offset of a restart that was decided and not finished."""
    return next((int(match[1]) for name in names if (match := _MARKER.fullmatch(name)) is not None), None)


def finish_restart(disk: Disk, directory: str, offset: int, interval_bytes: int) -> Segment:
    """Carry out the restart whose marker is durable. May be repeated from any point."""
    marker = f"{directory}/{offset_file(offset, RESTART)}"
    staged = f"{directory}/{offset_file(offset, STAGED_PRODUCERS)}"
    epochs = LeaderEpochs.from_bytes(read_file(disk, marker))
    replace_file(disk, f"{directory}/{EPOCHS_FILE}", epochs.to_bytes())
    drop_segment_files(disk, directory, [base for base in _bases(disk.list_dir(directory)) if base != offset])
    new = f"{directory}/{offset:020d}.log"
    if disk.stat(new) is not None:
        # An old segment may have the same base; its indexes would not fit the empty file.
        disk.unlink(new)
    for suffix in (".index", ".timeindex", ".txnindex"):
        if disk.stat(f"{directory}/{offset:020d}{suffix}") is not None:
            disk.unlink(f"{directory}/{offset:020d}{suffix}")
    if disk.stat(staged) is not None:
        remove_proofs_above(disk, directory, offset)
        producers = decode_producer_state(read_file(disk, staged))
        write_producer_files(disk, directory, Producers(NEVER, producers.producers).at(offset))
        disk.sync_dir(directory)
        disk.unlink(staged)
    segment = create_segment(disk, directory, offset, interval_bytes)
    disk.sync_dir(directory)
    disk.unlink(marker)
    disk.sync_dir(directory)
    return segment


def truncate(disk: Disk, directory: str, segments: Sequence[Segment], keep: int) -> None:
    """Cut a log back to its first `keep` segments (at least one), the last of them to its `size` and `end_offset`.

    What proves more than is left goes first, then whole segments from the newest on, then the tail of the file: any
    prefix of these steps is a log that opens. Durable when it returns. Raises OSError.
    """
    last = segments[keep - 1]
    remove_proofs_above(disk, directory, last.end_offset)
    drop_segment_files(disk, directory, [segment.base_offset for segment in reversed(segments[keep:])])
    last.file.truncate(last.size)
    last.file.sync()


def remove_proofs_above(disk: Disk, directory: str, offset: int) -> None:
    """Producer files above `offset`, which say that the log was durable up to there."""
    remove_files(disk, directory, producer_files_above(disk.list_dir(directory), offset))


def _bases(names: Iterable[str]) -> list[int]:
    return sorted({place[0] for name in names if (place := parse_offset_file(name)) is not None and place[1] == ".log"})
