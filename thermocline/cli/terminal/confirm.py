"""Confirmation questions. Without a terminal there is no question, and the answer counts as no."""

from __future__ import annotations

import sys

from thermocline.cli.terminal.outcome import CommandFailed, Exit


def can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def require_terminal() -> None:
    """Raises CommandFailed (usage) if there is no terminal."""
    if not can_ask():
        raise CommandFailed("no terminal to ask on: add --yes", Exit.USAGE)


def confirm(question: str, name: str) -> None:
    """Ask on stderr. Raises CommandFailed unless `name` is typed."""
    print(f"{question} Type its name: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != name:
        raise CommandFailed(f"{name} was not typed: nothing was changed")


def agree(question: str) -> None:
    """Ask on stderr, for reversible changes. Raises CommandFailed unless the answer is yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was changed")
