"""The README is true: its commands run, in its order, and do what it says; the doc pages name only what exists."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import thermocline
from broker.config.own import OWN
from coldstore.url import parse_bucket_url
from seams.interpreter import this_build
from tests.support.processes.ports import free_port
from tests.support.repository import ROOT
from thermocline.cli.clients.client_properties import HTTP_TOKEN

README = ROOT / "README.md"
KAFKA, HTTP = "127.0.0.1:9092", "127.0.0.1:9644"
TIMEOUT_S = 60

# What the words in GUARANTEES' last column stand for.
CHECKS = {
    "simulation": "tests/sim/seeds/test_*.py",
    "crash points": "tests/crash/test_*.py",
    "crash points under load": "tests/crash/test_*.py",
    "lost-disk tests": "tests/integration/restore/test_lost_disk*.py",
    "property tests": "tests/unit/**/test_*property.py",
    "client matrix": "tests/support/clients/stock_clients.py",
    "client matrix hot, across the seam, cold": "tests/support/clients/stock_clients.py",
    "`bucket verify`": "thermocline/cli/bucket/checks.py",
    "model tests": "tests/unit/broker/transactions/test_transactions_machine.py",
    "moves and kills with stock clients": "tests/integration/clients/test_transactions.py",
    "two-broker tests": "tests/unit/broker/membership/test_broker_membership.py",
    "bit flips in unit tests": "tests/unit/coldstore/test_coldstore_segment_object.py",
    "unit tests": "tests/unit/hotstore/flush/test_hotstore_flusher.py",
    "the dearest frame of every API": "tests/fuzz/test_proportion_is_held.py",
    "kill -9 after a deletion": "tests/integration/clients/test_groups_topic_again.py",
    "hostile frames": "tests/unit/broker/wire/test_wire_hostile.py",
    "store faults": "tests/integration/store/test_store_faults*.py",
    "archive tests": "tests/unit/pipeline/jobs/test_archive_exactly_once.py",
    "Spark tests": "tests/integration/pipeline/test_spark_s*.py",
    "three real brokers": "tests/integration/cluster/test_cluster_cases.py",
    "lost logs": "tests/unit/broker/membership/test_lost_logs.py",
    "an older copy": "tests/unit/broker/membership/test_older_copy.py",
    "several simulated brokers": "tests/sim/seeds/test_sim_several.py",
    "cluster status": "tests/integration/cluster/test_cluster_status.py",
    "two brokers in every order": "tests/unit/broker/partition/test_log_start_of_replicas.py",
    "two brokers": "tests/unit/broker/partition/removing/test_removal.py",
    "damaged replicas": "tests/unit/broker/test_lost_while_running.py",
    "failure scenarios": "tests/playbooks/test_*.py",
    "fitness": "tests/unit/broker/controller/test_fitness.py",
    "refused openings": "tests/unit/broker/test_refused_openings.py",
    "unclean starts": "tests/unit/broker/controller/test_unclean_recovery.py",
    "all power cut in the simulation": "tests/sim/seeds/test_sim_power_cut_all.py",
    "lost clusters in the simulation": "tests/sim/seeds/test_sim_restoring.py",
    "restored clusters": "tests/integration/restore/test_cluster_restore.py",
    "rebuilt clusters": "tests/integration/restore/test_cluster_rebuild.py",
    "every API beside Kafka": "tests/integration/kafka/test_authorizer_beside.py",
    "the rules of all APIs": "tests/unit/broker/security/test_rules_table.py",
    "three secured brokers": "tests/integration/security/test_s*_secure*.py",
    "encrypted objects": "tests/unit/coldstore/encryption/test_*.py",
    "encrypted buckets": "tests/integration/store/test_encrypted_bucket.py",
    "a store that counts": "tests/unit/coldstore/stores/test_stores_read_only.py",
    "a proxy that saw every request": "tests/integration/broker/test_read_only.py",
    "a read-only mount": "tests/integration/broker/test_read_only.py",
    "a user without the right": "tests/integration/broker/test_read_only.py",
    "three simulated brokers with a read-only one beside them": "tests/sim/seeds/test_sim_archive.py",
    "stock clients": "tests/integration/broker/test_read_only.py",
    "playbook of look times": "tests/unit/broker/read_only/test_look_times.py",
}


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page: its language and its lines."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """One a line, comments cut off."""
        lines = (re.sub(r"\s+# .*$", "", line).strip() for line in self.text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def fences(page: Path) -> list[Fence]:
    return [Fence(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S)]


class Reader:
    """Somebody who types what the README says, in an empty directory, on ports of their own."""

    def __init__(self, directory: Path, timeout_s: int = TIMEOUT_S) -> None:
        self.directory, self.timeout_s = directory, timeout_s
        self.kafka, self.http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.broker: subprocess.Popen[str] | None = None
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PWD": str(directory),
            "THERMOCLINE_LISTENERS": self.kafka,
            "THERMOCLINE_HTTP": self.http,
            "THERMOCLINE_BOOTSTRAP_SERVER": self.kafka,
        }

    def here(self, text: str) -> str:
        return text.replace(KAFKA, self.kafka).replace(HTTP, self.http)

    def serve(self, command: str) -> str:
        """Start the broker as typed; its ready line."""
        with (self.directory / "serve.log").open("w") as log:
            self.broker = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self.here(command)}"],
                cwd=self.directory,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.broker.stdout is not None
        line = self.broker.stdout.readline()
        assert line.startswith("ready "), (self.directory / "serve.log").read_text()
        return line

    def type(self, command: str) -> str:
        """Run a command as typed; what it printed. It must succeed."""
        return self._run(["/bin/sh", "-c", self.here(command)], command)

    def python(self, program: str) -> str:
        return self._run([sys.executable, "-c", self.here(program)], program)

    def _run(self, arguments: list[str], shown: str) -> str:
        done = subprocess.run(
            arguments,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{shown}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def stop(self) -> int:
        assert self.broker is not None
        self.broker.send_signal(signal.SIGTERM)
        return self.broker.wait(TIMEOUT_S)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        if made.broker is not None and made.broker.poll() is None:
            made.broker.kill()
            made.broker.wait()


def tour() -> list[Fence]:
    page = README.read_text()
    begin = page.index("<!-- tour:")
    end = page.index("## Three brokers")  # tests/integration/docs/test_docs_cluster.py
    found = re.findall(r"^```(\w*)\n(.*?)^```", page[begin:end], re.M | re.S)
    return [Fence(*fence) for fence in found]


def test_every_command_of_the_tour_runs(reader: Reader) -> None:
    """In order, on an empty directory: each succeeds, and prints what the text around it promises."""
    printed: dict[str, str] = {}
    without_kcat: list[str] = []
    for fence in tour():
        if fence.language == "python":
            assert reader.python(fence.text).split() == ["0", "b'1'"]  # `earliest` is what `seq` wrote first
        if fence.language != "sh":
            continue
        for command in fence.commands:
            if command == "pip install .":
                assert (ROOT / "pyproject.toml").exists()  # the environment of `make test` is that installation
            elif command.startswith("thermocline serve"):
                line = reader.serve(command)
                assert line.startswith(f"ready kafka={reader.kafka} http={reader.http} ")
            elif "kcat" in command and shutil.which("kcat") is None:
                without_kcat.append(command)
            else:
                printed[command] = reader.type(command)
    consumed = next(text for command, text in printed.items() if "consume" in command)
    assert consumed.split() == ["1", "2", "3"]
    version = next(text for command, text in printed.items() if command == "thermocline --version")
    assert version.strip() == f"thermocline {thermocline.__version__}, {this_build()}"
    listed = next(text for command, text in printed.items() if "bucket ls" in command)
    assert "events" in listed
    assert reader.stop() == 0
    if without_kcat:
        pytest.skip(f"kcat is not installed; the other commands ran, these did not: {without_kcat}")


def test_the_python_of_the_tour_reads_what_was_written(reader: Reader) -> None:
    """On a topic of its own the consumer gets the very record the producer sent."""
    reader.serve(next(command for fence in tour() for command in fence.commands if command.startswith("thermocline s")))
    (program,) = (fence.text for fence in tour() if fence.language == "python")
    assert reader.python(program).split() == ["0", "b'21.5'"]
    assert reader.stop() == 0


def test_make_targets_exist() -> None:
    """Every `make …` in the README and its pages is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M):
            assert target in targets, f"{page}: make {target}"


def test_the_s3_example_is_a_bucket_url() -> None:
    """The one command that needs somebody's bucket is checked as far as its URL."""
    urls = [url for fence in fences(README) for url in re.findall(r"--bucket '([^']+)'", fence.text)]
    assert urls
    for url in urls:
        assert "my-bucket" in str(parse_bucket_url(url))


def test_every_config_that_is_named_exists() -> None:
    """`thermocline.…` in the README and the docs is a config, a module, a metric, or a record's header."""
    known = (
        {definition.name for definition in OWN} | snapshot_properties() | {"thermocline.rewrite", HTTP_TOKEN}
    )  # a header, a line of a client's file
    modules = {f"thermocline.{name}" for name in ("cli", "read", "format_version", "level", "decoders")}
    for page in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        for name in re.findall(r"(?<![_/])thermocline\.[a-z_]+(?:\.[a-z_]+)*", page.read_text()):
            assert name in known | modules or is_module(name), f"{page} names {name}"


def snapshot_properties() -> set[str]:
    """Names that archived tables carry, up to the first hyphen: as the test above reads a page."""
    source = (ROOT / "thermocline/pipeline/jobs/tables/iceberg_table.py").read_text()
    return set(re.findall(r'"(thermocline\.[a-z]+)[a-z-]*"', source))


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def test_architecture_names_files_that_exist() -> None:
    """Every `….py` of ARCHITECTURE.md is one file, named so that it can be found; every folder exists."""
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    houses = ("seams", "logformat", "hotstore", "coldstore", "tiering", "broker", "thermocline", "tests")
    files = {str(path.relative_to(ROOT)) for house in houses for path in (ROOT / house).rglob("*.py")}
    for name in re.findall(r"`([\w/]+\.py)`", page):
        assert any(path == name or path.endswith(f"/{name}") for path in files), name
    for name in re.findall(r"`([\w/]+)/`", page):
        assert (ROOT / name).is_dir(), name


def test_every_guarantee_names_a_check_that_exists() -> None:
    """Each row's last column is made of known words, and each word stands for files that are there."""
    page = (ROOT / "docs/GUARANTEES.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    rows = [row for row in rows if set(row[1].strip()) - set("-")]
    assert len(rows) >= 10
    for row in rows:
        words = row[3].strip()
        named = [words] if words in CHECKS else [word.strip() for word in words.split(",")]
        for word in named:
            assert word in CHECKS, f"{row[1].strip()}: {word!r} is no known check"
            assert list(ROOT.glob(CHECKS[word])), f"{row[1].strip()}: {word!r} has no {CHECKS[word]}"


def test_every_format_page_has_a_worked_example() -> None:
    """A byte format is documented by a table and an example."""
    for page in sorted((ROOT / "docs/formats").glob("*.md")):
        assert re.search(r"^## (Worked e|E)xample", page.read_text(), re.M), page
        assert "|---" in page.read_text(), f"{page} has no table"


def test_decisions_are_complete() -> None:
    """An ADR says why, what was decided, and what it costs or what else was possible; the index knows it."""
    index = (ROOT / "docs/adr/README.md").read_text()
    for page in sorted((ROOT / "docs/adr").glob("0*.md")):
        text = page.read_text()
        assert page.name in index, page
        for part in (r"\*\*Context", r"\*\*Decision", r"\*\*(Costs|Alternatives)"):
            assert re.search(part, text), f"{page} has no {part}"


def test_the_changelog_says_something() -> None:
    """Keep a Changelog: the newest section has entries."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"\A# Changelog\n[^#]+\n## \d[^#]+### \w+\n- .+", changes)


def test_no_machine_of_ours_is_in_the_docs() -> None:
    """A clone reads the same pages: no path of the machine they were written on."""
    for page in (README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        assert not re.search(r"/work/|/root/|/home/\w+", page.read_text()), page
