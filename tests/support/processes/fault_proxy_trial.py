"""A broker's life with the fault proxy between it and the store: load, faults, heal, and what must hold afterwards.

Owns the acts that the tests of test_store_faults_broker share, and the figures they print. Always true: faults begin
after the broker is ready (a store that gets its probe wrong is refused, and should be) unless a test says otherwise;
what is claimed to have been struck is read from the proxy's counts of faults that took effect.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaException, Message

from tests.support.clients.steady_load import SteadyLoad, assert_kept
from tests.support.clients.stock_clients import (
    ReadFailed,
    Record,
    Written,
    alter_topic,
    create_topic,
    delete_topic,
    digest,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, status
from tests.support.store.bucket_books import orphans
from tests.support.store.buckets import S3Bucket
from tests.support.store.s3_servers import Fault, ProxyCounts, StoreProxy
from tests.support.waiting import wait_until

HOT = ("hot-a", "hot-b")
OLD = "old"  # lies in the bucket alone before the first fault
OLD_COUNT = 120
PAUSE_S = 0.02
ACKED_IN_AN_ACT = 100  # more than may be under way when it begins
HELD_S = 3.0  # beyond the deadlines of `SETTINGS`
DRAINS_S = 30.0
WRITES_RESUME_S = 10.0
SETTINGS = {
    "thermocline.store.timeout.ms": 2000,
    "thermocline.store.upload.timeout.ms": 2000,
    "thermocline.cache.bytes": 0,
    "thermocline.prefetch.bytes": 0,
}
# Every way of failing, and whether an answer needs a body for it to strike.
KINDS = (
    Fault("status", status=500),
    Fault("status", status=503),
    Fault("status", status=409),
    Fault("reset"),
    Fault("reset_after"),
    Fault("lost"),
    Fault("stall", seconds=HELD_S),
    Fault("empty200"),
    Fault("error200"),
)
BODY_KINDS = (Fault("truncate"), Fault("flip"))
WITH_BODY = ("get_range", "list")  # a conditional GET is nearly always answered 304
STEADY = ("get_range", "get_if_changed", "list", "put", "put_if_absent", "put_if_match", "delete_many")


def pairs(operations: Sequence[str]) -> set[tuple[str, str]]:
    """(operation, fault) for every fault that can strike."""
    found = {(operation, kind.name) for operation in operations for kind in KINDS}
    return found | {(operation, kind.name) for operation in operations if operation in WITH_BODY for kind in BODY_KINDS}


def mixed(wanted: set[tuple[str, str]], rate: float) -> list[Fault]:
    """Rules that strike each operation's requests with probability `rate`, each wanted fault alike."""
    kinds = {kind.name: kind for kind in (*KINDS, *BODY_KINDS)}
    rules = []
    for operation, group in itertools.groupby(sorted(wanted), key=lambda pair: pair[0]):
        names = [name for _, name in group]
        left = 1.0
        for name in names:
            share = rate / len(names)
            rules.append(replace(kinds[name], operation=operation, rate=share / left))
            left -= share
    return rules


class TimedLoad(SteadyLoad):
    """A steady load that also knows how long each record took from `produce` to its acknowledgement."""

    def __init__(self, bootstrap: str, topics: tuple[str, ...], pause_s: float = PAUSE_S) -> None:
        super().__init__(bootstrap, topics)
        self.taken: list[tuple[float, float]] = []  # (when acknowledged, seconds)
        self.errors: Counter[str] = Counter()
        self._pause_s = pause_s

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._stop.is_set():
            for topic in self.acked:
                value = f"{topic} {next(numbers)} ".encode() + self._padding
                with contextlib.suppress(BufferError):
                    self._producer.produce(topic, value, partition=0, on_delivery=self._delivered)
            self._producer.poll(self._pause_s)
            self._stop.wait(self._pause_s)  # the load's rate, not a wait for anything

    def _delivered(self, error: object, message: Message) -> None:
        super()._delivered(error, message)  # type: ignore[arg-type]
        if error is None:
            self.taken.append((time.monotonic(), message.latency() or 0.0))
        else:
            self.errors[str(error)] += 1

    def p99_ms(self, since: float, until: float = float("inf")) -> float:
        """Of the records acknowledged in [since, until)."""
        found = sorted(seconds for when, seconds in self.taken if since <= when < until)
        assert found, "nothing was acknowledged"
        return found[int(len(found) * 0.99)] * 1000


@dataclass
class Figures:
    """What a trial measured; `printed` is what the note wants."""

    p99_before_ms: float = 0.0
    p99_during_ms: float = 0.0
    acked: int = 0
    calm_per_s: float = 0.0
    refused_per_s: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    writes_resume_s: float = 0.0
    drain_s: float = 0.0
    cold_reads: int = 0
    cold_failures: Counter[str] = field(default_factory=Counter)
    churned: int = 0
    churn_failures: Counter[str] = field(default_factory=Counter)
    orphans_left: int = 0
    orphans_claimed: int = 0
    bursts: list[str] = field(default_factory=list)
    acts: dict[str, float] = field(default_factory=dict)
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def printed(self, name: str) -> str:
        lines = [
            f"{name}: {self.acked} acked, p99 before {self.p99_before_ms:.1f} ms, during {self.p99_during_ms:.1f} ms",
            f"  requests/s: calm {self.calm_per_s:.1f}, at 100 % refused {self.refused_per_s:.1f} {dict(self.refused)}",
            f"  after heal: first ack {self.writes_resume_s:.2f} s, drained {self.drain_s:.1f} s",
            f"  cold reads during faults {self.cold_reads} {dict(self.cold_failures)}",
            f"  topics made and deleted {self.churned} {dict(self.churn_failures)}; orphans {self.orphans_left}, "
            f"after the next claim {self.orphans_claimed}, after gc 0",
            f"  seconds by act {self.acts}",
            *(f"  {burst}" for burst in self.bursts),
        ]
        for operation, group in itertools.groupby(sorted(self.hits.items()), key=lambda hit: hit[0][0]):
            lines.append(f"  hits {operation}: " + ", ".join(f"{kind} {count}" for (_, kind), count in group))
        return "\n".join(lines)


class Trial:
    """One site under faults. Call the acts in order; every act asserts what it must see."""

    def __init__(self, site: Site, pause_s: float = PAUSE_S) -> None:
        assert isinstance(site.bucket, S3Bucket)
        self.site = site
        self.proxy: StoreProxy = site.bucket.proxy
        self.figures = Figures()
        self._began = time.monotonic()
        self.before: list[Record] = []
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._churns = itertools.count()

    def _done(self, act: str) -> None:
        now = time.monotonic()
        self.figures.acts[act] = round(now - self._began, 1)
        self._began = now

    # ── before ───────────────────────────────────────────────────────────────────────────────────────────────────
    def prepare(self, broker: BrokerProcess) -> None:
        """Topics; one of them sunk, so that every read of it is cold."""
        small = {"internal_segment_bytes": 8192}
        for topic in HOT:
            create_topic(broker.kafka, topic, **small)
        create_topic(broker.kafka, "short", **small, retention_bytes=20_000, local_retention_bytes=10_000)
        create_topic(broker.kafka, OLD, internal_segment_bytes=65_536, local_retention_ms=1)
        written = [Written(b"%d" % n, bytes((n * 7 + i * i) % 251 for i in range(1000))) for n in range(OLD_COUNT)]
        write_confluent(broker.kafka, OLD, 0, written, "none", True)
        self.before = read_confluent(broker.kafka, OLD, {0: OLD_COUNT})
        wait_until(lambda: status(broker, OLD)[0]["cold_bytes"] > 0, "something cold", 30)
        self._done("prepare")

    @contextlib.contextmanager
    def load(self, broker: BrokerProcess) -> Iterator[TimedLoad]:
        """Producers, a reader of what is cold, and topics that come and go."""
        self._stop.clear()
        others = [
            threading.Thread(target=run, args=(broker.kafka,), daemon=True) for run in (self._reread, self._churn)
        ]
        with TimedLoad(broker.kafka, (*HOT, "short"), self._pause_s) as load:
            for other in others:
                other.start()
            try:
                yield load
            finally:
                self._stop.set()
                load.stop(WRITES_RESUME_S)
                for other in others:
                    other.join(60)
                    assert not other.is_alive()

    def _reread(self, bootstrap: str) -> None:
        """The old topic from its start, again and again; whoever gets to the end has seen the same."""
        while not self._stop.is_set():
            try:
                found = read_confluent(bootstrap, OLD, {0: OLD_COUNT}, 10.0)
            except ReadFailed as failed:
                self.figures.cold_failures[str(failed)[:60]] += 1
                continue
            assert digest(found) == digest(self.before)
            self.figures.cold_reads += 1

    def _churn(self, bootstrap: str) -> None:
        while not self._stop.is_set():
            name = f"churn-{next(self._churns)}"
            try:
                create_topic(bootstrap, name, 4, internal_segment_bytes=16_384)
                delete_topic(bootstrap, name)
                self.figures.churned += 1
            except KafkaException as failed:
                self.figures.churn_failures[failed.args[0].name()] += 1

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────
    def calm(self, load: TimedLoad, seconds: float) -> None:
        """How it is without faults."""
        began, before = time.monotonic(), self.proxy.counts()
        wait_until(lambda: time.monotonic() - began > seconds, "the calm act", seconds + 10)
        self.figures.p99_before_ms = load.p99_ms(began)
        self.figures.calm_per_s = _asked(before, self.proxy.counts()).total() / (time.monotonic() - began)
        self._done("calm")

    def strike(self, wanted: set[tuple[str, str]], rate: float, timeout_s: float) -> None:
        """Until every wanted fault took effect on its operation."""
        before = self.proxy.counts().hits

        def missing() -> set[tuple[str, str]]:
            struck = self.proxy.counts().hits - before
            left = {pair for pair in wanted if not struck[pair]}
            # An operation that met them all goes on with a few, so that those seldom sent come to be sent.
            others = wanted - {pair for pair in wanted if pair[0] in {operation for operation, _ in left}}
            self.proxy.faults(*mixed(left, rate), *mixed(others, rate / 10))
            return left

        try:
            wait_until(lambda: not missing(), "every fault took effect on every operation", timeout_s)
        except AssertionError as hole:
            raise AssertionError(f"{hole}; never struck: {sorted(missing())}") from None
        self._done("strike")

    def refuse_everything(self, load: TimedLoad, seconds: float, status_code: int = 503) -> None:
        """100 %: records are acknowledged, and how much does the store still see?"""
        self.proxy.faults(Fault("status", status=status_code))
        began, before, acked = time.monotonic(), self.proxy.counts(), load.acked_count

        def long_enough() -> bool:
            return time.monotonic() - began > seconds and load.acked_count - acked >= ACKED_IN_AN_ACT

        wait_until(long_enough, "records acknowledged at 100 %", seconds + 20)
        self.figures.refused = _asked(before, self.proxy.counts())
        self.figures.refused_per_s = self.figures.refused.total() / (time.monotonic() - began)
        self._done("refuse")

    def burst(self, load: TimedLoad, status_code: int, rate: float, seconds: float) -> None:
        """A share of all requests refused for a while; a line of figures about it."""
        self.proxy.faults(Fault("status", status=status_code, rate=rate))
        began, before, acked = time.monotonic(), self.proxy.counts(), load.acked_count

        def long_enough() -> bool:
            if time.monotonic() - began <= seconds or load.acked_count - acked < ACKED_IN_AN_ACT:
                return False
            return bool((self.proxy.counts().hits - before.hits).total())

        wait_until(long_enough, f"{status_code} at {rate:.0%} struck", seconds + 20)
        after, took = self.proxy.counts(), time.monotonic() - began
        asked = _asked(before, after).total()
        struck = (after.hits - before.hits).total()
        p99 = load.p99_ms(began)
        self.figures.bursts.append(
            f"{status_code} at {rate:4.0%}: {asked / took:6.1f} requests/s, {struck} struck, produce p99 {p99:.1f} ms"
        )

    def heal(self, load: TimedLoad, since: float) -> float:
        """No more faults; when that was."""
        healed = time.monotonic()
        self.figures.p99_during_ms = load.p99_ms(since, healed)
        self.proxy.faults()
        acked = load.acked_count
        wait_until(lambda: load.acked_count > acked, "an acknowledgement after the heal", WRITES_RESUME_S)
        self.figures.writes_resume_s = time.monotonic() - healed
        self.figures.hits = self.proxy.counts().hits
        self._done("heal")
        return healed

    # ── after ────────────────────────────────────────────────────────────────────────────────────────────────────
    def await_drained(self, broker: BrokerProcess, healed: float) -> None:
        """Everything sealed is in the bucket within 30 s of the heal (G13)."""

        def drained() -> bool:
            return not any(p["copy_lag_bytes"] for topic in (*HOT, "short", OLD) for p in status(broker, topic))

        wait_until(drained, "the backlog drained", DRAINS_S - (time.monotonic() - healed))
        self.figures.drain_s = time.monotonic() - healed
        self._done("drain")

    def check_records(self, broker: BrokerProcess, load: TimedLoad) -> None:
        """What was acknowledged is there once, in order, unchanged: from the hot tier, and then from the cold one."""
        self.figures.acked = load.acked_count
        assert not load.errors, load.errors
        ends = {topic: end_offsets(broker.kafka, topic, 1) for topic in HOT}
        hot = {topic: read_confluent(broker.kafka, topic, ends[topic]) for topic in HOT}
        for topic in HOT:
            assert_kept(load.acked[topic], hot[topic])
            alter_topic(broker.kafka, topic, local_retention_ms=1)
        for topic in HOT:
            wait_until(lambda topic=topic: self._sunk(broker, topic), f"{topic} sunk", 30)  # type: ignore[misc]
            assert digest(read_confluent(broker.kafka, topic, ends[topic])) == digest(hot[topic])
        assert digest(read_confluent(broker.kafka, OLD, {0: OLD_COUNT})) == digest(self.before)
        self._done("records")

    def _sunk(self, broker: BrokerProcess, topic: str) -> bool:
        (at,) = status(broker, topic)
        return at["local_log_start_offset"] >= at["remote_end_offset"] > 0

    def check_bucket(self) -> None:
        """After the next claim gc leaves no orphan, and every byte of the bucket is what was written."""
        self.figures.orphans_left = len(orphans(self.site.bucket))
        with self.site.broker() as broker:
            topics = [*HOT, "short", OLD]
            wait_until(lambda: not any(status(broker, t)[0]["blocked_by"] for t in topics), "claimed")
            assert broker.stop() == 0
        self.figures.orphans_claimed = len(orphans(self.site.bucket))
        gc = self.site.cli("bucket", "gc", self.site.bucket.url, "--delete")
        assert gc.returncode == 0, gc.stderr
        assert orphans(self.site.bucket) == {}
        verify = self.site.cli("bucket", "verify", self.site.bucket.url, "--deep")
        assert verify.returncode == 0, verify.stdout + verify.stderr
        self._done("bucket")


def _asked(before: ProxyCounts, after: ProxyCounts) -> Counter[str]:
    return after.requests - before.requests
