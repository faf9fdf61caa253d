"""One pass over one compacted log, through its lease (Kafka's Cleaner.doClean).

The keys of the dirty part are mapped, segment by segment. If the map gets full, the pass ends at that offset. Then each
run of segments that begin below the end is rewritten without superseded records, and swapped in. Every step begins
under the lease. If the role ends, unfinished files remain, and the next pass or start removes them. The last step
records the offset below which the log is clean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, TypeVarTuple

import msgspec

from hotstore.cleaning.cleanable import Cleanable, groups
from hotstore.cleaning.engine import CleanerEngine, CleanerLost
from hotstore.host.lease import Lease
from hotstore.log.log_config import LogConfig
from hotstore.log.log_core import LogCore
from hotstore.log.log_swap import SegmentRun
from hotstore.log.segment import Segment
from hotstore.recovery.segment_swap import CLEANED_SUFFIXES, cleaned_file, remove_cleaned
from logformat.errors import Corrupt
from seams.files.disk import Directory, File
from seams.loop.workers import Lane

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEP_BYTES: Final = 8 << 20
"""Bytes of a segment that one step reads: a role that ends waits for one step at most."""


class MapTooSmall(Exception):
    """The map of keys cannot hold the keys of one batch."""


class PassOver(Exception):
    """The log changed since the pass was planned."""


class Planned(msgspec.Struct, frozen=True):
    """The log's state when a pass was planned: its era, its configs, and whether the bucket may hold records of the log
    (also if the topic is not tiered any more)."""

    era: int
    config: LogConfig
    has_cold_records: bool

    @classmethod
    def of(cls, log: LogCore) -> Planned:
        return cls(log.era, log.config, log.config.tiered or log.owner.is_in_bucket())

    def check(self, log: LogCore) -> None:
        """Raise PassOver if the pass must not continue. A truncation may have removed a key's newest record. By other
        configs the pass may remove a record that stays, because the topic is not compacted any more, became tiered, or
        keeps records for a longer time. A topic that was tiered meanwhile keeps tombstones of records that were
        copied."""
        if log.era != self.era:
            raise PassOver("the log was truncated, or its start moved")
        if log.config != self.config:
            raise PassOver("the topic's configs were changed")
        if log.owner.is_in_bucket() and not self.has_cold_records:
            raise PassOver("remote.storage.enable was switched on and off")


class Throttle(Protocol):
    """Waits so that the cleaner stays within `log.cleaner.io.max.bytes.per.second`."""

    async def took(self, read_bytes: int) -> None: ...


class PassReport(msgspec.Struct, frozen=True):
    """The result of a pass: bytes of the segments that it read and wrote. The log is clean below `end`."""

    first_dirty: int
    end: int
    read_bytes: int
    written_bytes: int
    segments_before: int
    segments_after: int


async def clean(
    lease: Lease, engine: CleanerEngine, part: Cleanable, planned: Planned, throttle: Throttle
) -> PassReport:
    """Clean the log of `lease`: map the keys in [`part.first_dirty`, `part.end`), and remove superseded records below
    the mapped end. Raises LeaseOver and PlaceQuiesced (the role ended), PassOver, DamagedLog, CleanerLost, MapTooSmall,
    OSError. Segments that are swapped in already stay."""
    lease.check()
    log = lease.log

    def still() -> None:
        lease.check()
        planned.check(log)

    await _call(lease, remove_cleaned, log.directory)  # files of a pass that ended with its role
    segments = [segment for segment in log.sealed_runs() if segment.end_offset <= part.end]
    end = await _map_keys(lease, engine, segments, part, throttle)
    # A power cut may interrupt the pass. A follower then finds by the high watermark that its log may lack records.
    still()
    await lease.checkpoint_committed(end)
    read = written = before = after = 0
    for group in groups([segment for segment in segments if segment.base_offset < end], log.config):
        size, run = None, log.left_of(SegmentRun(group))
        while run.segments and (size := await _rewrite(lease, engine, run, still, throttle)) is None:
            run = log.left_of(run)  # cleaned too, because the checkpoint counts them as clean
        if size is not None:
            written += size
            read += sum(segment.size for segment in run.segments)
            before, after = before + len(run.segments), after + 1
    lease.check()
    await lease.checkpoint_cleaned(end, still)
    return PassReport(part.first_dirty, end, read, written, before, after)


async def _map_keys(
    lease: Lease, engine: CleanerEngine, segments: Sequence[Segment], part: Cleanable, throttle: Throttle
) -> int:
    """Map the keys of the dirty segments. Returns the offset below which all of them are mapped."""
    end = part.first_dirty
    for segment in segments:
        if segment.end_offset <= part.first_dirty:
            continue
        position = 0
        if segment.base_offset < part.first_dirty:
            position = (await _call(lease, lease.log.place_of, segment, part.first_dirty, lane=Lane.CLEAN)).position
        while position < segment.size:
            step = min(STEP_BYTES, segment.size - position)
            mapped = await _call(lease, engine.map, segment.file, position, step, lane=Lane.CLEAN)
            position += mapped.taken_bytes
            end = max(end, mapped.end_offset)
            if mapped.is_full and end <= part.first_dirty:
                raise MapTooSmall("one batch has more keys than log.cleaner.dedupe.buffer.size holds: raise it")
            if mapped.is_full:
                return end
            await throttle.took(mapped.taken_bytes)
    return end


async def _rewrite(
    lease: Lease, engine: CleanerEngine, run: SegmentRun, still: Callable[[], None], throttle: Throttle
) -> int | None:
    """Write the cleaned segment of a run and swap it in. Returns its size in bytes; None if retention deleted a segment
    of the run meanwhile, and nothing was swapped in."""
    log = lease.log
    still()
    try:
        outputs = await _call(lease, _open_outputs, log.directory, run.base_offset, lane=Lane.CLEAN)
        interval_bytes = log.config.index_interval_bytes
        await _call(lease, engine.begin_segment, run.base_offset, interval_bytes, *outputs, lane=Lane.CLEAN)
        for segment in run.segments:
            position = 0
            while position < segment.size:
                step = min(STEP_BYTES, segment.size - position)
                taken = await _call(lease, engine.clean, segment.file, position, step, lane=Lane.CLEAN)
                position += taken
                await throttle.took(taken)
                still()
        cleaned = await _call(lease, engine.finish_segment, lane=Lane.CLEAN)
        if cleaned.end_offset != run.end_offset:
            raise Corrupt(
                f"{log.path}: the cleaned segment [{run.base_offset}, {cleaned.end_offset}) does not end at "
                f"{run.end_offset}"
            )
        lease.check()
        if not await lease.swap(run, cleaned.size, still):
            await _call(lease, remove_cleaned, log.directory)
            return None
        return cleaned.size
    except (OSError, Corrupt, CleanerLost, PassOver):
        if not lease.is_over and not log.failure:
            await _call(lease, remove_cleaned, log.directory)  # free the space at once, because the disk may be full
        raise


async def _call(lease: Lease, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
    """Run a step under the lease. Raises LeaseOver, also if the lease ended during the previous step."""
    lease.check()
    return await lease.call(function, *args, lane=lane)


def _open_outputs(directory: Directory, base_offset: int) -> tuple[File, File, File]:
    """Open the new files of a cleaned segment: log, offset index, time index. Blocking. Raises OSError."""
    log, offsets, times = (
        directory.open(cleaned_file(base_offset, suffix), write=True, create=True, exclusive=True)
        for suffix in CLEANED_SUFFIXES
    )
    return log, offsets, times
