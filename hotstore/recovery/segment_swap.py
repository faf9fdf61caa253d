"""Replaces a run of sealed segments by one cleaned segment on disk (Kafka's Log.replaceSegments).

A cleaned segment covers exactly the offsets of the run that it replaces, without a hole, and has the base of the run's
first segment. It is written as `.log.cleaned`, with its transaction index beside it. Once its name is durably
`.log.swap`, it belongs to the log, and a start after a crash finishes the swap. A start removes a cleaned segment that
still has the name `.log.cleaned`. Each step may be repeated. All functions block.

A swap syncs the directory twice: before anything that it replaces is removed, and before the name `.log.swap` goes. Its
last renames are not synced. They become durable with the next sync of the directory, for example that of the next
swap. Until then a start may finish the swap again. Before that sync no later segment may be removed, and no other swap
of these offsets begins: `truncate` and `remove_cleaned` sync the directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from hotstore.errors import DamagedLog
from hotstore.file_names import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    OFFSET_SUFFIXES,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    is_leftover,
    offset_file,
    parse_offset_file,
    swap_base,
)
from hotstore.log.segment import Segment
from hotstore.recovery.scan import BatchScanner, Damage
from logformat.indexes.transaction_index import AbortedIndex, encode_aborted
from logformat.record_batch import INT64_MAX
from seams import crash_points
from seams.files.disk import Directory

CLEANED_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX)
"""Files of a cleaned segment that a pass writes; the log's producer files stay as they are."""


def cleaned_file(base_offset: int, suffix: str) -> str:
    """Name of a file of an unfinished cleaned segment."""
    return offset_file(base_offset, suffix) + CLEANED


def remove_cleaned(directory: Directory) -> None:
    """Remove unfinished cleaned segments, and make the names of earlier swaps durable. A pass begins with this. Raises
    OSError."""
    for name in directory.list():
        if name.endswith(CLEANED) and is_leftover(name):
            directory.unlink(name)
    directory.sync()


def write_cleaned_transactions(directory: Directory, base_offset: int, aborted: AbortedIndex | None) -> None:
    """Write the transaction index of a cleaned segment. Its name is durable after `commit_swap`. If there are no
    aborted transactions, an empty index replaces the old segment's, if it has one. Raises OSError."""
    if aborted is None and directory.stat(offset_file(base_offset, TRANSACTION_INDEX)) is None:
        return
    with contextlib.closing(
        directory.open(cleaned_file(base_offset, TRANSACTION_INDEX), write=True, create=True)
    ) as file:
        file.truncate(0)
        file.write_at(0, [encode_aborted(aborted or ())])
        file.sync()


def commit_swap(directory: Directory, base_offset: int) -> None:
    """Durably make the cleaned segment part of the log. Its content is already synced. Raises OSError."""
    crash_points.reach("clean.written")
    if directory.stat(cleaned_file(base_offset, TRANSACTION_INDEX)) is not None:
        directory.sync()  # a start that finds `.log.swap` must find this index too: nothing can rebuild it
    # A power cut may lose both names of the log file before the sync. The replaced segments are all there then.
    log = offset_file(base_offset, LOG)
    directory.rename(log + CLEANED, log + SWAP)
    directory.sync()
    crash_points.reach("clean.committed")


def finish_swap(directory: Directory, base_offset: int, replaced: Sequence[int]) -> None:
    """Remove the `replaced` segments, and give the cleaned segment the name of the first, which has the same base
    offset. This name is durable with the next sync of the directory. Raises OSError."""
    assert replaced[0] == base_offset, (base_offset, replaced)
    # `.log.swap` is durable and covers all offsets of the run, so the order of these removals does not matter: a start
    # repeats them. The indexes of the old segment do not fit the new one.
    stale = [offset_file(base_offset, suffix) for suffix in (OFFSET_INDEX, TIME_INDEX)]
    stale += [offset_file(merged, suffix) for merged in replaced[1:] for suffix in OFFSET_SUFFIXES]
    for name in stale:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name)
    # The transaction index gets its name before the log does, because from then on the producer file at the log's end
    # proves that this index exists. A repeated step finds the new index in place.
    if directory.stat(cleaned_file(base_offset, TRANSACTION_INDEX)) is not None:
        directory.rename(cleaned_file(base_offset, TRANSACTION_INDEX), offset_file(base_offset, TRANSACTION_INDEX))
    directory.sync()
    # A rename replaces the old log in one step.
    crash_points.reach("clean.replaced")
    log = offset_file(base_offset, LOG)
    directory.rename(log + SWAP, log)
    for suffix in (OFFSET_INDEX, TIME_INDEX):
        if directory.stat(cleaned_file(base_offset, suffix)) is not None:
            directory.rename(cleaned_file(base_offset, suffix), offset_file(base_offset, suffix))


def finish_swaps(directory: Directory, names: Iterable[str], interval_bytes: int) -> bool:
    """Finish the swaps that a crash interrupted; returns whether there were any.

    Raises DamagedLog, before it changes anything, if a swapped segment is damaged or is Kafka's: Kafka's segment has
    holes, and only Kafka can finish its swap."""
    bases = sorted(base for name in names if (base := swap_base(name)) is not None)
    ends = [_end_of(directory, base, interval_bytes) for base in bases]
    for base, end in zip(bases, ends, strict=True):
        present = (place for name in directory.list() if (place := parse_offset_file(name)) is not None)
        merged = sorted({offset for offset, suffix in present if suffix in SEGMENT_SUFFIXES and base < offset < end})
        finish_swap(directory, base, [base, *merged])
    return bool(bases)


def _end_of(directory: Directory, base_offset: int, interval_bytes: int) -> int:
    """End offset of a swapped segment, which is read completely. Raises DamagedLog."""
    with contextlib.closing(directory.open(offset_file(base_offset, LOG) + SWAP)) as file:
        size = file.size()
        segment = Segment(directory, base_offset, file, interval_bytes)
        scanned = BatchScanner(lambda _: None).scan(segment, size, INT64_MAX)
        damage = scanned.damage
        if damage is None and (size == 0 or directory.stat(offset_file(scanned.end_offset, LOG)) is None):
            damage = Damage(size, scanned.end_offset, "no segment begins where this one ends")
        if damage is not None:
            what = f"compaction was interrupted: {damage.what}"
            hint = "if Kafka wrote this log, start Kafka on it once; else restore the log from a replica or the bucket"
            raise DamagedLog(file.path, damage.position, damage.offset, what, hint)
        return scanned.end_offset
