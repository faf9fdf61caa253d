"""`thermocline consume` where the broker has records and gives none: it says so, and why, and waits on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until


def test_records_that_only_the_bucket_has_while_it_is_away(tmp_path: Path) -> None:
    """librdkafka asks again without a word. The broker's own condition is told once; the records come when it can."""
    bucket = DirectoryBucket(tmp_path / "bucket")
    with Site(tmp_path, bucket).broker() as broker:

        def cli(*words: str, stdin: str = "") -> str:
            done = thermocline(*words, "-b", broker.kafka, stdin=stdin)
            assert done.returncode == 0, done
            return done.stdout

        cli("topic", "create", "cold", "-p", "1", "-c", "local.retention.ms=1")
        cli("produce", "-t", "cold", stdin="one\ntwo\n")
        cli("tier", "seal", "--wait")

        def only_cold() -> bool:
            (row,) = json_lines(cli("tier", "status", "--topic", "cold", "--json"))
            return bool(row["local_log_start_offset"] == 2)

        wait_until(only_cold, "the local copy is gone")
        bucket.path.rename(tmp_path / "away")
        reader = subprocess.Popen(
            [sys.executable, "-m", "thermocline", "consume", "-t", "cold", "-e", "-b", broker.kafka],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert reader.stderr is not None
            said = reader.stderr.readline()  # pytest's own time-out bounds the wait
            (tmp_path / "away").rename(bucket.path)
            out, more = reader.communicate(timeout=60)
        finally:
            reader.kill()
        assert said.startswith("thermocline: no records came from cold-0 for 10 s; broker 1: store_unreachable: "), said
        assert said.endswith("; still waiting\n")
        assert (reader.returncode, out, more) == (0, "one\ntwo\n", "")
