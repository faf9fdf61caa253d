"""Three real brokers with thousands of replicas each that nobody uses: how long they take to make, memory, idle CPU.

    bench/replicas.py                      5 000 partitions of three replicas; writes its section of bench/RESULTS.md
    bench/replicas.py --partitions 500 --idle 10 --settle 10   quickly; nothing is written

Everything is read from outside: /proc of the brokers' processes. Default settings, directory bucket. CPU is user and
system time, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench.failover import Brokers, cluster
from bench.many import BENCH, Figures, cpu_s, private_kib, replace_section, topics_of

SECTION: Final = "## Three brokers, many replicas"
PARTITIONS: Final = 5_000
AT_ONCE: Final = 10
"""Topics of one request."""


def idle_cpu(brokers: Brokers, seconds: float) -> list[float]:
    """Share of a core of each broker over a time in which nobody asks anything, by node id."""
    pids = [broker.pid for _, broker in sorted(brokers.running.items())]
    began, spent = time.monotonic(), [cpu_s(pid) for pid in pids]
    time.sleep(seconds)
    took = time.monotonic() - began
    return [(cpu_s(pid) - before) / took for pid, before in zip(pids, spent, strict=True)]


def memory(brokers: Brokers) -> list[float]:
    """KiB of each broker, by node id."""
    return [private_kib(broker.pid) for _, broker in sorted(brokers.running.items())]


def create(brokers: Brokers, topics: list[tuple[str, int]]) -> float:
    """Seconds until every replica is in sync."""
    client = brokers.admin()
    began = time.monotonic()
    for at in range(0, len(topics), AT_ONCE):
        wanted = [NewTopic(name, num_partitions=size, replication_factor=3) for name, size in topics[at : at + AT_ONCE]]
        for created in client.create_topics(wanted, request_timeout=120, operation_timeout=120).values():
            created.result(180)
    brokers.settled()
    return time.monotonic() - began


def each(shares: list[float]) -> str:
    """Of every broker."""
    return ", ".join(f"{share:.2%}" for share in shares)


def run(figures: Figures, brokers: Brokers, count: int, idle_s: float, settle_s: float) -> None:
    figures.add("idle CPU without partitions, share of a core, each broker", each(idle_cpu(brokers, min(idle_s, 20))))
    before = memory(brokers)
    figures.add(
        f"create {count:,} partitions of three replicas: until all are in sync",
        f"{create(brokers, topics_of(count)):.1f} s",
    )
    figures.add(f"idle CPU with {count:,} replicas just created", each(idle_cpu(brokers, idle_s)))
    time.sleep(settle_s)
    figures.add(f"idle CPU with {count:,} replicas", each(idle_cpu(brokers, idle_s)), "≤ 1 %")
    kib = [(after - was) / count for after, was in zip(memory(brokers), before, strict=True)]
    figures.add("memory of an idle replica, the broker with the most", f"{max(kib):.1f} KiB", "≤ 24 KiB")


def write(figures: Figures) -> None:
    """Replace our section of bench/RESULTS.md."""
    lines = [
        SECTION,
        "",
        f"`bench/replicas.py`, {time.strftime('%Y-%m-%d')}; three brokers of one machine, default settings,",
    ]
    lines += ["directory bucket.", "", "| what | figure | bound |", "|---|---|---|"]
    lines += [f"| {what} | {figure} | {bound} |" for what, figure, bound in figures.rows]
    replace_section(BENCH / "RESULTS.md", SECTION, "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long idleness is measured")
    parser.add_argument(
        "--settle", type=float, default=150.0, metavar="SECONDS", help="what follows a creation is over"
    )
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    figures = Figures()
    with cluster() as brokers:
        run(figures, brokers, options.partitions, options.idle, options.settle)
    if options.partitions == PARTITIONS and options.idle >= 60 and not options.dry:
        write(figures)


if __name__ == "__main__":
    main()
