"""A soak's course: start, load, kill and start again, drain, judge.

Owns the broker processes of the moment and the verdict. Always true: a broker is killed only by its own pid; the
verdict counts what was checked, not only what failed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.ledger import Books
from tests.soak.load import (
    Actor,
    GroupMember,
    Periodic,
    Reader,
    Writer,
    delete_records,
    make_and_drop_topic,
    replay,
)
from tests.soak.samples import Growth, Sample, Sampler, curve, growth
from tests.support.clients.access import Access, admin_login
from tests.support.clients.stock_clients import create_topic, end_offsets
from tests.support.processes.broker_process import BrokerProcess, await_ready, start_broker
from tests.support.processes.ports import quiet_port
from tests.support.processes.site import thermocline
from tests.support.waiting import wait_until

PARTITIONS = 3
DRAIN_S = 60.0
LAST_LIFE_S = 1.0  # at least, so that what was written before the last kill is read after it
SETTINGS: Mapping[str, object] = {
    "log.segment.bytes": "2MiB",
    "log.retention.ms": "4m",
    "log.local.retention.ms": "15s",
    "log.retention.check.interval.ms": "2s",
    "remote.log.manager.task.interval.ms": "1s",
    "thermocline.lease.ms": 3000,
    "thermocline.lease.interval.ms": 500,
    "thermocline.gc.grace.ms": "5s",
    "thermocline.cache.bytes": "64MiB",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
}


@dataclass(frozen=True)
class Plan:
    """Times in seconds; `kill_every_s` None: no kills, one life. `bytes_per_s` over all producers. Several `brokers`
    hold three replicas of everything, or as many as there are; one of them is killed at a time."""

    seconds: float
    kill_every_s: tuple[float, float] | None
    bytes_per_s: float = 2e6
    warm_up_s: float = 30.0
    admin_every_s: float = 20.0
    seed: int = 1
    brokers: int = 1
    is_secured: bool = False

    @property
    def replicas(self) -> int:
        return min(3, self.brokers)


@dataclass
class Verdict:
    """What was done, what it cost, and what was wrong."""

    plan: Plan
    seconds: float = 0.0
    lives: int = 0
    kills: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    growth: dict[str, Growth] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    """Median RSS, MiB, of every two minutes of the longest life."""
    ready_s: list[float] = field(default_factory=list)
    broker_cpu_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Soak:
    """One run in `directory`: `broker-<n>` (data) and `bucket`."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory, self._plan = directory, plan
        self._ports = {node_id: quiet_port() for node_id in range(1, plan.brokers + 1)}
        self._bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self._bucket = f"file://{directory}/bucket"
        self._serving: dict[int, tuple[int, BrokerProcess]] = {}  # node id → its life, its process
        self._verdict = Verdict(plan)
        self._rng = random.Random(plan.seed)

    def run(self) -> Verdict:
        verdict, plan = self._verdict, self._plan
        began = time.monotonic()
        (self._directory / "bucket").mkdir(parents=True, exist_ok=True)
        try:
            for node_id in self._ports:
                self._start(node_id)
            self._load(time.monotonic() + plan.seconds)
        finally:
            for _, broker in self._serving.values():
                if broker.process.poll() is None:
                    broker.kill()
        verdict.seconds = time.monotonic() - began
        return verdict

    # ── the brokers ──────────────────────────────────────────────────────────────────────────────────────────────
    def _start(self, node_id: int) -> None:
        began = time.monotonic()
        broker = self._process(node_id)
        await_ready(broker)
        self._verdict.ready_s.append(time.monotonic() - began)
        self._serving = {**self._serving, node_id: (self._verdict.lives, broker)}
        self._verdict.lives += 1

    def _process(self, node_id: int) -> BrokerProcess:
        flags = ("--node-id", str(node_id), "--listen", f"127.0.0.1:{self._ports[node_id]}")
        return start_broker(
            self._home(node_id), self._bucket, *flags, *self._secured(node_id), settings=SETTINGS, wait_ready=False
        )

    def _home(self, node_id: int) -> Path:
        return self._directory / f"broker-{node_id}"

    def _secured(self, node_id: int) -> tuple[str, ...]:
        """Broker 1 makes the cluster, the others join by its file."""
        if not self._plan.is_secured:
            return ()
        return ("--secure", *(() if node_id == 1 else ("--join", str(self._home(1) / "join.properties"))))

    @property
    def _access(self) -> Access:
        return Access(self._bootstrap, admin_login(self._home(1)) if self._plan.is_secured else None)

    def _kill_until(self, end: float) -> None:
        """Kill one and start it again at random distances; every third time once more while it recovers."""
        while self._plan.kill_every_s is not None:
            at = time.monotonic() + self._rng.uniform(*self._plan.kill_every_s)
            if at > end - LAST_LIFE_S:
                break
            _sleep_until(at)
            self._look_for_ended()
            node_id = self._rng.choice(list(self._serving))
            _, broker = self._serving[node_id]
            self._serving = {n: one for n, one in self._serving.items() if n != node_id}
            broker.kill()
            self._verdict.kills += 1
            if self._verdict.kills % 3 == 0:
                again = self._process(node_id)
                time.sleep(self._rng.uniform(0.1, 1.5))
                again.kill()
                self._verdict.kills += 1
            self._start(node_id)
        _sleep_until(end)

    def _look_for_ended(self) -> None:
        for life, broker in self._serving.values():
            if broker.process.poll() is not None:
                self._verdict.problems.append(f"broker of life {life} ended by itself: {broker.log()[-2000:]}")

    def _pids(self) -> dict[int, int]:
        return {life: broker.pid for life, broker in self._serving.values()}

    # ── the load ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _load(self, end: float) -> None:
        plan, problems = self._plan, self._verdict.problems
        # A killed leader may take with it what it alone had acknowledged, as acks=1 asks.
        acks = {"events": "all", "trimmed": "all", "quick": "1" if plan.replicas == 1 else "all"}
        books = {
            topic: {p: Books(f"{topic}-{p}", exactly_once=acks[topic] == "all") for p in range(PARTITIONS)}
            for topic in acks
        }
        more = {"min_insync_replicas": 2} if plan.replicas > 2 else {}
        for topic in books:
            create_topic(self._access, topic, PARTITIONS, plan.replicas, **more)
        share = plan.bytes_per_s / len(books)
        writers = [Writer(self._access, topic, books[topic], share, acks[topic], problems) for topic in books]
        readers = [Reader(self._access, topic, books[topic], problems) for topic in books]
        group = GroupMember(self._access, "events", problems)
        replayed = [0]
        floors: dict[int, int] = {}

        def cold(turn: int) -> None:
            replayed[0] += replay(self._access, "events", turn % PARTITIONS, 5_000)

        def trim(_: int) -> None:
            below = {p: b.position // 2 + floors.get(p, 0) // 2 for p, b in books["trimmed"].items()}
            delete_records(self._access, "trimmed", below, floors)

        def topics(turn: int) -> None:
            make_and_drop_topic(self._access, turn, plan.replicas)

        periodic = [
            Periodic("replay", plan.admin_every_s, cold, problems),
            Periodic("trim", plan.admin_every_s, trim, problems),
            Periodic("topics", plan.admin_every_s, topics, problems),
        ]
        actors: list[Actor] = [*writers, *readers, group, *periodic]
        with Sampler(self._pids) as sampler:
            for actor in actors:
                actor.start()
            self._kill_until(end)
        for actor in (*periodic, group, *writers):
            actor.stop()
        self._drain(books)
        for reader in readers:
            reader.stop()
        self._judge(books, sampler.samples)
        self._verdict.counts |= {
            "group_records": group.records,
            "group_commits": group.commits,
            "rebalances": group.generations,
            "replays": periodic[0].done,
            "replayed_records": replayed[0],
            "record_deletions": periodic[1].done,
            "topics_made_and_deleted": periodic[2].done,
            "acts_while_the_broker_was_away": sum(each.absent for each in periodic),
        }
        self._finish()

    def _drain(self, books: Mapping[str, Mapping[int, Books]]) -> None:
        """Until the readers are at every end: nothing acknowledged stays unseen."""
        for topic, partitions in books.items():
            ends = end_offsets(self._access, topic, PARTITIONS)

            def at_end(partitions: Mapping[int, Books] = partitions, ends: Mapping[int, int] = ends) -> bool:
                return all(partitions[p].position >= end for p, end in ends.items())

            try:
                wait_until(at_end, f"{topic} read to its end", DRAIN_S)
            except AssertionError as late:
                self._verdict.problems.append(str(late))

    def _judge(self, books: Mapping[str, Mapping[int, Books]], samples: list[Sample]) -> None:
        verdict = self._verdict
        every = [each for partitions in books.values() for each in partitions.values()]
        for each in every:
            verdict.problems += [*each.problems, *each.unseen()]
        once = [each for each in every if each.exactly_once]
        verdict.counts |= {
            "acked_all": sum(each.acked for each in once),
            "acked_1": sum(each.acked for each in every if not each.exactly_once),
            "checked": sum(each.seen for each in every),
            "resent_copies_of_acks_1": sum(each.duplicates for each in every if not each.exactly_once),
        }
        warm_up = self._plan.warm_up_s
        verdict.growth = {
            "rss_mib": growth(samples, lambda s: s.rss_mib, warm_up),
            "fds": growth(samples, lambda s: s.fds, warm_up),
            "threads": growth(samples, lambda s: s.threads, warm_up),
        }
        verdict.curve = curve(samples, lambda s: s.rss_mib)
        cpu: dict[int, float] = {}
        for sample in samples:
            cpu[sample.life] = max(cpu.get(sample.life, 0.0), sample.cpu_s)
        verdict.broker_cpu_s = sum(cpu.values())

    def _finish(self) -> None:
        """SIGTERM, then the bucket's own books."""
        self._look_for_ended()
        for _, broker in self._serving.values():
            code = broker.stop()
            if code != 0:
                self._verdict.problems.append(f"SIGTERM: exit code {code}: {broker.log()[-2000:]}")
            if "Traceback" in broker.log():
                at = broker.log().index("Traceback")
                self._verdict.problems.append(f"a broker's log has a stack trace: {broker.log()[at : at + 1500]}")
        verified = thermocline("bucket", "verify", self._bucket, "--deep", timeout_s=300)
        if verified.returncode != 0:
            self._verdict.problems.append(f"bucket verify: {verified.returncode}: {verified.stdout[-1500:]}")


def judged_growth(verdict: Verdict) -> list[str]:
    """Why its memory, descriptors or threads are called growing; empty when they are not.

    Within a life RSS may rise 0.3 % of its median a minute, where lives are longer than caches take to fill (the steady
    phase; nine logs fill what they remember of appends by 1.3 MiB a minute for seven minutes); across lives 1 % a life.
    Descriptors and threads: their slope may not make 5 % of the median over the run.
    """
    steady = verdict.plan.kill_every_s is None
    minutes = verdict.seconds / 60
    found = []
    rss = verdict.growth["rss_mib"]
    allowed = rss.middle * 0.003
    if steady and rss.per_minute_within > allowed:
        found.append(f"RSS grows by {rss.per_minute_within:.2f} MiB a minute, {allowed:.2f} are allowed")
    if rss.per_life_across > 0.01 * rss.middle:
        found.append(f"RSS grows by {rss.per_life_across:.2f} MiB a life")
    for name in "fds", "threads":
        one = verdict.growth[name]
        if steady and one.per_minute_within * minutes > max(2.0, 0.05 * one.middle):
            found.append(f"{name} grow by {one.per_minute_within:.2f} a minute")
        if one.per_life_across * max(1, verdict.lives) > max(3.0, 0.1 * one.middle):
            found.append(f"{name} grow by {one.per_life_across:.2f} a life")
    return found


def figures(verdict: Verdict) -> dict[str, Any]:
    """What is recorded of a run."""
    rows = {
        "minutes": round(verdict.seconds / 60, 1),
        "lives": verdict.lives,
        "kills": verdict.kills,
        **verdict.counts,
        "start_to_ready_s_max": round(max(verdict.ready_s), 2),
        "broker_cpu_share": round(verdict.broker_cpu_s / verdict.seconds, 3),
        "problems": len(verdict.problems),
    }
    for name, one in verdict.growth.items():
        rows |= {
            f"{name}_low": round(one.low, 1),
            f"{name}_median": round(one.middle, 1),
            f"{name}_high": round(one.high, 1),
            f"{name}_per_minute": round(one.per_minute_within, 3),
            f"{name}_per_life": round(one.per_life_across, 3),
        }
    return rows


def printed(name: str, verdict: Verdict) -> str:
    lines = [f"soak, {name}:"]
    lines += [f"  {key.replace('_', ' '):34} {value:>14,}" for key, value in figures(verdict).items()]
    lines += [f"  PROBLEM {problem}" for problem in verdict.problems]
    return "\n".join(lines)


def _sleep_until(at: float) -> None:
    threading.Event().wait(max(0.0, at - time.monotonic()))


if __name__ == "__main__":
    sys.exit("run python -m tests.soak")
