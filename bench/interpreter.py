"""The Python that our brokers run on: another one than the benchmark's gets what they need in bench/.build, once.

Always true: the packages are those of requirements.lock; the brokers' code is never installed, it is found by path.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

from bench.loads import BUILD

REPOSITORY = Path(__file__).resolve().parent.parent


def interpreter(python: Path | None) -> tuple[str, str]:
    """The executable to start brokers with, and what it is. `python`: any with `venv`; None: the one that runs this."""
    executable = sys.executable if python is None else str(_environment(python) / "bin" / "python")
    described = subprocess.run(
        [executable, str(REPOSITORY / "seams" / "interpreter.py")], check=True, capture_output=True, text=True
    )
    return executable, described.stdout.strip()


def _environment(python: Path) -> Path:
    """A virtual environment of `python` with what a broker needs."""
    lock = (REPOSITORY / "requirements.lock").read_text()
    needed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    name = hashlib.sha256(f"{python.resolve()}{needed}{lock}".encode()).hexdigest()[:12]
    environment = BUILD / f"python-{name}"
    done = environment / ".ready"
    if not done.exists():
        print(f"making {environment} for {python}: a minute, once", file=sys.stderr)
        BUILD.mkdir(exist_ok=True)
        subprocess.run([str(python), "-m", "venv", "--clear", str(environment)], check=True)
        pins = environment / "pins.txt"
        pinned = [line.removesuffix(" \\") for line in lock.splitlines() if "--hash=" not in line]
        pins.write_text("\n".join(pinned) + "\n")
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(pins), *needed], check=True)
        done.touch()
    return environment
