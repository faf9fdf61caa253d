"""Supervision of several brokers: decides which broker starts or restarts, and when all end. Pure: events come with
monotonic seconds.

The first broker is ready before the others start for the first time, because it may have to create the cluster. A
broker that ended restarts with growing delays. An exit code that needs a person (configuration, refused, storage
failed) ends all brokers with that code. While the brokers end, no broker starts.
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
"""A broker that served this long restarts with the shortest delay."""


class Do(Enum):
    START = "start"  # start the broker `node_id`
    ANNOUNCE = "announce"  # say that all brokers serve
    STOP = "stop"  # stop the broker `node_id`
    END = "end"  # no broker runs any more: leave with `exit_code`


@dataclass(frozen=True, slots=True)
class Command:
    """A command for the supervisor."""

    do: Do
    node_id: int = -1


@dataclass(slots=True)
class _Broker:
    node_id: int
    running: bool = False
    stopping: bool = False
    ready_s: float | None = None  # since when this process serves
    was_ready: bool = False  # an earlier or the present process was ready
    delay_s: float = BACKOFF_S_MIN
    due_s: float | None = None  # time of its restart


@dataclass(slots=True)
class Supervision:
    """The state of the brokers with these node ids, in order."""

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
        """The time when `due` has something to start; None if never."""
        return min((one.due_s for one in self._brokers.values() if one.due_s is not None), default=None)

    def begin(self) -> list[Command]:
        return [self._start(self._brokers[self.node_ids[0]])]

    def ready(self, node_id: int, now_s: float) -> list[Command]:
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
        """The broker's process ended; a `code` below zero is a signal."""
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
        return [self._start(one) for one in self._brokers.values() if one.due_s is not None and one.due_s <= now_s]

    def stop(self) -> list[Command]:
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
        """The first broker, usually the controller, stops last: the others leave the cluster through it, and the
        next start need not wait for their sessions to expire.
        """
        first, *others = self._brokers.values()
        running = [one for one in others if one.running] or [one for one in (first,) if one.running]
        if not running:
            return [Command(Do.END)]
        now = [one for one in running if not one.stopping]
        for broker in now:
            broker.stopping = True
        return [Command(Do.STOP, broker.node_id) for broker in now]

    def _note(self, code: int) -> None:
        """Keep the first unclean exit code as the exit code of all."""
        if self.exit_code == Exit.DONE and code != Exit.DONE:
            self.exit_code = code if code > 0 else Exit.FAILED
