"""The course of a campaign with transactions: write the input, copy it by loops under harm, drain, read, judge.

Each library has an input and an output topic of as many partitions, and a group of two loops. Always true: nothing is
judged before every input record has its answer and the loops ended; then the output shows each of them once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import IsolationLevel

from tests.campaign.books import KINDS, Book, Reading, percentile
from tests.campaign.clients import ConfluentWriter, Writer, read_confluent
from tests.campaign.nemesis import Nemesis
from tests.campaign.run import DRAIN_S, SEGMENT_BYTES, SETTINGS, Campaign, Plan
from tests.campaign.transactions.copies import COPY_KINDS, Copies
from tests.campaign.transactions.loops import Loop, LoopNemesis
from tests.campaign.transactions.programs import PROGRAMS, commands
from tests.campaign.transactions.readers import (
    LiveCopiesReader,
    aborted_records,
    committed_positions,
    log_ends,
    read_again,
)
from tests.support.clients.stock_clients import end_offsets
from tests.support.processes.three_brokers import Three
from tests.support.store.s3_servers import StoreProxy

LIBRARIES = tuple(PROGRAMS)
LOOPS = 2  # of each library, in one group
ABORTED = 100  # of 1 000 transactions are aborted on purpose
OUTCOMES = ("committed", "aborted")
LOOP_REST_S = (3.0, 12.0)
SETTINGS_OF_TRANSACTIONS = {
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2_000,
}


class InputWriter(ConfluentWriter):
    """In few, large batches: many small ones with acks=all keep the disk so busy that transactions wait."""

    linger_ms = 200


class CopyCampaign(Campaign):
    """One run in `directory`."""

    settings: Mapping[str, object] = {**SETTINGS, **SETTINGS_OF_TRANSACTIONS}
    kinds = tuple(dict.fromkeys((*KINDS, *COPY_KINDS)))

    def __init__(self, directory: Path, plan: Plan) -> None:
        super().__init__(directory, plan)
        self._loops: list[Loop] = []

    def _write_and_harm(self, cluster: Three, stores: Mapping[int, StoreProxy]) -> None:
        try:
            self._copy_and_harm(cluster, stores)
        finally:
            for loop in self._loops:
                loop.kill_all()

    def _copy_and_harm(self, cluster: Three, stores: Mapping[int, StoreProxy]) -> None:
        plan, verdict, access = self._plan, self._verdict, cluster.access
        problems = verdict.problems
        folder = self._directory / "loops"
        folder.mkdir()
        programs, verdict.missing = commands(plan.libraries, access, folder)
        self._input = {
            library: [Book(f"in-{library}", partition, self._told) for partition in range(plan.partitions)]
            for library in programs
        }
        every = self._every = [book for books in self._input.values() for book in books]
        for library in programs:
            for topic in (f"in-{library}", f"out-{library}"):
                cluster.create(topic, plan.partitions, min_insync_replicas=2, internal_segment_bytes=SEGMENT_BYTES)
        writers: list[Writer] = [
            InputWriter(access, books, plan.per_s / len(programs), plan.value_bytes, problems)
            for books in self._input.values()
        ]
        live = {
            f"out-{library}": Copies(f"out-{library}", books, "while written", plan.value_bytes)
            for library, books in self._input.items()
        }
        reader = LiveCopiesReader(access, live, plan.partitions, problems)
        self._loops += [
            Loop(
                f"{library}-{number}",
                library,
                [*command, f"in-{library}", f"out-{library}", f"loops of {library}", f"{library}-{number}"],
                folder,
                ABORTED,
                problems,
            )
            for library, command in programs.items()
            for number in range(LOOPS)
        ]

        def say(text: str) -> None:
            copied = sum(copies.records for copies in live.values())
            self._say(f"{text} · {sum(b.acked for b in every):,} acked, {copied:,} copied")

        for loop in self._loops:
            loop.start()
        for actor in (*writers, reader):
            actor.start()
        loop_nemesis = LoopNemesis(self._loops, random.Random(plan.seed), LOOP_REST_S, problems, say)
        loop_nemesis.start()
        self._await(lambda: all(copies.records for copies in live.values()), "every output is written")
        say("every output is written")
        topics = [*live, *(f"in-{library}" for library in programs)]
        nemesis = Nemesis(cluster, topics, stores, random.Random(plan.seed), plan.kinds, problems, say)
        verdict.harms = nemesis.harms
        began = time.monotonic()
        nemesis.run(began + plan.seconds, plan.harms_max, lambda: sum(book.acked for book in every) >= plan.records)
        for writer in writers:
            writer.stop(DRAIN_S + 60)
        say("all harm to brokers is over, nothing more is written")
        loop_nemesis.harm_is_over.set()
        self._await(lambda: all(copies.have_all for copies in live.values()), "the loops copied everything")
        seconds = time.monotonic() - began
        loop_nemesis.stop(DRAIN_S)
        for loop in self._loops:
            loop.end()
        for library in programs:
            self._look_for_open(cluster, f"out-{library}")
        reader.stop()
        say("the loops ended")
        committed, aborted = ([ms for loop in self._loops for ms in loop.told(outcome)] for outcome in OUTCOMES)
        verdict.counts |= {
            "input acknowledged": sum(book.acked for book in every),
            "input unanswered": sum(book.unanswered for book in every),
            "copied a second": round(sum(copies.records for copies in live.values()) / seconds),
            "read while written": sum(copies.records for copies in live.values()),
            "transactions committed, as told": len(committed),
            "transactions aborted, as told": len(aborted),
            "ms of a committed one, p50": round(percentile(committed, 0.5)),
            "ms of a committed one, p99": round(percentile(committed, 0.99)),
            "loop lives": sum(loop.lives for loop in self._loops),
            "loops that could not go on": sum(loop.gave_up for loop in self._loops),
            **{f"loops: {kind}": count for kind, count in sorted(loop_nemesis.harms.items())},
        }
        for copies in live.values():
            copies.end()
        self._judge_pauses([copies.pauses for copies in live.values()])

    def _partitions(self) -> list[str]:
        topics = (f"{way}-{library}" for way in ("in", "out") for library in self._input)
        return [f"{topic}-{partition}" for topic in topics for partition in range(self._plan.partitions)]

    def _look_for_open(self, cluster: Three, topic: str) -> None:
        """All loops ended, so each partition's last stable offset must reach its end."""
        ends = log_ends(cluster.access, topic, self._plan.partitions)
        self._await(
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
            f"no transaction is open in {topic}",
        )

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _read_again(self, cluster: Three) -> None:
        plan, verdict, access = self._plan, self._verdict, cluster.access
        counts: Counter[str] = Counter()
        for library, books in self._input.items():
            source, sink = f"in-{library}", f"out-{library}"
            ends = end_offsets(access, source, plan.partitions)
            committed = committed_positions(access, f"loops of {library}", source, plan.partitions)
            if committed != ends:
                verdict.problems.append(f"{source}: the group committed {committed}, the input ends at {ends}")
            copies = Copies(sink, books, "at the end", plan.value_bytes)
            readings = {book.partition: Reading(book, "at the end") for book in books}
            try:
                read_confluent(access, readings, source, ends, plan.value_bytes)
                read_again(access, sink, copies, plan.partitions)
                aborted, every = aborted_records(access, sink, plan.partitions)
            except TimeoutError as late:
                verdict.problems.append(f"{library}: {late or 'the input is not read again in time'}")
                continue
            for reading in readings.values():
                reading.end()
            copies.end()
            counts["input read at the end"] += sum(each.records for each in readings.values())
            counts["output read at the end"] += copies.records
            counts["transactions seen"] += len(copies.transactions)
            counts["records hidden by read_committed"] += every - copies.records
            counts["of these aborted on purpose"] += aborted
        starts = (self._local_start(cluster, name) for name in self._partitions())
        counts["offsets of both in the bucket alone"] = sum(starts)
        verdict.counts |= counts
        self._say("read from the first offsets again")
