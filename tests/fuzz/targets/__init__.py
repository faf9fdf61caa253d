"""The fuzz targets, one module each; `load` gives them by name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Protocol, cast


class Target(Protocol):
    """What every module here offers. `run` raises only on a finding."""

    __name__: str

    def seeds(self) -> list[bytes]: ...
    def run(self, data: bytes) -> None: ...


def names() -> list[str]:
    """Every target's name, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Target:
    return cast(Target, importlib.import_module(f"{__name__}.{name}"))
