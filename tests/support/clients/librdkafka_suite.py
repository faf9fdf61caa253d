"""librdkafka's own tests, from the source in the npm package `node-rdkafka`, built and run against brokers of ours.

Owns getting and building them (minutes, once a machine: `$LIBRDKAFKA_SUITE_HOME` keeps them), what they need of Apache
Kafka (a folder like a release of it, made of the peer's jars), and reading their report. Nothing of theirs is changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.kafka.kafka_tools import class_path

PACKAGE: Final = "node-rdkafka@3.6.1"  # librdkafka 2.12
_STEP_S: Final = 900.0
_NEEDED: Final = ("npm", "gcc", "g++", "make", "javac", "apt-get", "dpkg")
_CONFIGURE: Final = ("--disable-ssl", "--disable-gssapi", "--disable-curl", "--disable-optimization")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one of its tests."""

    state: str
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LibrdkafkaSuite:
    """`tests` is its folder of that name, built; `kafka` looks like a release of Apache Kafka."""

    tests: Path
    kafka: Path

    def run(
        self, folder: Path, bootstrap: str, left_out: Iterable[str], *, at_once: int, timeout_s: float
    ) -> tuple[dict[str, Outcome], str]:
        """All tests but `left_out` (by name); what came of each, and all that was printed.

        Not run are those that need no broker, and those that cut sockets: by their numbers, of a process whose other
        tests use these numbers again (0084_destroy_flags read from another's connection).
        """
        config, report = folder / "test.conf", folder / "report.json"
        config.write_text(f"metadata.broker.list={bootstrap}\n")
        done = subprocess.run(
            ["./test-runner", "-L", "-E", f"-p{at_once}", "-Q"],
            cwd=self.tests,
            env={
                **{name: value for name, value in os.environ.items() if name != "CI"},  # there it runs fewer at once
                "LD_LIBRARY_PATH": "../src:../src-cpp",
                "TEST_KAFKA_VERSION": "4.0.0",
                "RDKAFKA_TEST_CONF": str(config),
                "TEST_REPORT": str(report),
                "TESTS_SKIP": ",".join(name.partition("_")[0] for name in left_out),
                "KAFKA_PATH": str(self.kafka),
                "BROKERS": bootstrap,
            },
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert report.exists(), printed[-8_000:]
        found = json.loads(report.read_text())["tests"].values()
        return {of["name"]: Outcome(of["state"], of["extra"], of["duration"]) for of in found}, printed


def require_librdkafka_suite() -> LibrdkafkaSuite:
    """Build it unless it is there; skip, saying what is missing, where that cannot be done. `require_kafka` first."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"librdkafka's tests need {', '.join(missing)}; none is needed to use the project")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = Path(os.environ.get("LIBRDKAFKA_SUITE_HOME", cache / "thermocline-librdkafka-suite"))
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers of one run ask at once
        with contextlib.suppress(FileNotFoundError):
            if (home / "built").read_text() == PACKAGE:
                return _suite(home)
        try:
            _build(home)
        except subprocess.CalledProcessError as failed:
            pytest.skip(f"librdkafka's tests cannot be built: {failed.stderr.strip()[-300:]}")
        (home / "built").write_text(PACKAGE)
        return _suite(home)


def _suite(home: Path) -> LibrdkafkaSuite:
    return LibrdkafkaSuite(home / "package/deps/librdkafka/tests", home / "kafka")


def _build(home: Path) -> None:
    shutil.rmtree(home / "package", ignore_errors=True)
    packed = _step(home, "npm", "pack", "--silent", PACKAGE).split()[-1]
    _step(home, "tar", "xzf", packed)
    # Headers that only its tests need; they are unpacked, not installed.
    headers = home / "headers"
    headers.mkdir(exist_ok=True)
    _step(headers, "apt-get", "download", "rapidjson-dev")
    for found in headers.glob("rapidjson-dev_*.deb"):
        _step(headers, "dpkg", "-x", str(found), ".")
    source = home / "package/deps/librdkafka"
    _step(source, "./configure", *_CONFIGURE, CPPFLAGS=f"-isystem{headers}/usr/include")
    _step(source, "make", "-j2", "libs")
    _step(source / "tests", "make", "-j2", "test-runner")
    kafka = _kafka(home / "kafka")
    _step(source / "tests/java", "make", KAFKA_PATH=str(kafka))


def _kafka(folder: Path) -> Path:
    """`bin` and `libs` as in a release, as far as its tests use them."""
    shutil.rmtree(folder, ignore_errors=True)
    for place in ("bin", "libs"):
        (folder / place).mkdir(parents=True)
    clients = next(jar for jar in Path(class_path()).parent.glob("kafka-clients-*.jar") if "-test" not in jar.name)
    (folder / "libs" / clients.name).symlink_to(clients)
    java = f'exec java -Xmx256m -XX:TieredStopAtLevel=1 -cp "$CLASSPATH:{class_path()}"'
    scripts = {"kafka-run-class.sh": java, "kafka-topics.sh": f"{java} org.apache.kafka.tools.TopicCommand"}
    for name, command in scripts.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\n{command} "$@"\n')
        script.chmod(0o755)
    return folder


def _step(folder: Path, *command: str, **environment: str) -> str:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_STEP_S,
        check=True,
    ).stdout
