"""Checks for optional packages, and the pip command that installs them.

A feature that needs an extra calls `require` before it starts work. Nothing is imported for the check.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from logformat.errors import InvalidRequest

Extra = Literal["read", "spark"]


class MissingExtra(InvalidRequest, ImportError):
    """A package is not installed. The message has the command that installs it."""


def missing(*modules: str) -> tuple[str, ...]:
    """The modules among these that are not installed."""
    return tuple(name for name in modules if find_spec(name) is None)


def install_command(extra: Extra) -> str:
    return f"pip install 'thermocline[{extra}]'"


def require(extra: Extra, what: str, *modules: str) -> None:
    """Raises MissingExtra when one of the modules that `what` needs is not installed; `extra` installs them."""
    absent = missing(*modules)
    if absent:
        raise MissingExtra(f"{what} needs {', '.join(absent)}, not installed here: {install_command(extra)}")
