"""Build of the running Python: without profile-guided optimisation each request takes more CPU.

This file imports no other module of this project, because another interpreter runs this file alone.
"""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Mapping
from typing import Any

import msgspec


class Build(msgspec.Struct, frozen=True):
    """`optimised` (PGO) and `linked` (LTO) are None if unknown."""

    version: str
    optimised: bool | None
    linked: bool | None

    def __str__(self) -> str:
        if self.optimised is None:
            return f"Python {self.version} as its distribution built it"
        return f"Python {self.version} {_with(self.optimised)} PGO, {_with(self.linked)} LTO"


def build_of(version: str, variables: Mapping[str, Any]) -> Build:
    """`variables`: the variables of sysconfig. Debian and Ubuntu remove the flags of their build, so PGO_PROF_USE_FLAG
    is empty there; every other build sets it.
    """
    options = str(variables.get("CONFIG_ARGS") or "")
    if "--enable-optimizations" not in options and not variables.get("PGO_PROF_USE_FLAG"):
        return Build(version, None, None)
    return Build(version, "--enable-optimizations" in options, "--with-lto" in options)


def this_build() -> Build:
    """The build of the running interpreter."""
    return build_of(platform.python_version(), sysconfig.get_config_vars())


def _with(used: bool | None) -> str:
    return "with" if used else "without"


if __name__ == "__main__":
    print(this_build())
