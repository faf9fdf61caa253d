"""A campaign's course: start, write, harm, heal, read it all again, compare the replicas, judge.

Owns the processes of one run in one directory, and the verdict. Always true: nothing is judged before every record has
its answer and every replica is in sync.
"""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.aftermath import differences, stack_traces
from tests.campaign.books import KINDS, Book, Pause, Problems, Reading, longest_by_harm, percentile, table
from tests.campaign.clients import LAST_READERS, WRITERS, LiveReader, Writer
from tests.campaign.nemesis import Harm, Nemesis
from tests.soak.load import GroupMember
from tests.support.clients.stock_clients import end_offsets
from tests.support.processes.link_proxy import Links
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import NODES, Three, three
from tests.support.store.buckets import Bucket, DirectoryBucket, S3Bucket
from tests.support.store.s3_servers import StoreProxy, moto_server, store_proxy, versitygw_server
from tests.support.waiting import wait_until

SETTINGS: Mapping[str, object] = {
    "log.retention.ms": -1,
    "log.local.retention.ms": 3000,
    "log.retention.check.interval.ms": 1000,
    "remote.log.manager.task.interval.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
}
SEGMENT_BYTES = 256 << 10
DRAIN_S = 120.0
SHARES = {"confluent-kafka": 0.8, "kafka-python": 0.1, "aiokafka": 0.1}


@dataclass(frozen=True)
class Plan:
    """`per_s` records a second over all writers; `kinds` of harm (none named: all that are possible)."""

    seconds: float
    seed: int
    bucket: str = "directory"
    per_s: float = 2000.0
    value_bytes: int = 100
    partitions: int = 4
    libraries: tuple[str, ...] = tuple(WRITERS)
    kinds: tuple[str, ...] = ()
    harms_max: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    is_secured: bool = False
    records: int = 0
    """Harm goes on until so many were acknowledged, also after `seconds`."""


@dataclass
class Verdict:
    plan: Plan
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    pauses: dict[str, list[float]] = field(default_factory=dict)
    """Kind of harm → for each harm and partition, the longest pause that began while it lasted."""
    traces: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a client has no part in it."""


class Campaign:
    """One run in `directory`."""

    kinds: tuple[str, ...] = KINDS
    settings: Mapping[str, object] = SETTINGS

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._directory, self._plan = directory, plan
        self._verdict = Verdict(plan)
        self._began = time.monotonic()
        self._told = Problems()

    def run(self) -> Verdict:
        plan, verdict = self._plan, self._verdict
        self._directory.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            bucket, stores = stack.enter_context(_bucket(plan.bucket, self._directory))
            site = Site(self._directory, bucket, {**self.settings, **plan.settings})
            links = stack.enter_context(Links())
            urls = {node_id: _url(bucket, proxy) for node_id, proxy in stores.items()}
            cluster = stack.enter_context(three(site, links, urls, is_secured=plan.is_secured))
            self._say("three brokers serve")
            self._write_and_harm(cluster, stores)
            self._read_again(cluster)
            self._stop(cluster)
        verdict.problems += self._told.told
        verdict.counts |= {kind: self._told.counts[kind] for kind in (*self.kinds, "given up")}
        verdict.seconds = time.monotonic() - self._began
        return verdict

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)

    # ── load and harm ────────────────────────────────────────────────────────────────────────────────────────────
    def _write_and_harm(self, cluster: Three, stores: Mapping[int, StoreProxy]) -> None:
        plan, verdict = self._plan, self._verdict
        books = self._books = {
            library: [
                Book(library, partition, self._told, is_patient=WRITERS[library].is_patient)
                for partition in range(plan.partitions)
            ]
            for library in plan.libraries
        }
        for topic in books:
            cluster.create(topic, plan.partitions, min_insync_replicas=2, internal_segment_bytes=SEGMENT_BYTES)
        total = sum(SHARES[library] for library in books)
        writers: list[Writer] = [
            WRITERS[library](
                cluster.access, found, plan.per_s * SHARES[library] / total, plan.value_bytes, verdict.problems
            )
            for library, found in books.items()
        ]
        every = self._every = [book for found in books.values() for book in found]
        reader = LiveReader(cluster.access, every, plan.value_bytes, verdict.problems)
        group = GroupMember(cluster.access, plan.libraries[0], verdict.problems)
        for actor in (*writers, reader, group):
            actor.start()
        say: Callable[[str], None] = lambda text: self._say(f"{text} · {sum(b.acked for b in every):,} acked")  # noqa: E731
        wait_until(lambda: all(book.acked for book in every), "every partition is written", 60)
        nemesis = Nemesis(cluster, tuple(books), stores, random.Random(plan.seed), plan.kinds, verdict.problems, say)
        verdict.harms = nemesis.harms
        nemesis.run(time.monotonic() + plan.seconds, plan.harms_max)
        group.stop(DRAIN_S)
        for writer in writers:
            writer.stop(DRAIN_S + 60)
        say("all harm is over, nothing more is written")
        ends = {topic: end_offsets(cluster.access, topic, plan.partitions) for topic in books}
        for topic, at in ends.items():
            self._await(
                lambda topic=topic, at=at: all(reader.readings[topic, p].position >= end for p, end in at.items()),
                f"{topic} read to its end while written",
            )
        reader.stop()
        verdict.counts |= {
            "acknowledged": sum(book.acked for book in every),
            "given up by impatient clients": sum(book.given_up for book in every if not book.is_patient),
            "unanswered": sum(book.unanswered for book in every),
            "read while written": sum(each.records for each in reader.readings.values()),
            "group records": group.records,
            "group commits": group.commits,
        }
        self._judge_pauses(book.pauses for book in every)

    def _partitions(self) -> list[str]:
        """Whose replicas are compared."""
        return [book.name for book in self._every]

    def _judge_pauses(self, every: Iterable[Sequence[Pause]]) -> None:
        harms = self._verdict.harms
        for pauses in every:
            for harm, seconds in zip(harms, longest_by_harm(pauses, [h.began for h in harms]), strict=True):
                self._verdict.pauses.setdefault(harm.kind, []).append(seconds)

    def _await(self, happened: Callable[[], bool], what: str) -> None:
        try:
            wait_until(happened, what, DRAIN_S)
        except AssertionError as late:
            self._verdict.problems.append(str(late))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _read_again(self, cluster: Three) -> None:
        plan, verdict = self._plan, self._verdict
        read = cold = 0
        for topic, books in self._books.items():
            ends = end_offsets(cluster.access, topic, plan.partitions)
            readings = {book.partition: Reading(book, "at the end") for book in books}
            try:
                LAST_READERS[topic](cluster.access, readings, topic, ends, plan.value_bytes)
            except TimeoutError:
                at = {p: each.position for p, each in readings.items()}
                verdict.problems.append(f"{topic}: the last reader is at {at} of {ends}")
            for reading in readings.values():
                reading.end()
            read += sum(each.records for each in readings.values())
            cold += sum(self._local_start(cluster, book.name) for book in books)
        verdict.counts |= {"read at the end": read, "of these cold": cold}
        self._say("read from the first offsets again")

    def _stop(self, cluster: Three) -> None:
        verdict = self._verdict
        for node_id in NODES:
            code = cluster.stop(node_id)
            if code != 0:
                verdict.problems.append(f"broker {node_id}: exit code {code} after SIGTERM at the end")
            traces = stack_traces(cluster.brokers[node_id].log())
            verdict.traces = sorted({*verdict.traces, *traces})
        self._compare(cluster.site)

    def _local_start(self, cluster: Three, name: str) -> int:
        """Where the log of the replica begins that holds most on its disk: all below is in the bucket alone."""
        starts = [
            min((int(path.stem) for path in (cluster.site.data_dir(str(n)) / name).glob("*.log")), default=0)
            for n in NODES
        ]
        return min(starts)

    def _compare(self, site: Site) -> None:
        compared = 0
        for name in self._partitions():
            count, problems = differences([site.data_dir(str(node_id)) for node_id in NODES], name)
            compared += count
            self._verdict.problems += problems
        self._verdict.counts["batches compared between replicas"] = compared
        verified = site.cli("bucket", "verify", site.bucket.url, "--deep")
        if verified.returncode != 0:
            self._verdict.problems.append(f"bucket verify: {verified.returncode}: {verified.stdout[-1500:]}")
        self._say("replicas compared, bucket verified")


@contextlib.contextmanager
def _bucket(kind: str, directory: Path) -> Iterator[tuple[Bucket, Mapping[int, StoreProxy]]]:
    """An empty bucket, and for S3 each broker's own proxy before it."""
    if kind == "directory":
        yield DirectoryBucket(directory / "bucket"), {}
        return
    with contextlib.ExitStack() as stack:
        start = {"moto": moto_server, "versitygw": versitygw_server}[kind]
        server = stack.enter_context(start())
        stores = {node_id: stack.enter_context(store_proxy(server)) for node_id in NODES}
        bucket = S3Bucket(server, stack.enter_context(store_proxy(server)), f"t-{uuid.uuid4().hex[:20]}")
        stack.callback(bucket.close)
        yield bucket, stores


def _url(bucket: Bucket, proxy: StoreProxy) -> str:
    assert isinstance(bucket, S3Bucket)
    return proxy.bucket_url(bucket.name, prefix="cluster-a")


def figures(verdict: Verdict) -> dict[str, Any]:
    """What is recorded of a run."""
    pauses = [seconds for found in verdict.pauses.values() for seconds in found]
    kinds = {kind: sum(harm.kind == kind for harm in verdict.harms) for kind in sorted(verdict.pauses)}
    return {
        "seed": verdict.plan.seed,
        "minutes": round(verdict.seconds / 60, 1),
        **verdict.counts,
        "harms": len(verdict.harms),
        "harms by kind": kinds,
        "longest pause s": round(max(pauses, default=0.0), 2),
        "pause p50 s": {kind: round(percentile(found, 0.5), 2) for kind, found in sorted(verdict.pauses.items())},
        "pause p99 s": {kind: round(percentile(found, 0.99), 2) for kind, found in sorted(verdict.pauses.items())},
        "problems": len(verdict.problems),
    }


def printed(verdict: Verdict) -> str:
    shown = {name: value for name, value in figures(verdict).items() if not isinstance(value, dict)}
    lines = [f"campaign on {verdict.plan.bucket}{', secured' if verdict.plan.is_secured else ''}:"]
    lines += [f"  {name:36} {value:>14,}" for name, value in shown.items()]
    lines += table(verdict.pauses)
    lines += [f"  harms of each kind: {figures(verdict)['harms by kind']}"]
    lines += [f"  without {client}: {reason}" for client, reason in verdict.missing.items()]
    lines += [f"  stack trace in a log: {trace}" for trace in verdict.traces]
    lines += [f"  PROBLEM {problem}" for problem in verdict.problems]
    return "\n".join(lines)
