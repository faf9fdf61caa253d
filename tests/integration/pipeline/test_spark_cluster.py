"""A standalone Spark cluster of two workers on this machine runs archive and scrub.

Master and workers are started from the jars that come with pyspark, on ports of their own, and end with the test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.pipeline.archive_kit import JSON, data_files, is_bad, json_topic, lake, named_files, places, rows
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.waiting import wait_until
from thermocline.pipeline.spark.java import java_home

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def cluster(place: Path) -> Iterator[str]:
    """The master's URL; two workers with a core each have registered."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    java = java_home(os.environ)
    environment = os.environ | {
        "SPARK_HOME": home,
        "JAVA_HOME": java,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> Path:
        log = place / f"{name}.log"
        with log.open("wb") as file:
            program = [f"{home}/bin/spark-class", *words]
            processes.append(
                subprocess.Popen(program, stdout=file, stderr=file, env=environment, start_new_session=True)
            )
        return log

    try:
        base = "org.apache.spark.deploy"
        log = start("master", f"{base}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = wait_for(log, r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            options = [
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(place / f"work{number}"),
            ]
            worker = start(f"worker{number}", f"{base}.worker.Worker", "--host", "127.0.0.1", *options, master)
            wait_for(worker, r"(Successfully registered with master)")
        yield master
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(log: Path, pattern: str, seconds: float = 90.0) -> str:
    """The first group of `pattern`, as soon as the log has it."""
    try:
        found = wait_until(
            lambda: re.search(pattern, log.read_text(errors="replace")), f"{pattern} in the log", seconds
        )
    except AssertionError as late:
        raise AssertionError(f"{log.name}: {late}\n{log.read_text(errors='replace')[-3000:]}") from None
    assert found is not None
    return found[1]


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "thermocline", *words]
    where = {"SPARK_LOCAL_IP": "127.0.0.1"} | environment
    return subprocess.run(program, capture_output=True, text=True, timeout=300, env=os.environ | where)


def test_two_workers_archive_and_scrub(tmp_path: Path) -> None:
    """The commands of a laptop with another --master; both executors worked; a killed worker is Spark's to repeat."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", partitions=4, segments=2, records=50)
    with cluster(tmp_path) as master:
        words = ["archive", "js", "--bucket", bucket.url, "--table", "ns.js", "--warehouse", f"file://{tmp_path}/lake"]
        words += ["--value", "json", "--columns", JSON.columns, "--master", master]
        done = command(*words)
        assert done.returncode == 0, done.stderr
        check(tmp_path)
        clean = command("scrub", bucket.url, "--master", master)
        assert clean.returncode == 0, clean.stderr + clean.stdout
        key = bucket.segments("js", 2)[1].key(bucket._ids["js"], 2)
        bucket.flip(key, 120)
        damaged = command("scrub", bucket.url, "--master", master)
        assert damaged.returncode == 5 and str(key) in damaged.stdout, damaged.stderr
    used = [number for number in (1, 2) if list((tmp_path / f"work{number}").glob("app-*/*/stderr"))]
    assert used == [1, 2], "each worker had an executor"


def test_a_worker_killed_on_the_cluster_is_repeated(tmp_path: Path) -> None:
    """Its half-written files are swept by the same run; the table is whole."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", partitions=4, segments=2, records=50)
    with cluster(tmp_path) as master:
        from thermocline.pipeline.jobs.archive import archive
        from thermocline.pipeline.spark.session import session

        spark = session("test", master, {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
        try:
            spark.sparkContext.environment.update(
                {
                    "THERMOCLINE_TESTING": "true",
                    "THERMOCLINE_CRASH_AT": "archive.file_written",
                    "THERMOCLINE_CRASH_ONCE": str(tmp_path / "killed"),
                }
            )
            summary = archive(spark, bucket.url, "js", "ns.js", catalog=lake(tmp_path), values=JSON)
        finally:
            spark.stop()
        assert (tmp_path / "killed").exists() and summary.leftovers_deleted > 0
        check(tmp_path)


def check(place: Path) -> None:
    every = [(partition, offset) for partition in range(4) for offset in range(200)]
    assert places(rows(lake(place), "ns.js")) == [one for one in every if not is_bad(one[1])]
    assert places(rows(lake(place), "ns.js_dead_letters")) == [one for one in every if is_bad(one[1])]
    assert data_files(place) == named_files(lake(place), "ns.js", "ns.js_dead_letters")
