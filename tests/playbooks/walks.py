"""Any events of the core, at random, with images that lag, messages that come late, twice or never, and lost disks.

Owns what may come next and how likely. Always true: the same seed is the same walk; a walk ends at the first event
after which `oracle` is not content, with all that led to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.replication.isr_policy import wanted
from broker.replication.leader import LogExtent
from logformat.errors import ThermoclineError
from seams.rng import Rng, SeededRng
from tests.playbooks.core import Core
from tests.playbooks.oracle import Oracle

RECORDS_MAX: Final = 40
MESSAGES_MAX: Final = 5
STEPS: Final = 200
_ROUGH_ONE_IN: Final = 12

Step = tuple[str, Callable[[], object]]


class Finding(NamedTuple):
    """What went wrong, and after what."""

    seed: int
    why: str
    steps: tuple[str, ...]


class Walk:
    """From one seed: as many replicas, minimum and flush mode as it says."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng: Rng = SeededRng(seed)
        replicas = ((1, 2, 3), (1, 2, 3), (1, 2), (2, 3, 1))[self.rng.randrange(4)]
        # Every other walk moves the partition between four nodes.
        self._moves: Rng | None = SeededRng(f"moves/{seed}") if seed % 2 else None
        spare = () if self._moves is None else tuple(n for n in (1, 2, 3, 4) if n not in replicas)
        self.core = Core(replicas, minimum=1 + self.rng.randrange(2), is_sync=self.rng.randrange(4) > 0, spare=spare)
        self.oracle = Oracle()
        self.losses_left = self.rng.randrange(3)  # of disks, or of one log
        self.done: list[str] = []

    def run(self, steps: int = STEPS) -> Finding | None:
        """None: whatever came, the oracle was content."""
        for _ in range(steps):
            name, event = self._next()
            self.done.append(name)
            try:
                event()
                self.oracle.look(self.core)
            except (AssertionError, ThermoclineError) as why:  # `Broken` among them: a machine may refuse, too
                return Finding(self.seed, repr(why), tuple(self.done))
        return None

    def _next(self) -> Step:
        kinds = [kind for kind in self._calm() if kind]
        if not kinds or self.rng.randrange(_ROUGH_ONE_IN) == 0:
            rough = self._rough()
            return rough[self.rng.randrange(len(rough))]
        kind = kinds[self.rng.randrange(len(kinds))]
        return kind[self.rng.randrange(len(kind))]

    # ── what a calm day brings: kinds of events, each as likely as another ───────────────────────────────────────
    def _calm(self) -> list[list[Step]]:
        core, comes_again = self.core, self.rng.randrange(5) == 0
        obey: list[Step] = []
        leads: list[Step] = []
        flush: list[Step] = []
        fetch: list[Step] = []
        propose: list[Step] = []
        begin: list[Step] = []
        for node, process in core.processes.items():
            if process.position < len(core.images) - 1 and (process.position >= 0 or core.has_session(node)):
                obey.append((f"obey {node}", lambda node=node: core.obey(node)))
                obey.append((f"obey {node}'s next", lambda node=node: core.obey(node, only_next=True)))
            if process.is_starting:
                if len(core.proposals) < MESSAGES_MAX:
                    propose.append((f"done {node}", lambda node=node: core.report_done(node)))
            elif process.leader is not None:
                if core.names < RECORDS_MAX:
                    leads.append((f"append {node}", lambda node=node: core.append(node)))
                behind = core.disks[node].end if self.rng.randrange(4) == 0 else -1
                if len(core.proposals) < MESSAGES_MAX and wanted(process.leader, LogExtent(behind)) is not None:
                    act = lambda node=node, behind=behind: core.propose(node, end_before=behind)  # noqa: E731
                    propose.append((f"propose {node} {behind}", act))
            if core.disks[node].flushed < core.disks[node].end:
                flush.append((f"flush {node}", lambda node=node: core.flush(node)))
            if len(core.fetches) < MESSAGES_MAX and core.may_fetch(node):
                fetch.append((f"fetch {node}", lambda node=node: core.fetch(node)))
            if core.wants_session(node):
                begin.append((f"ask {node}", lambda node=node: core.ask_for_session(node)))
        serve: list[Step] = [
            (f"serve {at} {comes_again}", lambda at=at: core.serve(at, stays=comes_again))
            for at in range(len(core.fetches))
        ]
        take: list[Step] = [
            (f"take {at} {comes_again}", lambda at=at: core.take(at, stays=comes_again))
            for at in range(len(core.answers))
        ]
        settle: list[Step] = [
            (f"decide {at} {comes_again}", lambda at=at: core.decide(at, stays=comes_again))
            for at in range(len(core.proposals))
        ]
        begin += [(f"register {at}", lambda at=at: core.register(at)) for at in range(len(core.registrations))]
        if core.may_begin_uncleanly():
            begin.append(("begin uncleanly", core.begin_uncleanly))
        if len(core.answers) > MESSAGES_MAX:
            take = [("lose an answer", lambda: core.answers.pop(0)), *take]
        return [obey, leads, flush, fetch, fetch, serve, serve, take, take, propose, settle, begin, self._of_moves()]

    def _of_moves(self) -> list[Step]:
        """Begun seldom; who joins copies by whole rounds now and then, or it would take more events than a walk has."""
        rng, core = self._moves, self.core
        if rng is None:
            return []
        if not core.row.target or rng.randrange(20) == 0:
            if rng.randrange(4):
                return []
            if core.row.target and rng.randrange(2):
                return [("cancel", core.cancel_move)]
            target = self._target(rng)
            return [(f"move {target}", lambda: core.move(*target))]
        return [
            (f"copy {node}", lambda node=node: core.copy(node))  # type: ignore[misc]
            for node in core.row.target
            if node not in core.row.in_sync and core.may_fetch(node)
        ]

    # ── what a rough one does ────────────────────────────────────────────────────────────────────────────────────
    def _rough(self) -> list[Step]:
        core = self.core
        now = int(core.topic.configs["min.insync.replicas"])
        found: list[Step] = [
            (f"minimum {3 - now}", lambda: core.set_minimum(3 - now)),
            ("elect preferred", core.elect_preferred),
        ]
        for node in core.processes:
            found += [
                (f"restart {node}", lambda node=node: core.restart(node)),
                (f"power cut {node}", lambda node=node: core.restart(node, is_power_cut=True)),
                (f"checkpoint {node}", lambda node=node: core.checkpoint(node)),
            ]
            if core.image.nodes[node].active:
                found += [
                    (f"end {node}", lambda node=node: core.end_session(node)),
                    (f"hand over {node}", lambda node=node: core.hand_over(node)),
                ]
            if self.losses_left:
                found += [(f"lose disk {node}", lambda node=node: self._lose(core.lose_disk, node))]
                if len(core.disks) > 2:
                    found += [(f"lose log {node}", lambda node=node: self._lose(core.lose_log, node))]
        return found

    def _target(self, rng: Rng) -> tuple[int, ...]:
        left = list(self.core.processes)
        return tuple(left.pop(rng.randrange(len(left))) for _ in range(1 + rng.randrange(3)))

    def _lose(self, how: Callable[[int], None], node: int) -> None:
        self.losses_left -= 1
        how(node)


def walk(first: int, count: int, steps: int = STEPS) -> tuple[Counter[str], list[Finding]]:
    """What the walks of these seeds did, and where the oracle was not content."""
    did: Counter[str] = Counter()
    findings = []
    for seed in range(first, first + count):
        one = Walk(seed)
        if (finding := one.run(steps)) is not None:
            findings.append(finding)
        did["walks"] += 1
        did["acks"] += one.oracle.acks
        did["elections"] += one.oracle.elections
        did["moves over"] += one.core.counts.get("moves over", 0)
        did["cuts"] += one.core.counts.get("cuts", 0)
        did["unclean starts"] += one.core.row.unclean_epoch >= 0
        did["records given up by them"] += one.oracle.lost
        did["events"] += len(one.done)
    return did, findings
