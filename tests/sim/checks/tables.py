"""What a reader of a compacted topic may see, as a model over the history: its promises, and what breaks them.

Pure. Owns the events of compacted topics, puts and scans, and what counts as an anomaly there. A record that was
acknowledged or seen is there for ever at its offset, as it was put; or a newer record of its key is; or a tombstone of
the key, as new as it or newer, is old enough for its horizon to have passed. Losses excuse as in `checker`, and, as
such a topic may have nothing in the bucket, two values at one offset. Must not know brokers, seeds or faults.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from logformat.records import Header
from tests.sim.checks.history import Delete, Event, Loss, Note, Outcome, Place, Send

CLOCK_JUMPS = "wall clock jump"
COPY = "copy"
"""Who reads the files of one broker."""


class Row(NamedTuple):
    """A record as it was put. `value_id` is unique; `crc` covers all that a reader gets of it but its offset."""

    value_id: str
    key: bytes
    is_tombstone: bool
    crc: int


class Found(NamedTuple):
    """A record as it was read."""

    offset: int
    row: Row


@dataclass(frozen=True, slots=True)
class Put(Send):
    """As a Send; `values` are the rows' ids."""

    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Scan:
    """All of [`start`, `end`) that a consumer read, poll by poll. `is_final`: in quiet times, to the very end.
    `wrong`: what it saw by itself that no log shows."""

    consumer: str
    place: Place
    start: int
    end: int
    invoked_s: float
    done_s: float
    found: tuple[Found, ...]
    node: str = ""
    is_final: bool = False
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """Where each replica's copy ended on its disk from then on."""

    place: Place
    at_s: float
    ends: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TableRules:
    """Of a run's compacted topics: seconds until a tombstone may go, None: never; whether retention moves the start."""

    tombstones_stay_s: float | None
    is_retained: bool = False


def crc_of(timestamp: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> int:
    return zlib.crc32(repr((timestamp, key, value, headers)).encode())


class Known(NamedTuple):
    """A record and where it certainly was; `since_s`: when somebody was told, `by_s`: when it was certainly written."""

    offset: int
    row: Row
    by_s: float
    since_s: float


@dataclass
class _Facts:
    place: Place
    rules: TableRules
    puts: list[Put]
    scans: list[Scan]
    deletes: list[Delete]
    losses: list[Loss]
    clocks_jump: bool
    copied: list[Copied] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    sent: dict[str, Put] = field(default_factory=dict)

    def excused(self, offset: int, by_s: float) -> bool:
        return any(loss.start <= offset and loss.at_s >= by_s for loss in self.losses)


def check_tables(events: Iterable[Event | Put | Scan], rules: TableRules) -> Iterator[tuple[str, str]]:
    """(kind, detail) of each anomaly."""
    all_events = list(events)
    places = {event.place for event in all_events if isinstance(event, Put | Scan)}
    jumps = any(isinstance(event, Note) and event.text.startswith(CLOCK_JUMPS) for event in all_events)
    for place in sorted(places):
        facts = _Facts(place, rules, [], [], [], [], jumps)
        for event in all_events:
            if isinstance(event, Loss) and event.place in (place, ("*", 0)):
                facts.losses.append(event)
            elif isinstance(event, Put) and event.place == place:
                facts.puts.append(event)
                facts.sent.update((row.value_id, event) for row in event.rows)
            elif isinstance(event, Scan) and event.place == place:
                facts.scans.append(event)
            elif isinstance(event, Delete) and event.place == place:
                facts.deletes.append(event)
            elif isinstance(event, Copied) and event.place == place:
                facts.copied.append(event)
        yield from _placed(facts)
        for scan in facts.scans:
            yield from _of_scan(facts, scan)
            yield from _nothing_missing(facts, scan)


def _placed(facts: _Facts) -> Iterator[tuple[str, str]]:
    """One record at an offset, one offset for a record; as it was put, by who put it."""
    place = facts.place
    at: dict[int, Known] = {}
    seen: list[Put | Scan] = [*(put for put in facts.puts if put.outcome is Outcome.OK and put.offset >= 0)]
    seen += facts.scans
    for event in sorted(seen, key=lambda event: event.done_s):
        rows = [*enumerate(event.rows, event.offset)] if isinstance(event, Put) else [*event.found]
        for offset, row in rows:
            put = facts.sent.get(row.value_id)
            if put is None or row not in put.rows:
                yield "table-invented", f"{place} {offset}: {row} was not put so (put: {put})"
                continue
            if put.outcome is Outcome.FAIL:
                yield "table-aborted", f"{place} {offset}: {row} was refused"
            told = Known(offset, row, put.invoked_s, event.done_s)
            before = at.get(offset)
            if before is None:
                at[offset] = told
            elif before.row != row:
                if not facts.excused(offset, before.by_s):
                    yield "table-two-at-one-offset", f"{place} {offset}: {before} and then {told}"
                at[offset] = told
            known = facts.known.get(row.value_id)
            if known is None:
                facts.known[row.value_id] = told
            elif known.offset != offset:
                if not (facts.excused(known.offset, known.by_s) or facts.excused(offset, put.invoked_s)):
                    yield "table-twice", f"{place}: {known} and {told}"
                facts.known[row.value_id] = told


def _of_scan(facts: _Facts, scan: Scan) -> Iterator[tuple[str, str]]:
    """Order, the order of each session, and where the log starts."""
    name = f"{scan.place} read by {scan.consumer} until {scan.done_s:.3f} s"
    for wrong in scan.wrong:
        yield "table-scan", f"{name}: {wrong}"
    last: dict[str, tuple[int, int]] = {}
    before = -1
    for offset, row in scan.found:
        if offset <= before:
            yield "table-order", f"{name}: {offset} after {before}"
        before = offset
        put = facts.sent.get(row.value_id)
        if put is None:
            continue
        rank = (put.number, put.values.index(row.value_id))
        if rank <= last.get(put.session, (-1, -1)):
            yield "table-order", f"{name}: {offset}: {row} after {last[put.session]} of its session"
        last[put.session] = rank
    asked = max((delete.offset for delete in facts.deletes if delete.invoked_s < scan.done_s), default=0)
    is_local = scan.consumer == COPY  # what is only in the bucket is not there
    if scan.start > asked and not (facts.rules.is_retained or facts.losses or is_local):
        yield "table-premature-delete", f"{name}: starts at {scan.start}, deletion was asked below {asked}"


def _nothing_missing(facts: _Facts, scan: Scan) -> Iterator[tuple[str, str]]:
    """What was known before is there, or superseded by what is, or deleted so long ago that no trace is left."""
    newest: dict[bytes, int] = {}
    for offset, row in scan.found:
        newest[row.key] = offset
    there = {found.row.value_id for found in scan.found}
    by_key: dict[bytes, list[Known]] = defaultdict(list)
    for known in facts.known.values():
        by_key[known.row.key].append(known)
    puts: dict[bytes, list[tuple[Put, Row]]] = defaultdict(list)
    for put in facts.puts:
        if put.outcome is not Outcome.FAIL and put.invoked_s <= scan.done_s:
            for row in put.rows:
                puts[row.key].append((put, row))
    for key, all_known in by_key.items():
        missing = None
        for known in all_known:
            is_known = known.since_s <= scan.invoked_s and scan.start <= known.offset
            if not is_known or known.row.value_id in there or facts.excused(known.offset, known.by_s):
                continue
            if known.offset >= scan.end:
                if scan.is_final:
                    yield "table-unseen", f"{facts.place}: {known} is above the end {scan.end} ({scan.consumer})"
                continue
            if known.offset < newest.get(key, -1):
                continue
            if missing is None or known.offset > missing.offset:
                missing = known
        if missing is None:
            continue
        if not scan.is_final and _went_on(facts, scan, missing, puts[key]):
            continue
        deleted = _may_be_deleted(facts, scan, missing, puts[key])
        if not deleted:
            others = [(found.offset, found.row.value_id) for found in scan.found if found.row.key == key]
            yield (
                "table-lost",
                f"{facts.place}: {missing} is not in [{scan.start}, {scan.end}), which {scan.consumer} read from "
                f"{scan.invoked_s:.3f} to {scan.done_s:.3f} s of {scan.node}; of its key there: {others}",
            )
        elif key in newest and not _is_race(facts, scan) and not _lagged(facts, missing, puts[key]):
            yield (
                "table-resurrected",
                f"{facts.place}: {newest[key]} of {key!r} is there ({scan.consumer}, {scan.done_s:.3f} s), and "
                f"{missing}, which is newer, is not",
            )


def _went_on(facts: _Facts, scan: Scan, missing: Known, puts: list[tuple[Put, Row]]) -> bool:
    """Whether a newer record of the key may lie behind the end of the scan, which a cleaner knew and the scan did not:
    it read of another broker before, which had more of the log committed."""
    for _, row in puts:
        known = facts.known.get(row.value_id)
        if known is None or known.offset >= scan.end or (known.offset > missing.offset and known.since_s > scan.done_s):
            return True
    return False


def _may_be_deleted(facts: _Facts, scan: Scan, missing: Known, puts: list[tuple[Put, Row]]) -> bool:
    stay_s = facts.rules.tombstones_stay_s
    if stay_s is None:
        return False
    for put, row in puts:
        known = facts.known.get(row.value_id)
        is_newer = known is None or known.offset >= missing.offset
        if row.is_tombstone and is_newer and (facts.clocks_jump or put.invoked_s <= scan.done_s - stay_s):
            return True
    return False


def _lagged(facts: _Facts, missing: Known, puts: list[tuple[Put, Row]]) -> bool:
    """Whether a copy was away for longer than tombstones stay, and may never have seen one that others dropped: as in
    Kafka, it keeps what the tombstone deleted, and so does who copies from it."""
    for put, row in puts:
        known = facts.known.get(row.value_id)
        if not row.is_tombstone or (known is not None and known.offset < missing.offset):
            continue
        offset = missing.offset if known is None else known.offset
        stayed_s = put.invoked_s + (0.0 if facts.clocks_jump else facts.rules.tombstones_stay_s or 0.0)
        for copied, following in zip_longest(facts.copied, facts.copied[1:]):
            is_later = following is None or following.at_s > stayed_s
            if is_later and any(end <= offset for _, end in copied.ends):
                return True
    return False


def _is_race(facts: _Facts, scan: Scan) -> bool:
    """Whether the reader was slower than tombstones stay: it may have read the old before it went."""
    stay_s = facts.rules.tombstones_stay_s or 0.0
    return not scan.is_final and (facts.clocks_jump or scan.done_s - scan.invoked_s >= stay_s)
