"""Sarama's own functional tests, run against a broker of ours.

Owns getting them (a Go module like any other, from the module proxy), building them, the Toxiproxy they talk through,
and reading what they printed. Their topics ask for three replicas: the copy that is built asks for one; nothing else of
theirs is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.clients.go_modules import go, module, needs_go
from tests.support.waiting import wait_until

SARAMA = "github.com/IBM/sarama@v1.61.1"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
FIRST_PROXY_PORT = 29091  # Sarama's tests know five brokers at 29091 to 29095, and nothing else
_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)
_TEST = re.compile(r"^func (Test\w+)\(t \*testing", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Suite:
    """The built tests, the folder they expect to run in, and the proxy's program."""

    tests: Path
    folder: Path
    toxiproxy: Path

    def names(self) -> set[str]:
        """Its functional tests; the same program holds their unit tests."""
        return {name for file in self.folder.glob("functional*_test.go") for name in _TEST.findall(file.read_text())}


def require_suite(work: Path) -> Suite:
    """Download and build; skip, saying what is missing, where that cannot be done."""
    with needs_go("Sarama's functional tests"):
        copy = module(work, SARAMA, work / "sarama")
        go(work, "install", TOXIPROXY, GOBIN=str(work))
        topics = copy / "functional_test.go"
        topics.write_text(topics.read_text().replace("ReplicationFactor: 3,", "ReplicationFactor: 1,"))
        tests = work / "sarama.test"
        go(copy, "test", "-tags", "functional", "-c", "-o", str(tests), ".")
    return Suite(tests, copy, work / "server")


@contextlib.contextmanager
def proxies(suite: Suite, port: int, upstream: str) -> Iterator[str]:
    """Toxiproxy on `port`, its five proxies all leading to `upstream` (host:port). Yields its address."""
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen([suite.toxiproxy, "-port", str(port)], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(f"{address}/version"), what="Toxiproxy answers")
            for index in range(5):
                proxy = {"name": f"kafka{index + 1}", "listen": f"127.0.0.1:{FIRST_PROXY_PORT + index}"}
                body = json.dumps({**proxy, "upstream": upstream, "enabled": True}).encode()
                urllib.request.urlopen(urllib.request.Request(f"{address}/proxies", body), timeout=10).close()
            yield address
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def run_suite(suite: Suite, toxiproxy: str, names: set[str], *, timeout_s: float) -> tuple[dict[str, str], str]:
    """Test → PASS, FAIL or SKIP of these tests, and all that was printed."""
    done = subprocess.run(
        [
            *(suite.tests, "-test.v", "-test.timeout", f"{timeout_s:.0f}s"),
            *("-test.run", f"^({'|'.join(sorted(names))})$"),
        ],
        cwd=suite.folder,
        env={**os.environ, "TOXIPROXY_ADDR": toxiproxy, "KAFKA_VERSION": "4.3.1"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s + 60,
        check=False,
    )
    return {name: result for result, name in _RESULT.findall(done.stdout)}, done.stdout + done.stderr
