"""Every order in which a few things can happen to a partition: KIP-101, 279, 320, 595 and what lies between them.

Owns the positions that conversations begin in, what may be said next, and the search through all of it. Always true:
two elections and one restart at most; each question, its arrival, and the arrival of its answer are events of their
own, as is each broker's obeying of the newest image; from every position reached the replicas agree again once nothing
more goes wrong. A position is looked at once, however many conversations lead there; those are counted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from broker.metadata.image import ClusterImage
from tests.playbooks.core import TOPIC, Core, Process
from tests.playbooks.oracle import Broken, Oracle

ELECTIONS_MAX, RESTARTS_MAX, APPENDS_MAX = 2, 1, 2
EVENTS_MAX = 8
_ROUNDS_MAX = 12

Event = tuple[str, int]


class Position:
    """A core, what was acknowledged, and what is still to go wrong. `trail`: one conversation that leads here."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.oracle = Oracle()
        self.elections = self.restarts = self.appends = 0
        self.trail: tuple[Event, ...] = ()
        self.oracle.look(core)

    def events(self) -> list[Event]:
        """All that may happen next."""
        core, found = self.core, list[Event]()
        for node, process in core.processes.items():
            if process.leader is not None and self.appends < APPENDS_MAX:
                found.append(("append", node))
            if process.position < len(core.images) - 1:
                found.append(("obey", node))
            if core.may_fetch(node) and not any(fetch.node == node for fetch in core.fetches):
                found.append(("fetch", node))
            if self.restarts < RESTARTS_MAX:
                found += [("restart", node), ("power cut", node)]
            if self.elections < ELECTIONS_MAX and core.row.leader == node:
                found += [("hand over", node), ("end", node)]
            if core.wants_session(node) and process.position >= 0:
                found.append(("register", node))
        found += [("serve", at) for at in range(len(core.fetches))]
        found += [("take", at) for at in range(len(core.answers))]
        found += [("decide", at) for at in range(len(core.proposals))]
        if not core.proposals:
            found += [("propose", node) for node, process in core.processes.items() if process.leader is not None]
        return found

    def after(self, event: Event) -> Position | None:
        """The position after it; None: it changes nothing. Raises AssertionError: the core did what it must not."""
        other = Position.__new__(Position)
        other.__dict__.update(self.__dict__)
        other.core, other.oracle = self.core.clone(), self.oracle.clone()
        other.trail = (*self.trail, event)
        core, (name, at) = other.core, event
        match name:
            case "append":
                other.appends += 1
                core.append(at)
                core.flush(at)
            case "obey":
                core.obey(at)
            case "fetch":
                core.fetch(at)
            case "serve":
                core.serve(at, records_max=1)
            case "take":
                node = core.answers[at].fetch.node
                core.take(at)
                core.flush(node)
            case "propose":
                if not core.propose(at):
                    return None
            case "decide":
                core.decide(at)
            case "hand over" | "end":
                other.elections += 1
                before = core.images
                (core.hand_over if name == "hand over" else core.end_session)(at)
                if core.images is before:
                    return None
            case "restart" | "power cut":
                other.restarts += 1
                core.restart(at, is_power_cut=name == "power cut")
                core.ask_for_session(at)
                core.register()
            case "register":
                core.ask_for_session(at)
                core.register()
        other.oracle.look(core)
        return other

    def key(self) -> Hashable:
        """The same for positions from which the same can happen."""
        core = self.core
        return (
            self.elections,
            self.restarts,
            self.appends,
            self.oracle.acknowledged,
            _key_of_image(core.image),
            tuple((d.log, d.flushed, d.lineage.entries, d.mark, d.seen_epoch) for d in core.disks.values()),
            tuple(_key_of(process, core) for process in core.processes.values()),
            tuple(sorted(core.fetches)),
            tuple(sorted(core.answers, key=repr)),
            tuple(core.proposals),
        )

    def settle(self) -> None:
        """Nothing more goes wrong: every replica comes to hold what its leader has, and to be in sync. Raises
        AssertionError."""
        core, oracle = self.core.clone(), self.oracle.clone()
        core.fetches, core.answers, core.proposals = [], [], []
        for _ in range(_ROUNDS_MAX):
            for node in core.processes:
                core.obey(node)
                if core.wants_session(node):
                    core.begin_session(node)
                oracle.look(core)
            for node, process in core.processes.items():
                if process.leader is not None:
                    core.flush(node)
                    if core.propose(node):
                        core.decide()
                elif core.may_fetch(node):
                    core.copy(node)
                oracle.look(core)
            if self._agree(core):
                return
        logs = {node: disk.log for node, disk in core.disks.items()}
        raise Broken(f"{_ROUNDS_MAX} quiet rounds later they do not agree: {core.row}, {logs}")

    @staticmethod
    def _agree(core: Core) -> bool:
        row = core.row
        if row.leader not in core.processes or set(row.in_sync) != set(row.replicas):
            return False
        led = core.processes[row.leader].leader
        log = core.disks[row.leader].log
        return (
            led is not None
            and led.high_watermark == len(log)
            and all(disk.log == log for disk in core.disks.values())
            and all(process.high_watermark == len(log) for process in core.processes.values())
        )


def _key_of_image(image: ClusterImage) -> Hashable:
    nodes = tuple((node.broker_epoch, node.active, node.incarnation) for node in image.nodes.values())
    return image.topics[TOPIC].rows[0], nodes


def _key_of(process: Process, core: Core) -> Hashable:
    image = None if process.position < 0 else _key_of_image(core.images[process.position])
    led, follower = process.leader, process.follower
    role: Hashable = process.mark
    if led is not None:
        proposals = tuple(led.in_sync._proposals)
        role = led.high_watermark, led.epoch_start, led._own_end, tuple(sorted(led._reports.items())), proposals
    if follower is not None:
        at = follower.end, follower.high_watermark, follower.seen_epoch, follower._leader_high_watermark
        role = at, follower.phase, follower.lineage.entries
    return process.incarnation, process.is_starting, process.position == len(core.images) - 1, image, role


class Searched(NamedTuple):
    """`conversations` were held, of `events_max` events each or until nothing could be said; they lead through
    `positions`, and `cuts` of the steps cut a log."""

    conversations: int
    positions: int
    cuts: int
    elections: int


class Found(Exception):
    """A conversation that ends badly."""


def search(start: Callable[[], Core], events_max: int = EVENTS_MAX) -> Searched:
    """Every conversation from there. Raises Found with the first that the oracle does not agree to."""
    first = Position(start())
    now: dict[Hashable, tuple[Position, int]] = {first.key(): (first, 1)}
    known = set(now)
    ended = cuts = elections = 0
    for _ in range(events_max):
        following: dict[Hashable, tuple[Position, int]] = {}
        for position, ways in now.values():
            is_end = True
            for event in position.events():
                try:
                    after = position.after(event)
                    if after is None:
                        continue
                    key = after.key()
                    if key not in known:
                        known.add(key)
                        after.settle()
                except AssertionError as why:
                    raise Found(
                        f"{why}\n  after " + ", ".join(f"{n} {a}" for n, a in (*position.trail, event))
                    ) from why
                is_end = False
                cuts += after.core.counts.get("cuts", 0) > position.core.counts.get("cuts", 0)
                elections += after.oracle.elections > position.oracle.elections
                there = following.get(key)
                following[key] = (after, ways) if there is None else (there[0], there[1] + ways)
            if is_end:
                ended += ways
        now = following
    return Searched(ended + sum(ways for _, ways in now.values()), len(known), cuts, elections)


# ── where conversations begin ────────────────────────────────────────────────────────────────────────────────────────
def behind() -> Core:
    """KIP-101, first scenario: both hold a record that is committed, and the follower has not heard so: had it cut to
    its high watermark when it was elected, the record would be gone."""
    core = Core((1, 2))
    core.append(1)
    core.flush(1)
    core.copy(2)
    core.fetch(2)
    core.serve()
    core.answers.clear()
    return core


def handed_over() -> Core:
    """1 has a record that nobody copied, and 2 was elected."""
    core = behind()
    core.append(1)
    core.flush(1)
    core.hand_over(1)
    core.obey(2)
    return core


def diverged() -> Core:
    """KIP-101, second scenario: the leader has a record that nobody copied, the next leader writes another one at that
    offset, in the next epoch."""
    core = handed_over()
    core.append(2)
    core.flush(2)
    return core


def elected_in_vain() -> Core:
    """KIP-279: 2 was elected and wrote nothing, 1 leads again, over a record of its epoch of before that 2 lacks."""
    core = handed_over()
    core.hand_over(2)
    return core


def asked_before() -> Core:
    """KIP-320: a question of the epoch before is in the socket, and the one who is asked lost its leadership."""
    core = behind()
    core.append(1)
    core.flush(1)
    core.fetch(2)
    core.serve()
    core.fetch(2)
    core.hand_over(1)
    return core


def three() -> Core:
    """Three replicas at a minimum of two: one has all of it, one half, one is out of the set."""
    core = Core((1, 2, 3), minimum=2)
    core.append(1)
    core.append(1)
    core.flush(1)
    core.copy(2)
    core.propose(1, end_before=1)
    core.decide()
    core.all_obey()
    return core


STARTS: tuple[Callable[[], Core], ...] = (behind, diverged, elected_in_vain, asked_before, three)
