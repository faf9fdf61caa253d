"""Which of several brokers runs, is started again, or ends them all: a pure machine.

Owns the rules of `serve --brokers N`. Always true: the first broker is ready before any other is started for the first
time (it may have to make the cluster that they join); one that ended is started again, ever later while it does not
stay up; a code that a person has to look at (configuration, refused, storage failed) ends all with that code; once they
are to end, none is started. Must not know processes, clocks or signals: events come in with monotonic seconds, what to
do comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from thermocline.cli.terminal.outcome import Exit

ENDS_ALL: Final = frozenset({Exit.USAGE, Exit.REFUSED, Exit.STORAGE_FAILED})
BACKOFF_S_MIN: Final = 1.0
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""One that served for as long is started again at once after its next end."""


class Do(Enum):
    """What the shell is to do."""

    START = "start"  # this broker
    ANNOUNCE = "announce"  # all serve
    STOP = "stop"  # this broker
    END = "end"  # none runs any more: leave with `exit_code`


@dataclass(frozen=True, slots=True)
class Command:
    """`node_id` with START and STOP."""

    do: Do
    node_id: int = -1


@dataclass(slots=True)
class _Broker:
    node_id: int
    running: bool = False
    told: bool = False  # to stop
    ready_s: float | None = None  # since when this life serves
    was_ready: bool = False  # in any of its lives
    delay_s: float = BACKOFF_S_MIN
    due_s: float | None = None  # when it is started again


@dataclass(slots=True)
class Supervision:
    """Of the brokers with these numbers, in their order."""

    node_ids: Sequence[int]
    exit_code: int = Exit.DONE
    _ending: bool = False
    _announced: bool = False
    _brokers: dict[int, _Broker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._brokers = {node_id: _Broker(node_id) for node_id in self.node_ids}

    @property
    def ending(self) -> bool:
        return self._ending

    @property
    def due_s(self) -> float | None:
        """When `due` has something to start; None: nothing waits."""
        return min((one.due_s for one in self._brokers.values() if one.due_s is not None), default=None)

    def begin(self) -> list[Command]:
        """Start the first."""
        return [self._start(self._brokers[self.node_ids[0]])]

    def ready(self, node_id: int, now_s: float) -> list[Command]:
        """It serves."""
        broker = self._brokers[node_id]
        broker.ready_s, is_first_time = now_s, not broker.was_ready
        broker.was_ready = True
        if self._ending:
            return []
        found = []
        if is_first_time and node_id == self.node_ids[0]:
            found += [self._start(self._brokers[other]) for other in self.node_ids[1:]]
        if not self._announced and all(one.ready_s is not None for one in self._brokers.values()):
            self._announced = True
            found.append(Command(Do.ANNOUNCE))
        return found

    def exited(self, node_id: int, code: int, now_s: float) -> list[Command]:
        """Its process ended; `code` below zero: by that signal."""
        broker = self._brokers[node_id]
        if broker.ready_s is not None and now_s - broker.ready_s >= STEADY_S:
            broker.delay_s = BACKOFF_S_MIN
        broker.running, broker.ready_s = False, None
        if self._ending:
            self._note(code)
            return self._stop_next()
        if code in ENDS_ALL:
            self._note(code)
            return self._stop()
        broker.due_s = now_s + broker.delay_s
        broker.delay_s = min(broker.delay_s * 2, BACKOFF_S_MAX)
        return []

    def due(self, now_s: float) -> list[Command]:
        """Time passed."""
        return [self._start(one) for one in self._brokers.values() if one.due_s is not None and one.due_s <= now_s]

    def stop(self) -> list[Command]:
        """All of them are to end."""
        return [] if self._ending else self._stop()

    def _start(self, broker: _Broker) -> Command:
        broker.running, broker.due_s = True, None
        return Command(Do.START, broker.node_id)

    def _stop(self) -> list[Command]:
        self._ending = True
        for broker in self._brokers.values():
            broker.due_s = None
        return self._stop_next()

    def _stop_next(self) -> list[Command]:
        """The first, which as a rule decides for the others, hears last: they leave by telling it, and the next start
        need not wait for their sessions to end."""
        first, *others = self._brokers.values()
        running = [one for one in others if one.running] or [one for one in (first,) if one.running]
        if not running:
            return [Command(Do.END)]
        now = [one for one in running if not one.told]
        for broker in now:
            broker.told = True
        return [Command(Do.STOP, broker.node_id) for broker in now]

    def _note(self, code: int) -> None:
        """The first that is no clean end says how all of them end."""
        if self.exit_code == Exit.DONE and code != Exit.DONE:
            self.exit_code = code if code > 0 else Exit.FAILED
