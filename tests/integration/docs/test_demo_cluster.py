"""`make demo` and `make demo-cluster`, short, also with `--secure`: its acts, and that what it tells is measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.processes.site import QUICK
from tests.support.repository import ROOT

_SOONER = ("thermocline.lease.ms", "thermocline.lease.interval.ms", "log.retention.check.interval.ms")


@pytest.mark.parametrize("flags", [(), ("--secure",)], ids=["plain", "secured"])
def test_the_cluster_comes_back_and_only_its_tail_moved(flags: tuple[str, ...]) -> None:
    """40 MB: exit code 0 says that every byte was compared, and every acknowledged record found."""
    words = [word for name in _SOONER for word in ("--set", f"{name}={QUICK[name]}")]
    done = subprocess.run(
        [sys.executable, "-m", "thermocline.demo.cluster", "--megabytes", "40", *words, *flags],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd=ROOT,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.findall(r"^  (\S.*?)  +(\S.*)$", done.stdout, re.M))
    assert rows["acknowledged records lost, changed"].startswith("0, 0 of ")
    assert "every byte as it was written" in done.stdout
    moved, stayed = (
        float(rows[name].split()[0])
        for name in ("bytes copied between brokers for it", "bytes that stayed in the bucket")
    )
    assert 0 < moved < stayed, "its tail had to move, its history did not"


_SHORT = """
from thermocline.demo import payload, spark_act
payload.RECORDS, payload.KILL_AFTER = 20_000, 8_000
spark_act.missing = lambda *_: ("pyspark",)
from thermocline.demo.__main__ import main
raise SystemExit(main())
"""


@pytest.mark.parametrize("flags", [(), ("--secure",)], ids=["plain", "secured"])
def test_one_broker_loses_nothing_through_a_kill_and_a_lost_disk(flags: tuple[str, ...]) -> None:
    """80 MB, and without Spark, whose own tests are elsewhere."""
    done = subprocess.run(
        [sys.executable, "-c", _SHORT, *flags],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd=ROOT,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every byte again, no gap" in done.stdout
    assert re.search(r"records lost, changed, doubled +0, 0, 0", done.stdout)
