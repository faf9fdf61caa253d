"""Go modules of others, downloaded from the module proxy, copied where they may be changed, and built.

Must not know which ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_BUILD_S = 600.0


@contextlib.contextmanager
def needs_go(what: str) -> Iterator[None]:
    """Skip, saying what is missing, where there is no Go, or the modules that the block asks for cannot be had."""
    if shutil.which("go") is None:
        pytest.skip(f"{what} need go; it is not needed to use the project")
    try:
        yield
    except subprocess.CalledProcessError as failed:
        pytest.skip(f"{what} cannot be had: {failed.stderr.strip()[-300:]}")


def module(work: Path, name: str, copy: Path) -> Path:
    """`name` (path@version) in folder `copy`, which is made; `work` is a folder to run in."""
    (work / "go.mod").write_text("module suite\n")
    folder = Path(json.loads(go(work, "mod", "download", "-json", name))["Dir"])
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)  # without modes: the module cache is read-only
    return copy


def go(folder: Path, *arguments: str, **environment: str) -> str:
    """What `go ARGUMENTS` in `folder` prints; CalledProcessError when it fails."""
    return subprocess.run(
        ["go", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=True,
    ).stdout
