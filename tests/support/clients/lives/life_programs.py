"""The lives of stock clients as processes: how each is had and started, and what it printed.

A client that needs a program or a package that cannot be had is skipped, with the reason. A process is ended by its own
pid when its `with` block ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients.access import Access
from tests.support.clients.go_modules import go, needs_go
from tests.support.clients.kafkajs_package import require_kafkajs
from tests.support.kafka.kafka_tools import SCRIPT, class_path, require_kafka
from tests.support.repository import ROOT

_SCRAM_SINCE: Final = (2, 6, 1)
_HERE: Final = Path(__file__).parent
Command = tuple[list[str], dict[str, str]]
"""The program with what comes before its arguments, and its own environment."""


@dataclass
class LifeProcess:
    process: subprocess.Popen[bytes]
    printed: Path
    errors: Path

    def lines(self, word: str) -> list[str]:
        """What followed `word` in the lines so far that begin with it."""
        whole = self.printed.read_text().rpartition("\n")[0].splitlines()
        return [line.partition(" ")[2] for line in whole if line.startswith(f"{word} ")]

    def last(self, word: str) -> int:
        found = self.lines(word)
        return int(found[-1]) if found else 0

    def check(self) -> None:
        """AssertionError when it failed."""
        assert self.process.poll() in (None, 0), f"exit code {self.process.returncode}: {self.said()}"

    def said(self) -> str:
        return self.errors.read_text(errors="replace")[-4000:]

    @property
    def has_ended(self) -> bool:
        self.check()
        return self.process.poll() == 0


def _python(client: str) -> Callable[[Path], Command]:
    return lambda _: ([sys.executable, "-m", "tests.support.clients.lives.python_life", client], {})


def _kcat(_: Path) -> Command:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not on the path (apt-get install kcat)")
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, timeout=30, check=False).stdout
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < _SCRAM_SINCE:
        pytest.skip("librdkafka before 2.6.1 cannot log in by SCRAM, not to Kafka 4 either (its pull request 4895)")
    return [sys.executable, "-m", "tests.support.clients.lives.kcat_life"], {}


def _go(name: str) -> Callable[[Path], Command]:
    def made(work: Path) -> Command:
        program = work / f"{name}-life"
        with needs_go(f"{name}'s programs"):
            go(_HERE / name, "build", "-o", str(program), ".")
        return [str(program)], {}

    return made


def _kafkajs(work: Path) -> Command:
    modules = require_kafkajs(work)
    return ["node", str(_HERE / "kafkajs_life.js")], {"NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


def _java(_: Path) -> Command:
    require_kafka()
    return ["java", "-Xmx256m", "-cp", f"{SCRIPT.parent / 'conf'}:{class_path()}", str(_HERE / "Life.java")], {}


PROGRAMS: Final[dict[str, Callable[[Path], Command]]] = {
    "confluent-kafka": _python("confluent-kafka"),
    "kafka-python": _python("kafka-python"),
    "aiokafka": _python("aiokafka"),
    "kcat": _kcat,
    "franz-go": _go("franz"),
    "sarama": _go("sarama"),
    "kafkajs": _kafkajs,
    "java": _java,
}


@contextlib.contextmanager
def life(
    client: str, work: Path, access: Access, topic: str, copy: str, group: str, transactional_id: str, records: int
) -> Iterator[LifeProcess]:
    """`client` at its life; `work` is an empty folder for it."""
    command, environment = PROGRAMS[client](work)
    file = access.write_java(work / "access") if client == "java" else access.write_json(work / "access")
    out, err = work / "printed", work / "errors"
    with out.open("wb") as printed, err.open("wb") as errors:
        process = subprocess.Popen(
            [*command, str(file), topic, copy, group, transactional_id, str(records)],
            stdout=printed,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
    try:
        yield LifeProcess(process, out, err)
    finally:
        process.kill()
        process.wait(30)
