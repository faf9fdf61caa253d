"""kafka-python's own integration tests, from its package on PyPI, run against a broker of ours.

Owns getting them, the environment they run in (a virtual one, with the version that this project is tested with), and
reading their report. Always true: they meet the broker as one that runs already (`KAFKA_URI`). What their package lacks
of its folder of tests is made here; nothing of theirs is changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

_STEP_S: Final = 300.0
_TOOLS: Final = ("pytest", "pytest-timeout", "pytest-mock", "py", "lz4", "zstandard", "crc32c")
_OUTSIDE: Final = '''
class ExternalService:
    """A broker that runs already."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
'''
_RESULT: Final = re.compile(r"^(\S+)::(\S+) (PASSED|FAILED|SKIPPED|ERROR)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KafkaPythonSuite:
    """`folder` is its unpacked package."""

    python: Path
    folder: Path

    def run(self, bootstrap: str, *, timeout_s: float) -> tuple[dict[str, str], str]:
        """Test → PASSED, FAILED, SKIPPED or ERROR of its integration tests, and all that was printed.

        Those of TLS and SASL start brokers of their own, and are not run.
        """
        names = [f"test/integration/test_{of}_integration.py" for of in ("producer", "consumer", "admin")]
        done = subprocess.run(
            [self.python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short", "--timeout=100", *names],
            cwd=self.folder,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
                "KAFKA_URI": f"kafka://{bootstrap}",
                "KAFKA_VERSION": "4.3.1",
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
    (folder / "test/service.py").write_text(_OUTSIDE)
    (folder / "servers/4.3.1/kafka-bin").mkdir(parents=True)  # must be there, and is not used
    return KafkaPythonSuite(python, folder)


def _step(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_STEP_S, check=True)
