"""What a plain installation leaves out, and the command that brings it.

Owns the sentence about a missing package and the names of the extras (pyproject.toml has their packages). Always true:
what needs an extra asks here before it works, so that nobody meets a bare "No module named …" half-way. Nothing is
imported to find out. Must not know what the packages are for.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from logformat.errors import InvalidRequest

Extra = Literal["read", "spark"]


class MissingExtra(InvalidRequest, ImportError):
    """A package is not installed; the message has the command that installs it."""


def missing(*modules: str) -> tuple[str, ...]:
    """Those of the modules that are not installed."""
    return tuple(name for name in modules if find_spec(name) is None)


def install_command(extra: Extra) -> str:
    return f"pip install 'thermocline[{extra}]'"


def require(extra: Extra, what: str, *modules: str) -> None:
    """Raises MissingExtra when `what` lacks one of the modules, which `extra` brings."""
    absent = missing(*modules)
    if absent:
        raise MissingExtra(f"{what} needs {', '.join(absent)}, not installed here: {install_command(extra)}")
