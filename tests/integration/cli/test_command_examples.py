"""Every example of every `--help`, run as it stands: each succeeds on a broker that has what it names.

Addresses and places are replaced by those of the test (`s3://my-bucket/log` by its bucket, `/var/lib/thermocline` by
its directories), nothing else. What cannot run here is listed with its reason; that it parses is tested in
tests/unit/cli/test_cli_main.py.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.config.authorizer import STANDARD_AUTHORIZER
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, thermocline
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until
from tests.unit.cli.test_cli_main import parsers
from thermocline.cli.main import parser

# Why an example is not run: what it needs is not on the machines that run the tests, or has a test of its own.
ELSEWHERE = {
    r"catalog\.example": "a REST catalog",
    r"--catalog glue": "AWS",
    r"spark://": "a Spark cluster",
    r"endpoint=": "an S3 server at its address: tests/unit/coldstore/test_stores_probe.py",
    r"THERMOCLINE_CRASH_AT": "tests/crash plays every point",
    r"thermocline (archive|scrub)": "a minute of Spark each: tests/integration/docs/test_docs_spark.py",
    r"cluster drain": "several brokers: tests/integration/moves/test_cluster_moves.py",
    r"cluster forget": "a broker that is gone: tests/integration/cluster/test_cluster_unclean.py",
    r"cluster (restore|rebuild)": "a cluster that is gone: tests/integration/restore/test_cluster_restore.py",
    r"thermocline serve": "tests of their own, below",
    r"user (add|delete)": "a terminal or a file of secrets: tests/integration/security/test_serve_secure.py",
    r"thermocline certificate": "a secured directory: tests/unit/cli/test_cli_secure.py",
    r"thermocline key|bucket rewrap": "an encrypted bucket: tests/integration/store/test_encrypted_bucket.py",
    r"txn abort": "a transaction that hangs; that another is refused: tests/integration/clients/test_transactions.py",
    r"txn describe": "a transactional id in use: tests/integration/clients/test_transactions.py",
}


def examples() -> list[str]:
    found = []
    for one in parsers(parser()):
        lines = (one.epilog or "").splitlines()[1:]
        assert lines, f"{one.prog} --help has no example"
        found += [line.strip() for line in lines if line.strip() not in found]
    return found


RUN = [line for line in examples() if not any(re.search(reason, line) for reason in ELSEWHERE)]


@dataclass(frozen=True)
class Place:
    """A broker, and a shell that finds it."""

    site: Site
    broker: BrokerProcess

    def __call__(self, line: str) -> subprocess.Popen[str]:
        """The example, its places replaced."""
        line = line.replace("s3://my-bucket/log", self.site.bucket.url).replace("-b 127.0.0.1:9092", "")
        line = line.replace("file:///var/lib/thermocline-bucket", self.site.bucket.url)
        line = line.replace("/var/lib/thermocline", str(self.site.data_dir())).replace("systemctl stop", "echo stopped")
        if "KEY" in line:
            line = line.replace("KEY", self._key())
        line = re.sub(r"(^|\W)thermocline(?= [a-z])", rf"\1{sys.executable} -m thermocline", line)
        environment = {**os.environ, "THERMOCLINE_BOOTSTRAP_SERVER": self.broker.kafka}
        return subprocess.Popen(
            ["bash", "-c", f"set -o pipefail; {line}"],
            cwd=self.site.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # ^C goes to all of the line, as at a terminal
        )

    def _key(self) -> str:
        listed = self.site.cli("bucket", "ls", self.site.bucket.url, "--topic", "orders").stdout
        return listed.splitlines()[1].split()[-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Topics `orders` (200 000 records, in both tiers) and `numbers`, and a group `billing` that read some."""
    home = tmp_path_factory.mktemp("examples")
    site = Site(home, DirectoryBucket(home / "bucket"))
    site.settings["thermocline.reservation.offsets"] = 1 << 20
    site.settings["authorizer.class.name"] = STANDARD_AUTHORIZER
    site.settings["super.users"] = "User:ANONYMOUS"
    with site.broker() as broker:
        place = Place(site, broker)
        for words in (["topic", "create", "orders", "-p", "12"], ["topic", "create", "numbers", "-p", "1"]):
            assert site.cli(*words, "-b", broker.kafka).returncode == 0
        lines = "".join(f"{n}\n" for n in range(200_000))
        assert thermocline("produce", "-t", "orders", "-p", "0", "-b", broker.kafka, stdin=lines).returncode == 0
        assert site.cli("tier", "seal", "--wait", "-b", broker.kafka).returncode == 0
        read = ("consume", "-t", "orders", "-g", "billing", "-n", "5000", "-b", broker.kafka)
        assert thermocline(*read).returncode == 0
        yield place


def order(line: str) -> int:
    """Those that make come first, those that take away last."""
    return next((at for at, verb in ((2, "trim"), (3, "delete"), (0, "produce")) if verb in line), 1)


def test_every_example_runs(place: Place) -> None:
    """Exit 0; `--watch` prints and ends with ^C; `topic create` of what the others need is tried under another name."""
    copied = place.site.directory / "00000000000000000000.log"
    for line in sorted(RUN, key=order):
        if line == "thermocline log dump 00000000000000000000.log":
            assert copied.stat().st_size  # `bucket dump KEY --log > …`, an example itself, wrote it
        tried = line.replace("create orders", "create orders-2")
        process = place(tried)
        if "--watch" in line:
            assert process.stdout is not None and process.stdout.readline(), line
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (line, process.returncode, out[-500:], err)
        assert "Traceback" not in err, line
    assert len(RUN) > 20


SERVE = [line for line in examples() if line.startswith("thermocline serve")]


@pytest.mark.parametrize("line", [line for line in SERVE if "--read-only" not in line])
def test_an_example_of_serve_serves(line: str, tmp_path: Path) -> None:
    """On a directory and a bucket of the test, on free ports."""
    check_that_it_serves(line, tmp_path, f"file://{tmp_path}/bucket")


@pytest.mark.parametrize("line", [line for line in SERVE if "--read-only" in line])
def test_an_example_of_a_reader_serves_beside_the_cluster_it_reads(line: str, place: Place, tmp_path: Path) -> None:
    """On the bucket of a broker that runs."""
    assert check_that_it_serves(line, tmp_path, place.site.bucket.url).endswith("mode=read-only")


def check_that_it_serves(line: str, home: Path, bucket: str) -> str:
    """Its ready line; it ends with 0 when it is told to."""
    line = line.replace("/var/lib", str(home))
    line = re.sub(r"s3://[a-z]+-bucket/\w+", bucket, line)
    command = [sys.executable, "-m", *shlex.split(line), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    out = home / "out"
    with out.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: out.read_text().startswith("ready kafka="), line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        return out.read_text().splitlines()[0]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
