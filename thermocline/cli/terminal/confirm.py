"""Asking before something goes that cannot come back, or begins that takes long.

Owns the questions. Always true: without a terminal nobody is asked and nothing is taken for a yes. Must not know what
goes.
"""

from __future__ import annotations

import sys

from thermocline.cli.terminal.outcome import CommandFailed


def can_ask() -> bool:
    """Whether somebody is there to type an answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, name: str) -> None:
    """Ask on stderr; CommandFailed unless `name` itself is typed."""
    print(f"{question} Type its name: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CommandFailed(f"{name} was not typed: nothing was changed")


def agree(question: str) -> None:
    """Ask on stderr for what can be taken back; CommandFailed unless the answer is yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was changed")
