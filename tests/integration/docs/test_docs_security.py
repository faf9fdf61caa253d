"""docs/security.md is true: its commands run on a broker of `serve --secure`, and its rescue lets the operator in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.docs.test_docs_readme import fences
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import QUICK
from tests.support.repository import ROOT

PAGE = ROOT / "docs/security.md"
NOT_HERE = ("serve", "tier …", "cluster", "certificate authority")
"""Words after `thermocline`: a start, an example with an ellipsis, and what wants all brokers stopped."""
ANSWERS = {"user add": "--generate", "user delete": "--yes", "acl delete": "--yes"}
"""Flags in place of what a person types at the terminal."""
pytestmark = [pytest.mark.timeout(300)]


def commands() -> list[str]:
    """Of the page's shell blocks, and of the code in its sentences and tables, in their order; each once."""
    text = PAGE.read_text()
    shells = [fence.text.replace("\\\n", " ") for fence in fences(PAGE) if fence.language == "sh"]
    blocks = [line for shell in shells for line in shell.splitlines() if not line.startswith("export ")]
    inline = re.findall(r"`(thermocline [^`]+)`", re.sub(r"(?ms)^```.*?^```", "", text))
    found = dict.fromkeys([*blocks, *inline])
    return [one for one in found if _is_typed(one.removeprefix("thermocline "))]


def _is_typed(words: str) -> bool:
    return not words.startswith(NOT_HERE) and words not in ANSWERS


def typed(command: str, broker: BrokerProcess, directory: Path, *, config: Path) -> subprocess.CompletedProcess[str]:
    """The command as a reader types it, on this machine."""
    line = command.replace("/var/lib/thermocline", str(directory)).replace("127.0.0.1:9644", broker.http)
    line = re.sub(r"\bDIR\b", str(directory), line)
    for words, flag in ANSWERS.items():
        if f"thermocline {words}" in line and flag not in line:
            line = line.replace(f"thermocline {words}", f"thermocline {words} {flag}", 1)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "THERMOCLINE_BOOTSTRAP_SERVER": broker.kafka,
        "THERMOCLINE_COMMAND_CONFIG": str(config),
    }
    shell = line.replace("thermocline ", f"{sys.executable} -m thermocline ", 1) if "thermocline " in line else line
    return subprocess.run(
        ["sh", "-c", shell], env=environment, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_command_runs(tmp_path: Path) -> None:
    """In the page's order, by the first user's file."""
    directory, wanted = tmp_path / "one", commands()
    assert len(wanted) >= 10 and any("curl" in one for one in wanted), wanted
    with running_broker(directory, f"file://{tmp_path}/bucket", "--secure", settings=QUICK) as broker:
        for command in wanted:
            done = typed(command, broker, directory, config=directory / "admin.properties")
            assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_the_rescue_gives_the_admin_a_password(tmp_path: Path) -> None:
    """The file and the command of the page, after the admin's password was lost."""
    (properties,) = (fence.text for fence in fences(PAGE) if fence.language == "properties")
    (command,) = re.findall(r"(?ms)^```\n(thermocline user add admin .*?)^```", PAGE.read_text())
    directory, bucket = tmp_path / "one", f"file://{tmp_path}/bucket"
    with running_broker(directory, bucket, "--secure", settings=QUICK) as broker:
        assert broker.stop() == 0
    (directory / "admin.properties").unlink()
    (directory / "rescue.properties").write_text(properties)
    (secret,) = re.findall(r"has `(sasl\.password=[^`]+)`", PAGE.read_text())
    client = directory / "rescue-client.properties"
    client.write_text(f"{secret}\n")
    flags = ("--secure", "--config", str(directory / "rescue.properties"))
    with running_broker(directory, bucket, *flags, settings=QUICK) as broker:
        done = typed(command, broker, directory, config=client)
        assert done.returncode == 0, done.stderr
