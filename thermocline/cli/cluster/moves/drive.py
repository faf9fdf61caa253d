"""Showing a plan of moves, asking, and carrying it out: what `cluster drain` and `cluster rebalance` share.

Owns the pace, the progress on stderr, and what is said when the command is left: what it began goes on in the cluster
without it. Always true: nothing moves before the plan was shown and agreed to; a broker that does not answer for a
while, a controller that changes, costs time only. Must not know what is planned, nor how (drain and rebalance do).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from thermocline.cli.clients.wire_client import BrokerUnreachable
from thermocline.cli.cluster.client import MOVES_MAX, Name, NotNow, alter, elect_preferred, under_way
from thermocline.cli.cluster.moves.conduct import Conduct
from thermocline.cli.cluster.moves.plan import Held, Move, Plan
from thermocline.cli.cluster.moves.shown import moves_sentence, plan_json, plan_lines, progress
from thermocline.cli.cluster.moves.source import MovesSource, copied_bytes
from thermocline.cli.terminal.confirm import agree, can_ask
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note
from thermocline.cli.terminal.watch import has_only_letters
from thermocline.units import show_seconds

T = TypeVar("T")

_LOOK_S: Final = 0.5
_SILENCE_MAX_S: Final = 60.0  # without an answer from anybody who decides
_STANDSTILL_S: Final = 30.0  # then it is said what is waited for, again and again


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of a command: `again` types it once more, `cancel` takes back what it began."""

    again: str
    cancel: str


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """On stdout; in JSON what moves already is left out, for it is no part of what is asked."""
    for line in (plan_json if as_json else plan_lines)(plan):
        print(line)
    sys.stdout.flush()


def ask(arguments: argparse.Namespace, plan: Plan, words: Words) -> None:
    """CommandFailed unless somebody agrees; what only goes on needs no consent."""
    if arguments.yes or not plan.moves:
        return
    if not can_ask():
        raise CommandFailed(f"that is the plan; to begin it, say `{words.again} --yes`", Exit.USAGE)
    agree("Begin?")


# ── carrying out ─────────────────────────────────────────────────────────────────────────────────────────────────────
def carry_out(source: MovesSource, plan: Plan, words: Words, at_once: int) -> Conduct:
    """Until nothing of the plan moves any more. ^C leaves the cluster to it, and says so."""
    conduct = Conduct.of(plan.moves, map(_going_on, plan.under_way), at_once=at_once)
    line, watch = ProgressLine(), _Watch(source, conduct)
    began_s = time.monotonic()
    try:
        while not conduct.is_over:
            watch.look()
            line.show(watch.progress())
            if not conduct.is_over:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        line.done()
        note(_left(conduct, words))
        raise
    finally:
        line.done()
    if conduct.done:
        moved = moves_sentence(list(conduct.done.values()), verb="moved")
        note(f"{moved}; in {show_seconds(time.monotonic() - began_s)}")
    return conduct


class _Watch:
    """Looks at one plan on its way."""

    def __init__(self, source: MovesSource, conduct: Conduct) -> None:
        self._source = source
        self._conduct = conduct
        self._brokers = source.read().seen.brokers
        self._answered_s = self._moved_s = self._began_s = time.monotonic()
        self._state = (0, 0)
        self._before = conduct.copied_bytes

    def look(self) -> None:
        """Ask for more, see how far it is. CommandFailed when nobody answered for a minute."""
        now_s = time.monotonic()
        try:
            self._ask()
            self._answered_s = now_s
        except (BrokerUnreachable, NotNow) as failed:
            if now_s - self._answered_s > _SILENCE_MAX_S:
                raise CommandFailed(f"{failed}; what moves goes on without this command") from failed
        state = len(self._conduct.done), self._conduct.copied_bytes
        if state != self._state:
            self._state, self._moved_s = state, now_s
        elif now_s - self._moved_s > _STANDSTILL_S:
            self._moved_s = now_s
            note(f"nothing moved for {show_seconds(_STANDSTILL_S)}: {self._standstill()}")

    def _ask(self) -> None:
        conduct = self._conduct
        with self._source.connect() as client:
            if batch := conduct.next_batch():
                try:
                    refusals = alter(client, {(move.topic, move.partition): move.after for move in batch})
                except (BrokerUnreachable, CommandFailed):
                    conduct.put_back(batch)  # asked again, it is the same move
                    raise
                conduct.answered(batch, refusals)
            moving = under_way(client)
        conduct.looked(moving, copied_bytes(self._brokers, conduct.copies()))

    def progress(self) -> str:
        conduct = self._conduct
        copied, hot = conduct.copied_bytes, conduct.hot_bytes
        seconds = time.monotonic() - self._began_s
        per_second = (copied - self._before) / seconds if seconds > 1 else None
        words = f"{len(conduct.done)} of {_partitions(conduct.partitions)}"
        return f"{progress(copied, hot, per_second, plain=has_only_letters())}; {words}"

    def _standstill(self) -> str:
        """Who is waited for."""
        try:
            seen = self._source.read().seen
        except BrokerUnreachable as failed:
            return str(failed)
        active = {row.node for row in seen.brokers if row.active}
        away = sorted(node for node in self._conduct.copies() if node not in active)
        leaders = {(row.topic, row.partition): row.leader for row in seen.partitions}
        orphans = [move.name for name, move in self._conduct.running.items() if leaders.get(name) is None]
        if away:
            return f"broker {', '.join(map(str, away))} is away, and is to copy; start it"
        if orphans:
            return f"nobody leads {_first(orphans)}; see `thermocline cluster status`"
        waiting = [move.name for move in self._conduct.running.values()]
        return f"{_first(waiting) if waiting else 'the controller'} is waited for; see `thermocline cluster status`"


def _going_on(held: Held) -> Move:
    """A move that somebody began before."""
    added = sum(node not in held.replicas for node in held.target)
    hot = None if held.hot_bytes is None else held.hot_bytes * added
    return Move(held.topic, held.partition, held.replicas, held.target, hot, held.cold_bytes)


def _left(conduct: Conduct, words: Words) -> str:
    running, waiting = len(conduct.running), len(conduct.waiting)
    if not running:
        return f"nothing moves; `{words.again}` goes on with {_partitions(waiting)}"
    return (
        f"{_partitions(running)} go on moving without this command, {waiting} were not begun; `{words.again}` goes on "
        f"from here, `{words.cancel}` takes back what moves"
    )


# ── before and after ─────────────────────────────────────────────────────────────────────────────────────────────────
def lead_as_planned(source: MovesSource, moves: Iterable[Move]) -> None:
    """Whoever is first in the new replicas leads where somebody else does; what cannot be is told."""
    wanted = {(move.topic, move.partition): move.after[0] for move in moves}
    view = source.read()
    due = [
        name
        for row in view.seen.partitions
        if (first := wanted.get(name := (row.topic, row.partition))) is not None
        and row.leader not in (None, first)
        and first in row.in_sync
    ]
    refused: dict[Name, str] = {}
    for names in _in_parts(due, MOVES_MAX):
        try:
            with source.connect() as client:
                refused |= {name: each.why for name, each in elect_preferred(client, names).items()}
        except (BrokerUnreachable, NotNow) as failed:
            refused |= dict.fromkeys(names, str(failed))
    if refused:
        (topic, index), why = next(iter(sorted(refused.items())))
        note(f"{_partitions(len(refused))} keep their leaders: {topic}-{index}: {why}")


def cancel(source: MovesSource, held: Sequence[Held]) -> int:
    """Take back moves that are under way. CommandFailed when some cannot be."""
    refused: dict[Name, str] = {}
    for part in _in_parts(held, MOVES_MAX):
        with source.connect() as client:
            refusals = alter(client, {(each.topic, each.partition): None for each in part})
        refused |= {name: each.why for name, each in refusals.items()}
    note(f"taken back: {_partitions(len(held) - len(refused))}")
    fail_if_refused(refused)
    return Exit.DONE


def fail_if_refused(refused: dict[Name, str]) -> None:
    """What the cluster did not want."""
    if refused:
        (topic, index), why = next(iter(sorted(refused.items())))
        raise CommandFailed(f"{_partitions(len(refused))} were refused: {topic}-{index}: {why}")


def _in_parts(found: Iterable[T], size: int) -> Iterable[list[T]]:
    left = iter(found)
    while part := list(islice(left, size)):
        yield part


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count != 1)}"


def _first(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
