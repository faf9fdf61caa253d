"""Sarama's own functional tests, run against a broker of ours.

Owns getting them (a Go module like any other, from the module proxy), building them, the Toxiproxy they talk through,
the five brokers they know, and reading what they printed. Their topics ask for three replicas: for one broker the copy
that is built asks for one. Their clients know no security: for brokers that want a login, a line is added that calls
`_SECURE`. Nothing else of theirs is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.support.clients.go_modules import go, module, needs_go
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.ports import quiet_port
from tests.support.processes.site import Site
from tests.support.waiting import wait_until

SARAMA = "github.com/IBM/sarama@v1.61.1"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
FIRST_PROXY_PORT = 29091  # Sarama's tests know five brokers at 29091 to 29095, and nothing else
NODES = (1, 2, 3, 4, 5)
_CONTAINERS = "runs Java in Docker's containers"
SEVERAL = {
    "TestConsumerFetchFollowerFailover",
    "TestFuncAdminAlterPartitionReassignments",
    "TestFuncAdminDescribeLogDirs",
    "TestFuncAdminElectLeadersV1",
    "TestFuncAdminListConsumerGroupOffsets",
    "TestFuncIdempotentBufferedSequence",
    "TestFuncTxnProduceWithBrokerFailure",
}
"""They need a second broker, or stop one and read its log (through Docker, for which something else stands in)."""
LEFT_OUT = {
    "TestFuncAdminUpdateFeatures": "UpdateFeatures is not served: there are no features to update",
    "TestFuncProducingNoResponse": "sends Produce 13 without asking which versions are served",
    "TestFuncJavaInteropCooperativeRebalance": _CONTAINERS,
    "TestJavaConsumerCompressionRoundTrip": _CONTAINERS,
    "TestJavaMurmur2PartitionerInterop": _CONTAINERS,
    "TestJavaProducerCompressionRoundTrip": _CONTAINERS,
    "TestReadOnlyAndAllCommittedMessages": "skips itself; its records are in no transaction (Kafka shows them, too)",
}
_VERSIONS = "\tconfig.ApiVersionsRequest = true\n"
_SECURE = """//go:build functional

package sarama

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

func secure(config *Config) {
	pem, err := os.ReadFile(os.Getenv("SARAMA_CA"))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = &tls.Config{RootCAs: roots}
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = SASLTypePlaintext
	config.Net.SASL.User = os.Getenv("SARAMA_USER")
	config.Net.SASL.Password = os.Getenv("SARAMA_PASSWORD")
}
"""
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


def require_suite(work: Path, replicas: int = 1, *, logs_in: bool = False) -> Suite:
    """Download and build; skip, saying what is missing, where that cannot be done. `logs_in`: by TLS and PLAIN, with
    what `SARAMA_CA`, `SARAMA_USER` and `SARAMA_PASSWORD` say."""
    with needs_go("Sarama's functional tests"):
        copy = module(work, SARAMA, work / "sarama")
        go(work, "install", TOXIPROXY, GOBIN=str(work))
        topics = copy / "functional_test.go"
        source = topics.read_text().replace("ReplicationFactor: 3,", f"ReplicationFactor: {replicas},")
        if logs_in:
            assert source.count(_VERSIONS) == 1, "their clients are made in another way"
            source = source.replace(_VERSIONS, f"{_VERSIONS}\tsecure(config)\n")
            (copy / "functional_secure_test.go").write_text(_SECURE)
        topics.write_text(source)
        tests = work / "sarama.test"
        go(copy, "test", "-tags", "functional", "-c", "-o", str(tests), ".")
    return Suite(tests, copy, work / "server")


@contextlib.contextmanager
def proxies(suite: Suite, port: int, upstreams: Sequence[str]) -> Iterator[str]:
    """Toxiproxy on `port`, its five proxies leading to these (host:port). Yields its address."""
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen([suite.toxiproxy, "-port", str(port)], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(f"{address}/version"), what="Toxiproxy answers")
            for index, upstream in enumerate(upstreams):
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


class FiveBrokers:
    """Of one site; clients reach each through its proxy, and the brokers each other directly."""

    def __init__(self, site: Site, stack: contextlib.ExitStack) -> None:
        self._site, self._stack = site, stack
        self._ports = {node_id: quiet_port() for node_id in NODES}
        self._behind = {node_id: quiet_port() for node_id in NODES}
        self._running: dict[int, BrokerProcess] = {}
        self.start(NODES[0])
        for later in [self._begin(node_id) for node_id in NODES[1:]]:
            later.await_ready()

    @property
    def upstreams(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports.values()]

    def _begin(self, node_id: int) -> BrokerProcess:
        behind = f"INSIDE://127.0.0.1:{self._behind[node_id]}"
        settings = (
            f"listeners=PLAINTEXT://127.0.0.1:{self._ports[node_id]},{behind}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{FIRST_PROXY_PORT + node_id - 1},{behind}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
            "inter.broker.listener.name=INSIDE",
            f"broker.rack={node_id}",
        )
        flags = [word for setting in settings for word in ("--set", setting)]
        broker = self._site.broker(str(node_id), "--node-id", str(node_id), *flags, wait_ready=False, listen=None)
        self._running[node_id] = self._stack.enter_context(broker)
        return self._running[node_id]

    def start(self, node_id: int) -> str:
        """Its next life, unless it runs; says nothing, as `docker` may."""
        if node_id not in self._running:
            self._begin(node_id).await_ready()
        return ""

    def stop(self, node_id: int) -> str:
        """SIGTERM, and its end; says nothing."""
        if (broker := self._running.pop(node_id, None)) is not None:
            broker.stop()
        return ""

    def log(self, node_id: int) -> str:
        """Of all its lives."""
        return (self._site.directory / f"broker-{node_id}.log").read_text()


def run_suite(
    suite: Suite,
    toxiproxy: str,
    names: set[str],
    *,
    timeout_s: float,
    programs: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, str], str]:
    """Test → PASS, FAIL or SKIP of these tests, and all that was printed. `programs` comes first in its PATH."""
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        [
            *(suite.tests, "-test.v", "-test.timeout", f"{timeout_s:.0f}s"),
            *("-test.run", f"^({'|'.join(sorted(names))})$"),
        ],
        cwd=suite.folder,
        env={**os.environ, **environment, "PATH": path, "TOXIPROXY_ADDR": toxiproxy, "KAFKA_VERSION": "4.3.1"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s + 60,
        check=False,
    )
    return {name: result for result, name in _RESULT.findall(done.stdout)}, done.stdout + done.stderr
