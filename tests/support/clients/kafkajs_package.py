"""KafkaJS as npm has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

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
