"""A real broker with ten thousand partitions: how long a commit of metadata takes, and Metadata of all of them.

    bench/commits.py                       writes its section of bench/RESULTS.md
    bench/commits.py --partitions 1000 --commits 20   quickly; nothing is written

Times are what a client sees: requests through confluent-kafka's admin client, Metadata as raw requests on a socket, the
whole answer read. Default settings, directory bucket.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench.many import BENCH, Figures, Wire, replace_section, serving
from broker.wire.apis import ApiKey
from broker.wire.codec import encode_request
from broker.wire.framing import request_frame
from broker.wire.messages import MetadataRequest

SECTION: Final = "## Commits and Metadata with ten thousand partitions"
PARTITIONS: Final = 10_000
TOPIC_PARTITIONS: Final = 1_000
COMMITS: Final = 100
CACHED: Final = 300
VERSION: Final = 12
QUESTION: Final = b"".join(
    request_frame(
        ApiKey.METADATA, VERSION, 1, "commits", encode_request(ApiKey.METADATA, VERSION, MetadataRequest(topics=None))
    )
)


def timed_ms(act: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1e3


def shown(found: Sequence[float]) -> str:
    """Milliseconds."""
    ordered = sorted(found)
    return f"p50 {statistics.median(ordered):.2f}, p99 {ordered[int(len(ordered) * 0.99)]:.2f} ms of {len(ordered)}"


def create(client: AdminClient, name: str, partitions: int) -> None:
    """Returns when it is there."""
    new = NewTopic(name, partitions, 1)
    client.create_topics([new], request_timeout=120, operation_timeout=120)[name].result(180)


def alter(client: AdminClient, name: str, number: int) -> None:
    """One commit of one record."""
    entry = ConfigEntry("retention.ms", str(10**9 + number), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    for done in client.incremental_alter_configs([resource]).values():
        done.result(60)


def run(figures: Figures, root: Path, partitions: int, commits: int) -> None:
    (root / "bucket").mkdir()
    with serving(root / "data", root / "bucket") as (broker, _):
        client = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        for number in range(partitions // TOPIC_PARTITIONS):
            create(client, f"many-{number}", TOPIC_PARTITIONS)
        create(client, "small", 1)
        time.sleep(3)  # what follows a creation is over
        wire = Wire(broker.kafka)

        def ask() -> float:
            return timed_ms(lambda: wire.exchange(QUESTION))

        ask()
        figures.add(f"Metadata of all {partitions:,} partitions, kept", shown([ask() for _ in range(CACHED)]), "≤ 3 ms")
        commit, cold = [], []
        for number in range(commits):
            commit.append(timed_ms(lambda number=number: alter(client, "small", number)))  # type: ignore[misc]
            cold.append(ask())
        figures.add(f"a topic's config, one commit, {partitions:,} partitions", shown(commit), "p99 ≤ 50 ms")
        figures.add("Metadata of all after it", shown(cold), "≤ 20 ms")
        made, cold = [], []
        for number in range(commits):
            made.append(timed_ms(lambda number=number: create(client, f"one-{number}", 1)))  # type: ignore[misc]
            cold.append(ask())
        figures.add("a topic made: its root, one commit, its log", shown(made), "p99 ≤ 50 ms")
        figures.add("Metadata of all after it ", shown(cold), "≤ 20 ms")


def write(figures: Figures) -> None:
    """Replace our section of bench/RESULTS.md."""
    lines = [
        SECTION,
        "",
        f"`bench/commits.py`, {time.strftime('%Y-%m-%d')}; one broker, default settings, directory bucket.",
    ]
    lines += ["", "| what | figure | bound |", "|---|---|---|"]
    lines += [f"| {what.strip()} | {figure} | {bound} |" for what, figure, bound in figures.rows]
    replace_section(BENCH / "RESULTS.md", SECTION, "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--commits", type=int, default=COMMITS, help="of each kind")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="thermocline-commits-"))
    figures = Figures()
    try:
        run(figures, root, options.partitions, options.commits)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if (options.partitions, options.commits) == (PARTITIONS, COMMITS) and not options.dry:
        write(figures)


if __name__ == "__main__":
    main()
