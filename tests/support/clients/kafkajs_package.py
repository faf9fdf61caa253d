"""KafkaJS as npm has it, and programs of ours that use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

PACKAGE: Final = "kafkajs@2.2.4"
_STEP_S: Final = 180.0


def require_kafkajs(work: Path) -> Path:
    """The folder of modules below `work` that has it; skip, saying why, where it cannot be had."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("KafkaJS needs node and npm; neither is needed to use the project")
    install = ["npm", "install", "--prefix", str(work), "--ignore-scripts", "--no-audit", "--no-fund", PACKAGE]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=_STEP_S, check=False)
    if installed.returncode != 0:
        pytest.skip(f"KafkaJS cannot be installed: {installed.stderr.strip()[-200:]}")
    return work / "node_modules"


def run_program(modules: Path, program: Path, *arguments: str) -> dict[str, Any]:
    """What a program of ours that uses the package prints, as JSON. AssertionError has its stderr."""
    done = subprocess.run(
        ["node", str(program), *arguments],
        env={**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=_STEP_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found
