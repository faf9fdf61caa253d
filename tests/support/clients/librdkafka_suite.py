"""librdkafka's own tests, from the source in the npm package `node-rdkafka`, built and run against brokers of ours.

Owns getting and building them (minutes, once a machine: `$LIBRDKAFKA_SUITE_HOME` keeps them), what they need of Apache
Kafka (a folder like a release of it, made of the peer's jars), and reading their report. Nothing of theirs is changed.
They are built with TLS, and with the HTTP client that gets tokens (OIDC).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.support.kafka.kafka_tools import class_path

PACKAGE: Final = "node-rdkafka@3.6.1"  # librdkafka 2.12
_STEP_S: Final = 900.0
_RUNS_MAX: Final = 4
_NEEDED: Final = ("npm", "gcc", "g++", "make", "javac", "apt-get", "dpkg")
_CONFIGURE: Final = ("--enable-ssl", "--enable-curl", "--disable-gssapi", "--disable-optimization")
_HEADERS: Final = ("rapidjson-dev", "libssl-dev", "libcurl4-openssl-dev")
_BUILT: Final = " ".join((PACKAGE, *_CONFIGURE))
_COMMAND_CONFIG: Final = "${KAFKA_COMMAND_CONFIG:+--command-config $KAFKA_COMMAND_CONFIG}"

_SMALL_SEGMENTS: Final = "asks for segment.bytes below 1 MiB, which Kafka 4 refuses as well (KIP-1030)"
ALWAYS_LEFT_OUT: Final = MappingProxyType(
    {
        "0077_compaction": _SMALL_SEGMENTS,
        "0091_max_poll_interval_timeout": "waits a minute for what its client does alone",
        "0101_fetch_from_follower": "needs a rack at each broker",
        "0118_commit_rebalance": "two members have to come within the first delay of a group: Kafka's 3 s, here 100 ms",
        "0123_connections_max_idle": "waits for what its client does alone",
        "0129_fetch_aborted_msgs": _SMALL_SEGMENTS,
        "0139_offset_validation_mock": "asks a broker of theirs that is none, for a minute and a half",
    }
)
"""However its clients connect."""
SETTINGS: Final = MappingProxyType(
    {
        "num.partitions": 4,  # as their brokers have it
        "group.initial.rebalance.delay.ms": 100,
        "thermocline.reservation.offsets": 1_000_000,
    }
)
"""Of brokers that they are run against."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one of its tests. A test of which all parts were skipped passed in no time: `seconds` is 0."""

    state: str
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LibrdkafkaSuite:
    """`tests` is its folder of that name, built; `kafka` looks like a release of Apache Kafka."""

    tests: Path
    kafka: Path

    def run(
        self,
        folder: Path,
        configs: Mapping[str, object],
        *,
        chosen: Iterable[str] = (),
        left_out: Iterable[str] = (),
        at_once: int,
        timeout_s: float,
        is_quick: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[dict[str, Outcome], str]:
        """All tests that need a broker but `left_out`, or the `chosen` ones only (either by name; those of the same
        number come along); what came of each, and all that was printed. `configs`: librdkafka's, as of every client.

        Not run, unless chosen, are those that need no broker, and those that cut sockets: by their numbers, of a
        process whose other tests use these numbers again (0084_destroy_flags read from another's connection).
        """
        config, report = folder / "test.conf", folder / "report.json"
        config.write_text("".join(f"{name}={value}\n" for name, value in configs.items()))
        asked = _numbers(chosen)
        own = {
            **{name: value for name, value in os.environ.items() if name != "CI"},  # there it runs fewer at once
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "TEST_KAFKA_VERSION": "4.0.0",
            "RDKAFKA_TEST_CONF": str(config),
            "TEST_REPORT": str(report),
            **({"TESTS": asked} if asked else {"TESTS_SKIP": _numbers(left_out)}),
            "KAFKA_PATH": str(self.kafka),
            "BROKERS": str(configs["bootstrap.servers"]),
            **environment,
        }
        words = ["./test-runner", *([] if asked else ["-L"]), "-E", f"-p{at_once}", *(["-Q"] if is_quick else [])]
        # On a busy machine a handshake calls into a producer that 0097_ssl_verify has deleted: librdkafka++ then dies.
        for _ in range(_RUNS_MAX):
            done = subprocess.run(
                words, cwd=self.tests, env=own, capture_output=True, text=True, errors="replace", timeout=timeout_s
            )
            if done.returncode != -signal.SIGSEGV:
                break
        printed = done.stdout + done.stderr
        assert report.exists(), printed[-8_000:]
        found = json.loads(report.read_text())["tests"].values()
        tests = {of["name"]: Outcome(of["state"], of["extra"], of["duration"]) for of in found}
        del tests["<MAIN>"]  # the runner itself
        return tests, printed


def _numbers(names: Iterable[str]) -> str:
    return ",".join(sorted({name.partition("_")[0] for name in names}))


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
            if (home / "built").read_text() == _BUILT:
                return _suite(home)
        try:
            _build(home)
        except subprocess.CalledProcessError as failed:
            pytest.skip(f"librdkafka's tests cannot be built: {failed.stderr.strip()[-300:]}")
        (home / "built").write_text(_BUILT)
        return _suite(home)


def _suite(home: Path) -> LibrdkafkaSuite:
    return LibrdkafkaSuite(home / "package/deps/librdkafka/tests", home / "kafka")


def _build(home: Path) -> None:
    shutil.rmtree(home / "package", ignore_errors=True)
    packed = _step(home, "npm", "pack", "--silent", PACKAGE).split()[-1]
    _step(home, "tar", "xzf", packed)
    flags = _dependencies(home / "headers")
    source = home / "package/deps/librdkafka"
    _step(source, "./configure", *_CONFIGURE, **flags)
    _step(source, "make", "-j2", "libs")
    _step(source / "tests", "make", "-j2", "test-runner")
    kafka = _kafka(home / "kafka")
    _step(source / "tests/java", "make", KAFKA_PATH=str(kafka))


def _dependencies(folder: Path) -> dict[str, str]:
    """Flags for the compiler: headers that are unpacked, not installed, and the libraries that the machine has."""
    libraries = folder / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    machine = _step(folder, "gcc", "-print-multiarch").strip()
    for package in _HEADERS:
        _step(folder, "apt-get", "download", package)
    for found in folder.glob("*.deb"):
        _step(folder, "dpkg", "-x", str(found), ".")
    for link in (folder / "usr/lib" / machine).glob("lib*.so"):
        there = Path(_step(folder, "gcc", f"-print-file-name={link.readlink().name}").strip())
        if there.is_absolute() and not (libraries / link.name).is_symlink():
            (libraries / link.name).symlink_to(there)
    includes = folder / "usr/include"
    return {"CPPFLAGS": f"-isystem{includes} -isystem{includes / machine}", "LDFLAGS": f"-L{libraries}"}


def _kafka(folder: Path) -> Path:
    """`bin` and `libs` as in a release, as far as its tests use them."""
    shutil.rmtree(folder, ignore_errors=True)
    for place in ("bin", "libs"):
        (folder / place).mkdir(parents=True)
    clients = next(jar for jar in Path(class_path()).parent.glob("kafka-clients-*.jar") if "-test" not in jar.name)
    (folder / "libs" / clients.name).symlink_to(clients)
    java = f'exec java -Xmx256m -XX:TieredStopAtLevel=1 -cp "$CLASSPATH:{class_path()}"'
    scripts = {
        "kafka-run-class.sh": java,
        "kafka-acls.sh": f"{java} org.apache.kafka.tools.AclCommand {_COMMAND_CONFIG}",
        "kafka-topics.sh": f"{java} org.apache.kafka.tools.TopicCommand {_COMMAND_CONFIG}",
    }
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
