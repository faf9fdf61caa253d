"""kafka-python's own integration tests, from its package on PyPI, run against brokers of ours.

Owns getting them, the environment they run in (a virtual one, with the version that this project is tested with), and
reading their report. They meet a broker that runs already (`KAFKA_URI`), or start brokers of ours on properties of
their own making. What their package lacks of its folders is made here; nothing of theirs is changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients import kafka_python_service
from tests.support.repository import ROOT

OF_CLIENTS: Final = ("producer", "consumer", "admin")
_VERSION: Final = "4.3.1"
_STEP_S: Final = 300.0
_TOOLS: Final = ("pytest", "pytest-timeout", "pytest-mock", "py", "lz4", "zstandard", "crc32c")
_RESULT: Final = re.compile(r"^(\S+)::(\S+) (PASSED|FAILED|SKIPPED|ERROR)", re.MULTILINE)

_PROPERTIES: Final = """\
node.id={broker_id}
listeners=OUT://{host}:{port},IN://127.0.0.1:{controller_port}
advertised.listeners=OUT://{host}:{port},IN://127.0.0.1:{controller_port}
listener.security.protocol.map=OUT:{transport},IN:PLAINTEXT
inter.broker.listener.name=IN
num.partitions={partitions}
default.replication.factor={replicas}
auto.create.topics.enable={auto_create_topic}
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
super.users=User:ANONYMOUS
{acl_config}
{ssl_config}
{sasl_config}
listener.name.out.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
required user_alice="alice-secret";
listener.name.out.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule \
required username="alice" password="alice-secret";
listener.name.out.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule \
required username="alice" password="alice-secret";
""".replace("\\\n", "")
_RESOURCES: Final = {
    "kafka.properties": _PROPERTIES,
    "kafka_server_jaas.conf": "{jaas_config}",
    "sasl_command.conf": "security.protocol={transport}\n"
    "sasl.mechanism={sasl_mechanism}\n"
    "sasl.jaas.config={jaas_config}",
}
"""Templates that they fill in."""
_TOPICS: Final = """#!{python}
import json, os, subprocess, sys

given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
words = ["topic", "list", "--json", "-b", given["--bootstrap-server"], "--command-config", given["--command-config"]]
os.environ["PYTHONPATH"] = os.environ["BROKER_ROOT"]
for line in subprocess.check_output([sys.executable, "-m", "thermocline", *words], text=True).splitlines():
    print(json.loads(line)["topic"])
"""
_EVERY_BROKER: Final = """
import os

from test.integration.fixtures import KafkaFixture

instance = KafkaFixture.instance

if "BROKER_TRANSPORT" in os.environ:
    KafkaFixture.instance = lambda *of, **more: instance(
        *of, **{"transport": os.environ["BROKER_TRANSPORT"], "sasl_mechanism": os.environ["BROKER_MECHANISM"], **more}
    )
"""


@dataclass(frozen=True, slots=True)
class KafkaPythonSuite:
    """`folder` is its unpacked package."""

    python: Path
    folder: Path

    def run(
        self, names: Iterable[str], environment: Mapping[str, str], *, timeout_s: float
    ) -> tuple[dict[str, str], str]:
        """Test → PASSED, FAILED, SKIPPED or ERROR of its integration tests of `names`, and all that was printed."""
        files = [f"test/integration/test_{of}_integration.py" for of in names]
        done = subprocess.run(
            [self.python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short", "--timeout=100", *files],
            cwd=self.folder,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
                **environment,
                "KAFKA_VERSION": _VERSION,
                "BROKER_PYTHON": sys.executable,
                "BROKER_ROOT": str(ROOT),
            },
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        found = {f"{Path(file).stem}::{name}": result for file, name, result in _RESULT.findall(done.stdout)}
        return found, done.stdout + done.stderr


def require_kafka_python_suite(work: Path) -> KafkaPythonSuite:
    """Download it and make its environment in `work`; skip, saying what is missing, where that cannot be done."""
    try:
        return _made(work)
    except subprocess.CalledProcessError as failed:
        pytest.skip(f"kafka-python's tests cannot be had: {failed.stderr.strip()[-300:]}")


def _made(work: Path) -> KafkaPythonSuite:
    of = version("kafka-python")
    _step(work, sys.executable, "-m", "venv", "environment")
    python = work / "environment/bin/python"
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    _step(work, *pip, "download", "--quiet", "--no-deps", "--no-binary=kafka-python", f"kafka-python=={of}")
    _step(work, "tar", "xzf", f"kafka_python-{of}.tar.gz")
    folder = work / f"kafka_python-{of}"
    _step(work, *pip, "install", "--quiet", str(folder), *_TOOLS)
    (folder / "test/__init__.py").touch()  # else `test` is the package of that name in Python's library
    shutil.copyfile(kafka_python_service.__file__, folder / "test/service.py")
    (folder / "conftest.py").write_text(_EVERY_BROKER)
    _make_servers(folder / "servers")
    return KafkaPythonSuite(python, folder)


def _make_servers(folder: Path) -> None:
    """What they look for of Apache Kafka's programs, and the templates of their configurations."""
    programs = folder / _VERSION / "kafka-bin/bin"
    resources = folder / "resources/default"
    for made in (programs, resources):
        made.mkdir(parents=True)
    for name, content in _RESOURCES.items():
        (resources / name).write_text(content)
    scripts = {"kafka-topics.sh": _TOPICS.format(python=sys.executable), "kafka-storage.sh": "#!/bin/sh\n"}
    for name, content in scripts.items():
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)


def _step(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_STEP_S, check=True)
