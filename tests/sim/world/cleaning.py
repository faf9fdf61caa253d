"""The log cleaner in the simulation: small steps, an early second try, and what it did, counted.

Owns the names of those counts. Always true: it changes sizes and times of the cleaner, nothing of what it does.
"""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

from hotstore.cleaning import clean_pass, log_cleaner
from hotstore.cleaning.clean_pass import PassOver, PassReport
from hotstore.cleaning.engine import CleanedSegment, LocalEngine
from hotstore.cleaning.log_cleaner import LogCleaner
from hotstore.file_names import CLEANED
from hotstore.host.place import PlaceQuiesced
from hotstore.log.batch_walk import walk_headers
from hotstore.log.log_swap import LogSwap
from hotstore.log.segment import Segment
from hotstore.recovery import recovery
from logformat.compaction.rules import CleanRules, Mapped
from logformat.errors import Fenced
from seams.files.disk import File, is_full
from seams.rng import Rng, SeededRng
from tests.sim.world.loop import PROCESS
from tiering.cleaning import cold_cleaner
from tiering.cleaning.cold_cleaner import ColdCleaner
from tiering.expiry.cold_expirer import ColdExpirer
from tiering.reading.loader import Loader

STEP_BYTES = 700
RETRY_S = 3.0

hits: Counter[str] = Counter()
"""Of the run that is under way: one at a time."""


Sent = tuple[int, int, int]
"""A batch, by its producer id, epoch and first sequence."""

vanished: defaultdict[Sent, set[str]] = defaultdict(set)
"""Of the run that is under way: paths of the logs whose own cleaner removed a batch whole, by swaps that began."""

SWAPS_A_DEATH = 10
SEGMENTS_A_FAULT = 12


class Died(Exception):
    """Of a call whose process is dead: nobody hears it."""


@dataclass
class Breaks:
    """Kills processes, or cuts the power of their machines, between two effects of a swap; refuses cleaned files."""

    rng: SeededRng
    kill: Callable[[Any], None]
    cut_power: Callable[[Any], None] | None

    def swap(self, node: Any, work: Callable[[], None]) -> None:
        """Do it, or die at one of its effects."""
        if self.rng.randrange(SWAPS_A_DEATH) or node.dead:
            work()
            return
        left = 1 + self.rng.randrange(14)

        def die(_kind: str, _path: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died

        disk = node.machine.disk
        disk.on_effect = die
        try:
            work()
        except Died:
            disk.on_effect = None
            strike = self.cut_power if self.cut_power is not None and self.rng.randrange(2) else self.kill
            hits["cleaning, power cut in a swap" if strike is self.cut_power else "cleaning, killed in a swap"] += 1
            strike(node)
            raise
        finally:
            disk.on_effect = None

    def segment(self, node: Any) -> None:
        """One of the effects on the cleaned files of the next segment fails, perhaps."""
        if self.rng.randrange(SEGMENTS_A_FAULT) == 0:
            kind, code = (("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO))[self.rng.randrange(3)]
            node.machine.disk.inject(kind, code, CLEANED, skip=self.rng.randrange(3))


breaks: Breaks | None = None
"""Of the run that is under way, while things break."""


class SimEngine(LocalEngine):
    """`map_bytes` bounds the map below what configs may say; 0: it does not."""

    def __init__(self, rng: Rng, map_bytes: int) -> None:
        super().__init__(rng)
        self._map_bytes = map_bytes

    def begin(self, buffer_bytes: int, rules: CleanRules) -> None:
        super().begin(min(buffer_bytes, self._map_bytes or 1 << 16), rules)

    def begin_segment(self, base_offset: int, interval_bytes: int, *files: File) -> None:
        super().begin_segment(base_offset, interval_bytes, *files)
        if breaks is not None:
            breaks.segment(PROCESS.get())

    def map(self, file: File, position: int, length: int) -> Mapped:
        mapped = super().map(file, position, length)
        hits["cleaning, map full"] += mapped.is_full
        return mapped

    def finish_segment(self) -> CleanedSegment:
        done = super().finish_segment()
        hits["cleaning, records removed"] += done.stats.records_read - done.stats.records_kept
        hits["cleaning, tombstones dropped"] += done.stats.tombstones_dropped
        hits["cleaning, fillers written"] += done.stats.fillers
        return done


def sent_in(segments: Iterable[Segment]) -> set[Sent]:
    """The batches with a sequence that segments hold, also those without records."""
    return {
        (header.producer_id, header.producer_epoch, header.base_sequence)
        for segment in segments
        for _, header in walk_headers(segment.file, 0, segment.size)
        if header.producer_id >= 0 and header.base_sequence >= 0
    }


def was_fetched_cleaned(sent: Sent, path: str, held: Set[Sent], vanished: Mapping[Sent, Set[str]]) -> bool:
    """Whether the log at `path`, which holds `held`, never had a batch because another log was cleaned before it was
    fetched from: that log had a later one of its producer, and kept that one alone, as Apache Kafka's does.

    The batch was in both if the own cleaner of `path` removed it: then its producers' files know it."""
    cleaned = vanished.get(sent, frozenset())
    has_later = any(one[:2] == sent[:2] and one[2] > sent[2] for one in held)
    return bool(cleaned) and path not in cleaned and sent not in held and has_later


def begin_breaking(made: Breaks) -> None:
    global breaks
    breaks = made


def stop_breaking() -> None:
    global breaks
    breaks = None


def _see_cold(seen: ExitStack) -> None:
    passed, commit, delete = ColdCleaner._pass, ColdCleaner._commit, ColdExpirer._delete_replaced
    is_replaced = Loader._is_replaced

    async def one_pass(cleaner: ColdCleaner, *args: Any) -> None:
        try:
            await passed(cleaner, *args)
        except BaseException as failure:
            hits[f"cold cleaning, pass cut off by {type(failure).__name__}"] += 1
            raise
        hits["cold cleaning, pass finished"] += 1

    async def committed(cleaner: ColdCleaner, shared: Any, work: Any, **which: bool) -> None:
        old, new = len(work.old), len(work.new)
        await commit(cleaner, shared, work, **which)
        hits["cold cleaning, objects replaced"] += old
        hits["cold cleaning, objects merged"] += old - new

    async def deleted(expirer: ColdExpirer) -> None:
        before = expirer._partition.manifest
        await delete(expirer)
        after = expirer._partition.manifest
        if before is not None and after is not None:
            hits["cold cleaning, replaced objects deleted"] += max(len(before.replaced) - len(after.replaced), 0)

    async def replaced(loader: Loader, *args: Any) -> bool:
        found = await is_replaced(loader, *args)
        hits["cold cleaning, reader moved on"] += found
        return found

    seen.enter_context(mock.patch.object(ColdCleaner, "_pass", one_pass))
    seen.enter_context(mock.patch.object(ColdCleaner, "_commit", committed))
    seen.enter_context(mock.patch.object(ColdExpirer, "_delete_replaced", deleted))
    seen.enter_context(mock.patch.object(Loader, "_is_replaced", replaced))
    seen.enter_context(mock.patch.object(cold_cleaner, "STEP_BYTES", STEP_BYTES))
    seen.enter_context(mock.patch.object(cold_cleaner, "CHECK_S", RETRY_S))


def cleaning_is_seen() -> ExitStack:
    """While it is entered, `hits` counts what cleaners do. It begins with none."""
    stop_breaking()
    hits.clear()
    vanished.clear()
    seen = ExitStack()
    note, give_up, clean = LogCleaner._note, LogCleaner._give_up, log_cleaner.clean
    name, finish = LogSwap.name_swapped, recovery.finish_swaps

    def noted(cleaner: LogCleaner, opened: Any, report: PassReport) -> None:
        hits["cleaning, pass finished"] += 1
        note(cleaner, opened, report)

    def gave_up(cleaner: LogCleaner, opened: Any, failure: Exception) -> None:
        was_full = isinstance(failure, OSError) and is_full(failure)
        hits["cleaning, pass cut off by " + ("a full disk" if was_full else type(failure).__name__)] += 1
        give_up(cleaner, opened, failure)

    async def cleaned(*args: Any) -> PassReport:
        try:
            return await clean(*args)
        except (Fenced, PlaceQuiesced):
            hits["cleaning, pass cut off by a role's end"] += 1
            raise
        except PassOver:
            hits["cleaning, pass over: the log changed"] += 1
            raise

    def named(log: LogSwap, run: Any) -> None:
        left = sent_in(one for one in log._locator.segments if run.base_offset <= one.base_offset < run.end_offset)
        for sent in sent_in(run.segments) - left:
            vanished[sent].add(log.directory.path)
        if breaks is None:
            name(log, run)
        else:
            breaks.swap(PROCESS.get(), lambda: name(log, run))
        hits["cleaning, swap"] += 1

    def finished(*args: Any) -> bool:
        found = finish(*args)
        hits["cleaning, start finished a swap"] += found
        return found

    _see_cold(seen)
    seen.enter_context(mock.patch.object(LogCleaner, "_note", noted))
    seen.enter_context(mock.patch.object(LogCleaner, "_give_up", gave_up))
    seen.enter_context(mock.patch.object(log_cleaner, "clean", cleaned))
    seen.enter_context(mock.patch.object(LogSwap, "name_swapped", named))
    seen.enter_context(mock.patch.object(recovery, "finish_swaps", finished))
    seen.enter_context(mock.patch.object(clean_pass, "STEP_BYTES", STEP_BYTES))
    seen.enter_context(mock.patch.object(log_cleaner, "RETRY_S", RETRY_S))
    return seen
