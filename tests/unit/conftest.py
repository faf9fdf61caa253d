"""Unit tests that start processes say so: the mark `not_fast` is what `make test-fast` leaves out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Starting a process fails a test that `make test-fast` would run."""
    if not any(request.node.get_closest_marker(name) for name in ("not_fast", "peer", "slow", "long")):
        monkeypatch.setattr(subprocess.Popen, "_execute_child", _refused)
        monkeypatch.setattr(os, "fork", _refused)
    yield


def _refused(*_: Any, **__: Any) -> Callable[..., Any]:
    raise AssertionError("a unit test that starts a process is marked `not_fast` (pyproject.toml)")
