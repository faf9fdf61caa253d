"""Apache Kafka's own tools, run against our files: from the peer's jars, where Java is there.

Owns finding them. Tests that need them are marked `peer` and skip, saying what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import ROOT

SCRIPT = ROOT / "bench" / "peers" / "kafka"
_TIMEOUT_S = 300.0


def require_kafka() -> None:
    """Skip unless the tools can run: Java, and the jars (fetched from Maven Central on first use)."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("Apache Kafka's tools need java and mvn; neither is needed to use the project")
    done = subprocess.run([str(SCRIPT), "get"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        pytest.skip(f"Apache Kafka's jars cannot be fetched: {done.stderr.strip()[-200:]}")


def class_path() -> str:
    """The jars, for Java programs that ask Kafka's own classes; `require_kafka` first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = Path(os.environ.get("KAFKA_PEER_HOME", cache / "thermocline-kafka-peer"))
    return f"{home}/libs/*"


def kafka_tool(*arguments: str) -> str:
    """Run one of Kafka's classes; its output, AssertionError when it fails."""
    done = subprocess.run(
        [str(SCRIPT), "tool", *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, "KAFKA_TOOL_HEAP": "-Xmx256m"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr
