"""Shows a plan of moves, asks, and executes it: shared by `cluster drain` and `cluster rebalance`.

Nothing moves before the plan was shown and confirmed. Moves continue in the cluster when the command is interrupted. A
silent broker or a controller change costs time only.
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
from thermocline.cli.cluster.client import MOVES_MAX, Name, RetryLater, alter, elect_preferred, under_way
from thermocline.cli.cluster.moves.pacer import MovePacer
from thermocline.cli.cluster.moves.plan import Assignment, Move, Plan
from thermocline.cli.cluster.moves.render import moves_sentence, plan_json, plan_lines, progress
from thermocline.cli.cluster.reader import ClusterReader, copied_bytes
from thermocline.cli.terminal.confirm import agree, can_ask
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note
from thermocline.cli.terminal.watch import is_ascii_only
from thermocline.units import show_seconds

T = TypeVar("T")

_POLL_S: Final = 0.5
_SILENCE_MAX_S: Final = 60.0  # longest time without an answer from a controller
_STANDSTILL_S: Final = 30.0  # time between two notes about a wait


@dataclass(frozen=True, slots=True)
class CommandTexts:
    """The command lines for messages: `again` repeats the command, `cancel` cancels its moves."""

    again: str
    cancel: str


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print the plan to stdout. The JSON leaves out moves that are in progress already."""
    for line in (plan_json if as_json else plan_lines)(plan):
        print(line)
    sys.stdout.flush()


def ask(arguments: argparse.Namespace, plan: Plan, words: CommandTexts) -> None:
    """Ask a person. Raises CommandFailed unless the person agrees. Moves in progress need no consent."""
    if arguments.yes or not plan.moves:
        return
    if not can_ask():
        raise CommandFailed(f"this is the plan; to start it, run `{words.again} --yes`", Exit.USAGE)
    agree("Begin?")


def execute(source: ClusterReader, plan: Plan, words: CommandTexts, at_once: int) -> MovePacer:
    """Run until nothing of the plan moves. After ^C the cluster continues the moves, and a message says so."""
    conduct = MovePacer.of(plan.moves, map(_move_in_progress, plan.under_way), at_once=at_once)
    line, watch = ProgressLine(), _Watch(source, conduct)
    began_s = time.monotonic()
    try:
        while not conduct.is_over:
            watch.poll()
            line.show(watch.progress())
            if not conduct.is_over:
                time.sleep(_POLL_S)
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
    def __init__(self, source: ClusterReader, conduct: MovePacer) -> None:
        self._source = source
        self._conduct = conduct
        self._brokers = source.read_with_sizes().seen.brokers
        self._answered_s = self._moved_s = self._began_s = time.monotonic()
        self._state = (0, 0)
        self._before = conduct.copied_bytes

    def poll(self) -> None:
        """Start more moves and update the progress. Raises CommandFailed after a minute without an answer."""
        now_s = time.monotonic()
        try:
            self._ask()
            self._answered_s = now_s
        except (BrokerUnreachable, RetryLater) as failed:
            if now_s - self._answered_s > _SILENCE_MAX_S:
                raise CommandFailed(f"{failed}; the moves continue without this command") from failed
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
                    conduct.put_back(batch)  # the request is idempotent
                    raise
                conduct.answered(batch, refusals)
            moving = under_way(client)
        conduct.update(moving, copied_bytes(self._brokers, conduct.copies()))

    def progress(self) -> str:
        conduct = self._conduct
        copied, hot = conduct.copied_bytes, conduct.hot_bytes
        seconds = time.monotonic() - self._began_s
        per_second = (copied - self._before) / seconds if seconds > 1 else None
        words = f"{len(conduct.done)} of {_partitions(conduct.partitions)}"
        return f"{progress(copied, hot, per_second, plain=is_ascii_only())}; {words}"

    def _standstill(self) -> str:
        try:
            seen = self._source.read_with_sizes().seen
        except BrokerUnreachable as failed:
            return str(failed)
        active = {row.node for row in seen.brokers if row.active}
        away = sorted(node for node in self._conduct.copies() if node not in active)
        leaders = {(row.topic, row.partition): row.leader for row in seen.partitions}
        orphans = [move.name for name, move in self._conduct.running.items() if leaders.get(name) is None]
        if away:
            return f"broker {', '.join(map(str, away))} is away and has to copy replicas; start it"
        if orphans:
            return f"{_first(orphans)}: no leader; see `thermocline cluster status`"
        waiting = [move.name for move in self._conduct.running.values()]
        return f"waiting for {_first(waiting) if waiting else 'the controller'}; see `thermocline cluster status`"


def _move_in_progress(held: Assignment) -> Move:
    """The rest of a move that another command started."""
    added = sum(node not in held.replicas for node in held.target)
    hot = None if held.hot_bytes is None else held.hot_bytes * added
    return Move(held.topic, held.partition, held.replicas, held.target, hot, held.cold_bytes)


def _left(conduct: MovePacer, words: CommandTexts) -> str:
    running, waiting = len(conduct.running), len(conduct.waiting)
    if not running:
        return f"nothing moves; `{words.again}` resumes with {_partitions(waiting)}"
    return (
        f"{_partitions(running)} still move without this command, {waiting} were not begun; `{words.again}` "
        f"resumes, `{words.cancel}` cancels the moves"
    )


def elect_planned_leaders(source: ClusterReader, moves: Iterable[Move]) -> None:
    """Elect the first of the new replicas if another replica leads; note the refusals."""
    wanted = {(move.topic, move.partition): move.after[0] for move in moves}
    view = source.read_with_sizes()
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
        except (BrokerUnreachable, RetryLater) as failed:
            refused |= dict.fromkeys(names, str(failed))
    if refused:
        (topic, index), why = next(iter(sorted(refused.items())))
        note(f"{_partitions(len(refused))} keep their leaders: {topic}-{index}: {why}")


def cancel(source: ClusterReader, held: Sequence[Assignment]) -> int:
    """Cancel moves in progress. Raises CommandFailed when some are refused."""
    refused: dict[Name, str] = {}
    for part in _in_parts(held, MOVES_MAX):
        with source.connect() as client:
            refusals = alter(client, {(each.topic, each.partition): None for each in part})
        refused |= {name: each.why for name, each in refusals.items()}
    note(f"cancelled: {_partitions(len(held) - len(refused))}")
    fail_if_refused(refused)
    return Exit.DONE


def fail_if_refused(refused: dict[Name, str]) -> None:
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
