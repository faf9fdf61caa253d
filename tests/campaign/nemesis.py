"""The nemesis: one harm after the other to brokers, to the links between them, to their ways to the store.

Owns which harm comes when (a seed decides) and that all of it is taken back. Always true: a process is ended by its own
pid, and runs again when a harm is over; what a broker did that nobody asked for (ending by itself, a bad exit code) is
a problem. Must not know records.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.metadata.records import NO_LEADER
from tests.support.processes.three_brokers import NODES, Three
from tests.support.store.s3_servers import Fault, StoreProxy
from tests.support.waiting import wait_until

WHOLE_S = 90.0
STARTS_S = 60.0
HELD_S = 20.0
SESSION_S = 9.0
PAST_ALL_S = (16.0, 34.0)
"""Longer than a session and than either lease; its end is beyond replica.lag.time.max.ms too."""
STORE_FAILS = (
    Fault("status", status=503, rate=0.1),
    Fault("reset", rate=0.05),
    Fault("lost", rate=0.05),
    Fault("reset_after", rate=0.05),
)
STORE_AWAY = (Fault("stall", seconds=HELD_S, rate=0.5), Fault("reset"))


@dataclass
class Harm:
    """What was done, in monotonic seconds; `ended` when it was taken back, `whole` when all replicas were in sync."""

    kind: str
    what: str
    began: float
    ended: float = 0.0
    whole: float = 0.0


class Nemesis:
    """`topic`: whose leaders it looks for. `stores`: each broker's own way to the store, where there is one."""

    def __init__(
        self,
        cluster: Three,
        topics: Sequence[str],
        stores: Mapping[int, StoreProxy],
        rng: random.Random,
        kinds: Sequence[str],
        problems: list[str],
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._topics, self._stores, self._rng = cluster, topics, stores, rng
        self._problems, self._say = problems, say
        self._acts: dict[str, Callable[[], str]] = {
            "kill leader": lambda: self._kill(self._leader()),
            "kill controller": lambda: self._kill(self._controller()),
            "kill follower": lambda: self._kill(self._follower()),
            "stop leader": lambda: self._stop(self._leader()),
            "stop controller": lambda: self._stop(self._controller()),
            "stop follower": lambda: self._stop(self._follower()),
            "cut off one": self._cut_off_one,
            "cut off leader": self._cut_off_leader,
            "cut one link": self._cut_one_link,
            "one way only": self._one_way_only,
            "restart loop": self._restart_loop,
            "SIGTERM": self._terminate,
            "kill two": self._kill_two,
            "kill all": self._kill_all,
            "none": self._nothing,
        }
        if stores:
            self._acts["cut from the store"] = self._cut_from_store
            self._acts["store away"] = self._store_away
        self._kinds = [kind for kind in self._acts if not kinds or kind in kinds]
        assert self._kinds, f"none of {kinds} is possible here; possible are {list(self._acts)}"
        self.harms: list[Harm] = []

    def run(self, until: float, harms_max: int | None = None, is_enough: Callable[[], bool] = lambda: True) -> None:
        """Harm until then, and until it `is_enough`; each kind comes once before any comes again."""
        order: list[str] = []
        while (time.monotonic() < until or not is_enough()) and (harms_max is None or len(self.harms) < harms_max):
            if not order:
                order = self._rng.sample(self._kinds, len(self._kinds))
            self._one(order.pop())
            self._rest(1.0, 4.0)
            if self._rng.random() < 0.75:
                self.await_whole()
        self._take_back()
        self.await_whole()

    def _one(self, kind: str) -> None:
        fails_meanwhile = bool(self._stores) and "store" not in kind and self._rng.random() < 0.3
        harm = Harm(kind, "", time.monotonic())
        self.harms.append(harm)
        if fails_meanwhile:
            self._to_all_stores(*STORE_FAILS)
        try:
            harm.what = self._acts[kind]()
        finally:
            self._take_back()
        harm.ended = time.monotonic()
        fails = ", the store failing meanwhile" if fails_meanwhile else ""
        self._say(f"{kind}: {harm.what}{fails}, {harm.ended - harm.began:.1f} s")
        self._look_for_ended()

    def await_whole(self) -> None:
        """Every broker has a session, every partition a leader, every set all replicas."""
        began = time.monotonic()
        try:
            wait_until(self._cluster.is_whole, "whole", WHOLE_S)
        except AssertionError:
            image = self._cluster.image()
            short = [
                f"{topic.name}-{index} leader {row.leader} in sync {row.in_sync}"
                for topic in image.topics.values()
                for index, row in enumerate(topic.rows)
                if row.leader == NO_LEADER or set(row.in_sync) != set(row.replicas)
            ]
            after = self.harms[-1].kind if self.harms else "the start"
            sessions = sorted(self._cluster.active())
            self._problems.append(f"not whole {WHOLE_S:.0f} s after {after}: sessions {sessions}, {short[:6]}")
            self._say(self._problems[-1])
        else:
            self._say(f"whole after {time.monotonic() - began:.1f} s")
        self._look_for_ended()
        for harm in self.harms:
            harm.whole = harm.whole or time.monotonic()

    # ── whom ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _leader(self) -> int:
        rows = self._cluster.rows(self._rng.choice(self._topics))
        led = [row.leader for row in rows if row.leader != NO_LEADER]
        return self._rng.choice(led or list(NODES))

    def _controller(self) -> int:
        return self._cluster.controller()

    def _follower(self) -> int:
        """One that leads nothing of a random topic, else any."""
        leaders = {row.leader for row in self._cluster.rows(self._rng.choice(self._topics))}
        return self._rng.choice([node_id for node_id in NODES if node_id not in leaders] or list(NODES))

    def _others(self, node_id: int) -> list[int]:
        return [other for other in NODES if other != node_id]

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────
    def _kill(self, node_id: int) -> str:
        self._cluster.kill(node_id)
        self._rest(0.0, 1.5 * SESSION_S)
        self._start(node_id)
        return f"broker {node_id}"

    def _kill_two(self) -> str:
        two = self._rng.sample(NODES, 2)
        for node_id in two:
            self._cluster.kill(node_id)
        self._rest(0.0, 1.5 * SESSION_S)
        self._start(*two)
        return f"brokers {two}"

    def _kill_all(self) -> str:
        order = self._rng.sample(NODES, 3)
        for node_id in order:
            self._cluster.brokers[node_id].process.kill()
        for node_id in order:
            self._cluster.kill(node_id)
        self._start(*order)
        return f"started in the order {order}"

    def _stop(self, node_id: int) -> str:
        seconds = self._rng.uniform(*self._rng.choice(((2.0, 8.0), PAST_ALL_S)))
        self._pause(node_id)
        self._rest(seconds, seconds)
        self._cluster.go_on(node_id)
        return f"broker {node_id} for {seconds:.1f} s"

    def _pause(self, node_id: int) -> None:
        """SIGSTOP, but not while it holds the lock of a root in a directory bucket: flock(2) cannot be broken from
        outside, so there a stopped process keeps all others waiting until it goes on or is killed."""

        def stopped_outside_a_commit() -> bool:
            self._cluster.pause(node_id)
            stripes = self._cluster.site.directory.glob("bucket/.thermocline/locks/*")
            inodes = {str(stripe.stat().st_ino) for stripe in stripes}
            held = {word.rpartition(":")[2] for word in Path("/proc/locks").read_text().split()}
            if not inodes & held:
                return True
            self._cluster.go_on(node_id)
            return False

        wait_until(stopped_outside_a_commit, "a moment outside a commit")

    def _restart_loop(self) -> str:
        """Killed again while it starts, registers, catches up."""
        node_id, turns = self._rng.choice(NODES), self._rng.randint(3, 5)
        self._cluster.kill(node_id)
        for _ in range(turns):
            self._cluster.start(node_id, wait_ready=False)
            self._rest(0.2, 5.0)
            self._cluster.kill(node_id)
        self._start(node_id)
        return f"broker {node_id}, {turns + 1} kills"

    def _terminate(self) -> str:
        node_id = self._rng.choice(NODES)
        began = time.monotonic()
        try:
            code = self._cluster.stop(node_id)
        except subprocess.TimeoutExpired:
            self._problems.append(f"broker {node_id} did not end after SIGTERM: {self._tail(node_id)}")
            self._cluster.kill(node_id)
        else:
            if code != 0:
                self._problems.append(f"broker {node_id}: exit code {code} after SIGTERM: {self._tail(node_id)}")
        took = time.monotonic() - began
        self._rest(0.0, 4.0)
        self._start(node_id)
        return f"broker {node_id}, ended after {took:.1f} s"

    def _start(self, *node_ids: int) -> None:
        starting = {node_id: self._cluster.start(node_id, wait_ready=False) for node_id in node_ids}
        for node_id, broker in starting.items():
            try:
                broker.await_ready(STARTS_S)
            except AssertionError as never:
                self._problems.append(f"broker {node_id} does not start: {str(never)[-2000:]}")
                self._say(f"broker {node_id} does not start")

    def _look_for_ended(self) -> None:
        for node_id in set(NODES) - self._cluster.alive():
            code = self._cluster.brokers[node_id].process.returncode
            self._problems.append(f"broker {node_id} ended by itself with {code}: {self._tail(node_id)}")
            self._say(f"broker {node_id} ended by itself with {code}")
            self._cluster.gone(node_id)
            self._start(node_id)

    def _tail(self, node_id: int) -> str:
        return self._cluster.brokers[node_id].log()[-1500:]

    # ── links ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _cut_off(self, node_id: int) -> str:
        assert self._cluster.links is not None
        self._cluster.links.cut_both(str(node_id), map(str, self._others(node_id)))
        return f"broker {node_id} for {self._hold():.1f} s"

    def _cut_off_one(self) -> str:
        return self._cut_off(self._rng.choice(NODES))

    def _cut_off_leader(self) -> str:
        return self._cut_off(self._leader())

    def _cut_one_link(self) -> str:
        assert self._cluster.links is not None
        one, other = self._rng.sample(NODES, 2)
        self._cluster.links.cut_both(str(one), [str(other)])
        return f"{one} and {other} for {self._hold():.1f} s"

    def _one_way_only(self) -> str:
        assert self._cluster.links is not None
        source, sink = self._rng.sample(NODES, 2)
        self._cluster.links.cut(str(source), str(sink))
        return f"nothing of {source} reaches {sink} for {self._hold():.1f} s"

    def _cut_from_store(self) -> str:
        node_id = self._rng.choice(NODES)
        self._stores[node_id].faults(*STORE_AWAY)
        return f"broker {node_id} for {self._hold():.1f} s"

    def _store_away(self) -> str:
        self._to_all_stores(*STORE_AWAY)
        return f"for {self._hold():.1f} s"

    def _to_all_stores(self, *faults: Fault) -> None:
        for proxy in self._stores.values():
            proxy.faults(*faults)

    def _take_back(self) -> None:
        if self._cluster.links is not None:
            self._cluster.links.heal()
        self._to_all_stores()

    def _nothing(self) -> str:
        return f"for {self._hold():.1f} s"

    def _hold(self) -> float:
        seconds = self._rng.uniform(*self._rng.choice(((2.0, 8.0), PAST_ALL_S)))
        self._rest(seconds, seconds)
        return seconds

    def _rest(self, least: float, most: float) -> None:
        threading.Event().wait(self._rng.uniform(least, most))  # the harm's length, not a wait for anything
