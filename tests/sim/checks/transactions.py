"""What readers may see of transactions, as a model over the history: its promises (G16), and what breaks them.

Pure. Owns the events of transactions and what counts as an anomaly there. A transaction whose commit was answered is
whole above the log start, in every partition, each record once and in order; one whose commit was never asked for shows
nothing to `read_committed`; one whose answer was lost is whole or not there; its group offset counts with it. What one
`read_committed` reader saw at an offset, or did not see, every other one sees, of whatever broker, for ever. From a
compacted topic a record may go once a later one of its key is committed, and an aborted one at once. Losses excuse as
in `checker`, and a lost partition of `__transaction_state` excuses a commit of before that nobody saw. Must
not know brokers, seeds or faults.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32

from tests.sim.checks.history import Batch, Delete, Loss, Outcome, Place

ANYWHERE: Place = ("*", 0)
STATE_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"
ALL_MACHINES = "all machines"
"""The kind of the loss after which a cluster is restored from its bucket."""
FINAL = "tx final"
"""The name of who reads all in quiet times, once everything has ended."""

STRAY = "stray"
"""How a batch comes into a transaction after its end was asked for: `Ended.how`."""

LIFE = "@"
"""Between a topic's name and its id, in a place of a topic that is deleted and made again."""

Told = Iterator[tuple[str, str]]


def key_of(value: str, keys: int) -> str:
    """The key of a value in a compacted topic with so many keys."""
    return f"key{crc32(value.encode()) % keys}"


def life_of(place: Place, topic_id: UUID | None) -> Place:
    """The place, as one life of its topic; None: nobody knows which."""
    return f"{place[0]}{LIFE}{topic_id or '?'}", place[1]


class Part(NamedTuple):
    """A batch of a transaction. `offset`: of its first record, where it was acknowledged, else -1."""

    place: Place
    values: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction and what became of it. OK: its commit was answered; FAIL: nobody asked for it, or it was refused;
    INFO: nobody heard. `decided_s`: when a commit was first asked for, infinite: never. `group_offset`: what it commits
    of its group, -1: nothing. Numbers grow with each transaction of a line of producers."""

    line: str
    number: int
    version: int
    parts: tuple[Part, ...]
    group_offset: int
    invoked_s: float
    decided_s: float
    done_s: float
    outcome: Outcome
    how: str


@dataclass(frozen=True, slots=True)
class Look:
    """One fetch. [`offset`, `end`) was read; `batches` are those that its isolation lets through."""

    consumer: str
    place: Place
    offset: int
    end: int
    is_committed: bool
    invoked_s: float
    done_s: float
    batches: tuple[Batch, ...]
    last_stable: int
    high_watermark: int
    node: str
    log_start: int = 0


@dataclass(frozen=True, slots=True)
class GroupLook:
    """What OffsetFetch with `require_stable` answered of a line's group."""

    line: str
    offset: int
    invoked_s: float
    done_s: float
    is_final: bool = False


@dataclass
class _Facts:
    unheld: frozenset[Place]  # of which the bucket holds nothing
    ended: list[Ended] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    groups: list[GroupLook] = field(default_factory=list)
    losses: dict[Place, list[Loss]] = field(default_factory=lambda: defaultdict(list))
    of_value: dict[str, Ended] = field(default_factory=dict)
    committed: dict[Place, dict[int, tuple[str, float]]] = field(default_factory=lambda: defaultdict(dict))
    """What `read_committed` readers saw, and when first."""
    finals: dict[tuple[Place, bool], set[str]] = field(default_factory=lambda: defaultdict(set))
    retained: frozenset[str] = frozenset()  # topics whose retention moves the log start
    deletes: dict[Place, list[Delete]] = field(default_factory=lambda: defaultdict(list))
    starts: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    """Where logs begin, as the last readers were told."""
    where: dict[str, int] = field(default_factory=dict)
    """Offsets of values, of whatever isolation."""
    keys: int = 0
    """Of compacted topics; 0: none is."""

    def excused(self, place: Place, offset: int, by_s: float) -> bool:
        """Whether what lay there then may have been lost since."""
        return any(loss.start <= offset and loss.at_s >= by_s for loss in self.losses_of(place))

    def part_excused(self, part: Part, by_s: float) -> bool:
        """Whether what no deletion took of it may have been lost since."""
        return self.excused(part.place, max(part.offset, self.starts[part.place]), by_s)

    def missing(self, part: Part, *, is_committed: bool) -> list[str]:
        """Of its values those that the last readers of an isolation did not see, though no deletion took them."""
        if (part.place, is_committed) not in self.finals:
            return []  # nobody read it: a life that is over
        there, start = self.finals[part.place, is_committed], self.starts[part.place]
        missing = [(at, value) for at, value in enumerate(part.values) if value not in there]
        known = ((value, part.offset + at if part.offset >= 0 else self.where.get(value, -1)) for at, value in missing)
        left = [(value, offset) for value, offset in known if offset >= start or (offset < 0 and not start)]
        return [value for value, offset in left if not self._is_superseded(value, offset, there)]

    def _is_superseded(self, value: str, offset: int, by: Iterable[str]) -> bool:
        """Whether compaction may have removed it: one of `by` has its key, and lies behind it."""
        return self._has_key_of(value, (other for other in by if self.where.get(other, -1) > offset))

    def _has_key_of(self, value: str, others: Iterable[str]) -> bool:
        return self.keys > 0 and any(key_of(other, self.keys) == key_of(value, self.keys) for other in others)

    def may_be_gone(self, place: Place, offset: int) -> bool:
        """Whether compaction may have removed what a committed reader saw there. Perhaps nobody saw the newer value,
        because compaction or a deletion took it, too."""
        value, _ = self.committed[place][offset]
        later = (other for at, (other, _) in self.committed[place].items() if at > offset)
        return self._has_key_of(value, chain(later, self._not_aborted(place, offset)))

    def _not_aborted(self, place: Place, after: int) -> Iterable[str]:
        """Values above an offset whose transactions committed, or may have."""
        for ended in self.ended:
            for part in ended.parts if ended.outcome is not Outcome.FAIL else ():
                if part.place == place and part.offset >= 0:
                    yield from (value for at, value in enumerate(part.values, part.offset) if at > after)

    def losses_of(self, place: Place) -> Iterable[Loss]:
        name, is_life, _ = place[0].partition(LIFE)
        if is_life:  # where the bucket's part ended was another life's, perhaps
            return [replace(loss, start=0) for loss in self.losses_of((name, place[1]))]
        return (*self.losses[place], *(self.losses[ANYWHERE] if place in self.unheld else ()))

    def lost_of(self, topic: str, by_s: float) -> bool:
        """Whether an internal topic lost something after that."""
        return any(
            loss.at_s >= by_s
            for place, losses in self.losses.items()
            if place == ANYWHERE or place[0] == topic
            for loss in losses
        )

    def may_be_committed_again(self, ended: Ended) -> bool:
        """Whether it began before its coordinator lost decisions, in version 1. The one before may be committed again
        then, by a marker with the same epoch (G16)."""
        return ended.version == 1 and self.lost_of(STATE_TOPIC, ended.invoked_s)

    def is_visible(self, ended: Ended) -> bool:
        """Whether the last readers saw any record of it."""
        return any(value in self.finals.get((part.place, True), ()) for part in ended.parts for value in part.values)


def check_transactions(
    events: Iterable[Any], unheld: Iterable[Place] = (), retained: Iterable[str] = (), keys: int = 0
) -> Told:
    """(kind, detail) of each anomaly. `retained`: topics that have a retention. `keys`: of compacted topics; 0: none
    is."""
    facts = _Facts(frozenset(unheld), retained=frozenset(retained), keys=keys)
    for event in events:
        if isinstance(event, Ended):
            facts.ended.append(event)
            facts.of_value.update((value, event) for part in event.parts for value in part.values)
        elif isinstance(event, Look):
            facts.looks.append(event)
            facts.where.update(
                (value, batch.base + at) for batch in event.batches for at, value in enumerate(batch.values)
            )
            if event.consumer == FINAL:
                facts.starts[event.place] = max(facts.starts[event.place], event.log_start)
        elif isinstance(event, Delete):
            facts.deletes[event.place].append(event)
        elif isinstance(event, GroupLook):
            facts.groups.append(event)
        elif isinstance(event, Loss):
            facts.losses[event.place].append(event)
    for judge in _JUDGES:
        yield from judge(facts)


def _only_committed(facts: _Facts) -> Told:
    """What a reader sees was decided to be committed: txn-aborted-seen, txn-dirty, txn-invented, txn-twice."""
    where: dict[str, tuple[Place, int, float]] = {}
    seen: set[tuple[Place, Batch]] = set()
    for look in sorted(facts.looks, key=lambda look: look.done_s):
        if look.consumer == FINAL:
            facts.finals[look.place, look.is_committed].update(
                value for batch in look.batches for value in batch.values
            )
        for batch in look.batches:
            if not look.is_committed or (look.place, batch) in seen:
                continue
            seen.add((look.place, batch))
            for offset, value in enumerate(batch.values, batch.base):
                name = f"{look.place} {offset}: {look.consumer} saw {value} at {look.done_s:.3f} s ({look.node})"
                ended = facts.of_value.get(value)
                if ended is None:
                    yield "txn-invented", f"{name}, which nobody sent"
                elif ended.outcome is Outcome.FAIL:
                    if facts.excused(look.place, offset, ended.done_s) and facts.may_be_committed_again(ended):
                        continue  # its marker was lost too (seed 580087 of three brokers)
                    yield "txn-aborted-seen", f"{name}, of {_told(ended)}"
                elif look.done_s < ended.decided_s:
                    yield "txn-dirty", f"{name}, of {_told(ended)}"
                before = facts.committed[look.place].setdefault(offset, (value, look.done_s))
                if before[0] != value:
                    if not facts.excused(look.place, offset, before[1]):
                        yield "txn-two-at-one-offset", f"{name}, and {before} before"
                    facts.committed[look.place][offset] = (value, look.done_s)
                if LIFE in look.place[0]:
                    yield from _of_its_life(facts, value, look.place)
                    continue  # a batch that was sent again may be in two
                found = where.setdefault(value, (look.place, offset, look.done_s))
                if found[:2] != (look.place, offset) and not (
                    facts.excused(*found) or facts.excused(look.place, offset, look.done_s)
                ):
                    yield "txn-twice", f"{name}, and at {found[:2]}"


def _of_its_life(facts: _Facts, value: str, place: Place) -> Told:
    """A topic shows nothing of another one that had its name: txn-of-another-topic."""
    parts = facts.of_value[value].parts if value in facts.of_value else ()
    unknown = life_of((place[0].partition(LIFE)[0], place[1]), None)
    known = [part.place for part in parts if value in part.values and part.place != unknown]
    if known and known[0] != place:
        yield "txn-of-another-topic", f"{place}: {value}, which {known[0]} acknowledged"


def _one_committed_log(facts: _Facts) -> Told:
    """Nobody misses at an offset what another one saw there: txn-missed."""
    offsets = {place: sorted(found) for place, found in facts.committed.items()}
    told: set[tuple[Place, int]] = set()
    for look in facts.looks:
        if not look.is_committed or look.end <= look.offset:
            continue
        known = offsets.get(look.place, [])
        wanted = known[bisect_left(known, look.offset) : bisect_left(known, look.end)]
        got = {offset for batch in look.batches for offset in range(batch.base, batch.base + len(batch.values))}
        for offset in wanted:
            if offset in got or (look.place, offset) in told:
                continue
            value, seen_s = facts.committed[look.place][offset]
            if facts.excused(look.place, offset, min(seen_s, look.done_s)) or facts.may_be_gone(look.place, offset):
                continue
            told.add((look.place, offset))
            yield (
                "txn-missed",
                f"{look.place} {offset}: {look.consumer} read [{look.offset}, {look.end}) of {look.node} until "
                f"{look.done_s:.3f} s without {value}, which another one saw at {seen_s:.3f} s; "
                f"{_told(facts.of_value.get(value))}",
            )


def _whole(facts: _Facts) -> Told:
    """txn-lost, txn-fractured; of `read_uncommitted` txn-unseen."""
    read = {place for place, is_committed in facts.finals if is_committed}
    for ended in facts.ended:
        parts = [part for part in ended.parts if part.place in read]
        for part in parts if ended.outcome is Outcome.OK or not facts.keys else ():  # compaction removes aborted ones
            missing = facts.missing(part, is_committed=False)
            if missing and part.offset >= 0 and not facts.part_excused(part, ended.invoked_s):
                yield "txn-unseen", f"{part} is acknowledged and not there (read_uncommitted); {_told(ended)}"
        if ended.outcome is Outcome.FAIL or facts.lost_of(STATE_TOPIC, ended.decided_s):
            continue
        if ended.outcome is Outcome.INFO and not facts.is_visible(ended):
            continue
        for part in parts:
            missing = facts.missing(part, is_committed=True)
            if not missing or facts.part_excused(part, ended.invoked_s):
                continue
            kind = "txn-lost" if ended.outcome is Outcome.OK else "txn-fractured"
            yield kind, f"{part}: {missing} are not there at the end; {_told(ended)}"


def _not_across_a_restore(facts: _Facts) -> Told:
    """txn-across-restore: no producer of before a restore commits after it what it began before (TX11).
    txn-copied-lost: what was committed and copied before a loss is shown after it, whatever its coordinator lost."""
    restored_s = {loss.at_s for found in facts.losses.values() for loss in found if loss.kind == ALL_MACHINES}
    read = {place for place, is_committed in facts.finals if is_committed}
    for ended in facts.ended:
        if ended.outcome is not Outcome.OK:
            continue
        if any(ended.invoked_s < at_s < ended.decided_s for at_s in restored_s):
            yield "txn-across-restore", f"{_told(ended)}, all machines were lost at {max(restored_s):.3f} s"
        for part in (part for part in ended.parts if part.place in read and part.offset >= 0):
            lost = [loss for loss in facts.losses_of(part.place) if loss.at_s > ended.invoked_s]
            is_held = all(part.offset + len(part.values) <= loss.start for loss in lost)
            is_held = is_held and any(loss.at_s > ended.done_s for loss in lost)
            if is_held and (missing := facts.missing(part, is_committed=True)):
                yield "txn-copied-lost", f"{part}: {missing} are not there at the end; {lost}; {_told(ended)}"


def _in_order(facts: _Facts) -> Told:
    """txn-order: of each line, transactions in order, and each one's records in the order they were sent."""
    rank = {
        value: (ended.line, ended.number, at + (1000 if ended.how == STRAY else 0))
        for ended in facts.ended
        for at, value in enumerate(value for part in ended.parts for value in part.values)
    }
    for place, found in facts.committed.items():
        last: dict[str, tuple[int, int]] = {}
        for offset in sorted(found):
            value = found[offset][0]
            if value not in rank:
                continue
            line, *order = rank[value]
            if tuple(order) <= last.get(line, (-1, -1)) and not facts.excused(place, offset, 0.0):
                yield "txn-order", f"{place} {offset}: {value} after {last[line]} of {line}"
            last[line] = (order[0], order[1])


def _is_decided(facts: _Facts, look: Look) -> bool:
    """Whether every record that a look shows above its last stable offset was decided before. Aborted records are not
    shown, and compaction leaves a filler of them (seed 580032 of three brokers)."""
    shown = (batch for batch in look.batches if batch.base + len(batch.values) > look.last_stable)
    ends = [facts.of_value.get(value) for batch in shown for value in batch.values]
    return all(end is not None and end.decided_s <= look.done_s for end in ends)


def _below_stable(facts: _Facts) -> Told:
    """txn-above-stable: nothing is served at or above the last stable offset, which is not above the high watermark. A
    follower may serve decided records of the bucket before its own log knows them to be decided."""
    for look in facts.looks:
        if look.last_stable > look.high_watermark:
            yield (
                "txn-above-stable",
                f"{look.place}: last stable {look.last_stable} of {look.high_watermark} ({look.node})",
            )
        if look.is_committed and look.end > max(look.last_stable, look.offset) and not _is_decided(facts, look):
            yield "txn-above-stable", f"{look.place}: {look.end} served, last stable {look.last_stable} ({look.node})"


def _where_it_is(facts: _Facts) -> Told:
    """txn-stable-passed: no reader is told a last stable offset above a record of a transaction that is committed only
    later; txn-stable-below-start: a deletion takes it along; txn-start-ahead: only as far as somebody asked."""
    of_place: dict[Place, list[tuple[Part, Ended]]] = defaultdict(list)
    for ended in sorted(facts.ended, key=lambda ended: ended.decided_s):
        for part in ended.parts if ended.outcome is Outcome.OK and ended.how != STRAY else ():
            if part.offset >= 0:
                of_place[part.place].append((part, ended))
    for look in facts.looks:
        name = f"{look.place}: last stable {look.last_stable} ({look.node}, to {look.consumer}, {look.done_s:.3f} s)"
        if look.last_stable < look.log_start:
            yield "txn-stable-below-start", f"{name}, log start {look.log_start}"
        known = of_place[look.place]
        for part, ended in known[bisect_right(known, look.done_s, key=lambda found: found[1].decided_s) :]:
            offset = part.offset
            if look.last_stable <= max(offset, look.log_start) or ended.invoked_s > look.done_s:
                continue
            if offset + len(part.values) <= look.log_start:
                continue  # deleted: a replica that begins at the log start does not know the transaction (seed 201096)
            if not facts.excused(look.place, offset, min(look.invoked_s, ended.invoked_s)):
                yield "txn-stable-passed", f"{name}, which passes {offset} of {_told(ended)}"
        asked = (one.offset for one in facts.deletes[look.place] if one.invoked_s < look.done_s)
        if look.place[0] not in facts.retained and look.log_start > (allowed := max(asked, default=0)):
            yield "txn-start-ahead", f"{name}, log start {look.log_start}, deletion asked below {allowed}"


def _stable_never_back(facts: _Facts) -> Told:
    """txn-stable-regression: of one copy the last stable offset does not fall."""
    best: dict[tuple[Place, str], list[tuple[float, int]]] = defaultdict(list)
    for look in sorted(facts.looks, key=lambda look: look.done_s):
        known = best[look.place, look.node]
        at = bisect_left(known, (look.invoked_s, -1))
        if at and known[at - 1][1] > look.last_stable:
            yield (
                "txn-stable-regression",
                f"{look.place} of {look.node}: {look.last_stable} at {look.done_s:.3f} s after {known[at - 1]}",
            )
        known.append((look.done_s, max(look.last_stable, known[-1][1] if known else -1)))


def _offsets_with_it(facts: _Facts) -> Told:
    """txn-offset-invented, txn-offset-back, txn-offset-apart: a group's offset is that of a committed transaction, the
    last one."""
    of_line: dict[str, list[Ended]] = defaultdict(list)
    for ended in facts.ended:
        if ended.group_offset >= 0 and ended.outcome is not Outcome.FAIL:
            of_line[ended.line].append(ended)
    for look in facts.groups:
        known = of_line[look.line]
        name = f"the group of {look.line} has {look.offset} at {look.done_s:.3f} s"
        at = [ended for ended in known if ended.group_offset == look.offset and ended.decided_s <= look.done_s]
        if (
            look.offset >= 0
            and not at
            and not any(
                facts.may_be_committed_again(ended)
                for ended in facts.ended
                if ended.line == look.line and ended.group_offset == look.offset
            )
        ):
            yield "txn-offset-invented", f"{name}, which no committed transaction says"
        for ended in known:
            is_there = ended.outcome is Outcome.OK or (look.is_final and facts.is_visible(ended))
            if not is_there or ended.done_s > look.invoked_s or ended.group_offset <= look.offset:
                continue
            if facts.lost_of(OFFSETS_TOPIC, ended.decided_s) or facts.lost_of(STATE_TOPIC, ended.decided_s):
                continue
            kind = "txn-offset-back" if ended.outcome is Outcome.OK else "txn-offset-apart"
            yield kind, f"{name}; {_told(ended)} says {ended.group_offset}"
        for ended in at if look.is_final else ():
            if facts.is_visible(ended) or facts.lost_of(STATE_TOPIC, ended.decided_s):
                continue
            if not any(facts.missing(part, is_committed=True) for part in ended.parts):
                continue
            if not any(facts.part_excused(part, ended.invoked_s) for part in ended.parts):
                yield "txn-offset-apart", f"{name}, of {_told(ended)}, whose records are not there"


def _told(ended: Ended | None) -> str:
    if ended is None:
        return "nobody's"
    return (
        f"{ended.line} {ended.number} (version {ended.version}, {ended.how}, {ended.outcome.value}, from "
        f"{ended.invoked_s:.3f} s, commit asked for at {ended.decided_s:.3f} s, over at {ended.done_s:.3f} s)"
    )


_JUDGES: tuple[Callable[[_Facts], Told], ...] = (
    _only_committed,
    _one_committed_log,
    _whole,
    _not_across_a_restore,
    _in_order,
    _below_stable,
    _where_it_is,
    _stable_never_back,
    _offsets_with_it,
)
