"""What drives a broker: our load generator in C, and Kafka's own ProducerPerformance and ConsumerPerformance.

Always true: a run's CPU is the broker's user and system time between the run's begin and end, over the bytes that it
moved; the client's own CPU is nobody's figure, but it comes from the same cores.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.sides import BENCH, KAFKA, Side

BUILD: Final = BENCH / ".build"
SOURCE: Final = BENCH / "peers" / "loadgen.c"
HANDSHAKES: Final = BENCH / "peers" / "handshakes.c"
SECONDS: Final = 4.0
BATCH: Final = 16 << 10  # bytes of the batches that fetch rows read: a Java producer's default
RECORD: Final = 1000
FETCH: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `nbytes` are bytes of batches, `cpu_s` the broker's; zero where a load does not tell."""

    nbytes: float
    mb_per_s: float
    cpu_s: float
    requests_per_s: float = 0.0
    p99_ms: float = 0.0

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.nbytes / 1e9) if self.nbytes else float("nan")


def build_loadgen(*, tls: bool = False) -> str:
    """Compile the load generator if it changed; its path. `tls`: the one that speaks TLS (needs OpenSSL's headers)."""
    flags = ["-DTLS", "-lssl", "-lcrypto"] if tls else []
    return _built(SOURCE, "loadgen-tls" if tls else "loadgen", "-msse4.2", "-lm", *flags)


def _built(source: Path, name: str, *flags: str) -> str:
    BUILD.mkdir(exist_ok=True)
    target = BUILD / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", "-O2", "-o", str(target), str(source), *flags], check=True)
    return str(target)


def handshakes(side: Side, *, resumed: bool, connections: int = 4, seconds: float = SECONDS) -> Run:
    """TLS handshakes as fast as they go, each with one ApiVersions request; `resumed` by a ticket of the one before."""
    command = [_built(HANDSHAKES, "handshakes", "-lssl", "-lcrypto", "-lpthread"), "-p", str(side.tls_port)]
    command += ["-c", str(connections), "-t", str(seconds), "-P", str(side.pid), *(["-r"] if resumed else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    found: dict[str, float] = json.loads(done.stdout)
    return Run(0.0, 0.0, found["cpu_ms"] / 1000, found["per_s"])


class Loadgen(AbstractContextManager["Loadgen"]):
    """One run of the load generator, under way until `finish`; over TLS on a side that has a port for it."""

    def __init__(self, side: Side, topic: str, mode: str, seconds: float, **flags: object) -> None:
        command = [build_loadgen(tls=bool(side.tls_port)), "-m", mode, "-T", topic]
        ports = (side.tls_port,) if side.tls_port else side.ports
        command += ["-p", ",".join(map(str, ports)), "-P", ",".join(map(str, side.pids))]
        command += ["-t", str(seconds)]
        for flag, value in flags.items():
            command += [f"-{flag}", str(value)]
        self._command, self._timeout_s = command, seconds + 60
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self) -> Run:
        """Wait for its end; RuntimeError with what it said if it failed."""
        out, error = self._process.communicate(timeout=self._timeout_s)
        if self._process.returncode != 0:
            raise RuntimeError(f"{' '.join(self._command)} ended with {self._process.returncode}: {error.strip()}")
        found: dict[str, float] = json.loads(out)
        nbytes = found["MBps"] * 1e6 * found["secs"]
        cpu_s = found["usr"] + found["sys"]
        return Run(nbytes, found["MBps"], cpu_s, found["rps"], found["p99"])

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def produce(
    side: Side,
    topic: str,
    connections: int,
    batch: int,
    record: int = RECORD,
    *,
    acks: str = "1",
    rate: float = 0,
    seconds: float = SECONDS,
    warm: float = 1.0,
) -> Run:
    """Produce with 5 requests in flight a connection, as fast as it goes or at `rate` requests/s (open loop)."""
    flags = {"c": connections, "k": 5, "b": batch, "s": record, "A": acks, "R": rate, "w": warm}
    return Loadgen(side, topic, "produce", seconds, **flags).finish()


def fetching(
    side: Side, topic: str, partitions: int, end: int, *, rate: float = 0, seconds: float = SECONDS, **flags: object
) -> Loadgen:
    """Begin fetches of 1 MB, one in flight a partition, in order up to offset `end` and from 0 again.

    The partitions hold what `fill` wrote. `rate` is in requests/s over all partitions.
    """
    defaults = {"c": partitions, "k": 1, "b": BATCH, "s": RECORD, "F": FETCH, "S": end, "R": rate}
    return Loadgen(side, topic, "fetch", seconds, **{**defaults, **flags})


def fetch(side: Side, topic: str, partitions: int, end: int, **options: Any) -> Run:
    """`fetching`, to its end."""
    return fetching(side, topic, partitions, end, **options).finish()


def fill(side: Side, topic: str, partitions: int, nbytes: int, acks: str = "1") -> int:
    """Write about `nbytes` in all; returns offsets a partition that are surely there."""
    with Loadgen(side, topic, "produce", 100, c=partitions, k=5, b=BATCH, s=RECORD, A=acks, w=0, B=nbytes) as load:
        nbytes = min(nbytes, int(load.finish().nbytes))  # a busy disk may not take all in that time
    batch_records = BATCH // (RECORD + 12)
    return int(nbytes / partitions / BATCH * 0.9) * batch_records


def producer_performance(
    side: Side,
    topic: str,
    records: int,
    warmup: int,
    acks: str | None = None,
    record: int = RECORD,
    *,
    commit_ms: int | None = None,
) -> Run:
    """kafka-producer-perf-test with the client's defaults: batches, acks=all, idempotence; another `acks` switches
    idempotence off, as it does in the client. With `commit_ms` in transactions, a commit as often as that; the time of
    commits is part of the run. The broker's CPU is of warm-up and run."""
    words = ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"]
    words += ["--num-records", str(records + warmup), "--warmup-records", str(warmup), "--record-size", str(record)]
    words += ["--command-property", f"bootstrap.servers={side.address}"]
    words += [f"acks={acks}"] if acks is not None else []
    words += ["--transaction-duration-ms", str(commit_ms)] if commit_ms is not None else []
    out, cpu_s = _tool(side, words)
    # the last line that is no quantile of the warm-up: "N records sent, R records/sec (X MB/sec), A ms avg latency, …"
    found = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec .*?([\d.]+) ms 99th", out, re.MULTILINE)
    if not found:
        raise RuntimeError(f"no result in: {out[-2000:]}")
    rate, p99 = float(found[-1][1]), float(found[-1][2])
    return Run((records + warmup) * record, rate * record / 1e6, cpu_s, rate, p99)


def transaction_latency(
    side: Side, topic: str, *, rate: int, seconds: int, warm: int, commit_ms: int, record: int = RECORD
) -> tuple[float, float]:
    """Median and p99 in ms, from when a record was due to a consumer at read_committed (TransactionLatency.java)."""
    words = [str(BENCH / "peers" / "TransactionLatency.java"), side.address, topic, str(rate), str(seconds)]
    out, _ = _tool(side, [*words, str(warm), str(commit_ms), str(record)])
    p50, p99, *_ = map(float, out.split())
    return p50, p99


def consumer_performance(side: Side, topic: str, records: int) -> Run:
    """kafka-consumer-perf-test from the earliest offset on, in a group of its own; its fetch time, not its joining."""
    words = ["org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", side.address, "--topic", topic]
    words += ["--num-records", str(records), "--timeout", "60000", "--hide-header"]
    out, cpu_s = _tool(side, words)
    rows = [line.split(", ") for line in out.splitlines() if line.count(", ") >= 9]
    if not rows:
        raise RuntimeError(f"no result in: {out[-2000:]}")
    megabytes, fetch_ms = float(rows[-1][2]), float(rows[-1][7])
    nbytes = megabytes * (1 << 20)
    return Run(nbytes, nbytes / fetch_ms / 1e3, cpu_s, float(rows[-1][9]))


def _tool(side: Side, words: list[str]) -> tuple[str, float]:
    """Run one of Kafka's tools; what it printed, and the CPU seconds the broker spent meanwhile."""
    before = side.cpu_seconds()
    done = subprocess.run([KAFKA, "tool", *words], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-2000:]}")
    return done.stdout, side.cpu_seconds() - before
