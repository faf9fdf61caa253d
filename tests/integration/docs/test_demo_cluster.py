"""`make demo-cluster`, short: its acts, and that what it tells is measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.support.processes.site import QUICK
from tests.support.repository import ROOT

_SOONER = ("thermocline.lease.ms", "thermocline.lease.interval.ms", "log.retention.check.interval.ms")


def test_the_cluster_comes_back_and_only_its_tail_moved() -> None:
    """40 MB: exit code 0 says that every byte was compared, and every acknowledged record found."""
    words = [word for name in _SOONER for word in ("--set", f"{name}={QUICK[name]}")]
    done = subprocess.run(
        [sys.executable, "-m", "thermocline.demo.cluster", "--megabytes", "40", *words],
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
