"""`thermocline bucket`: reading a bucket with no broker. The sub-commands come with the cold store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thermocline.cli.arguments import Parser, Subparsers


def register(nouns: Subparsers[Parser]) -> None:
    """Add the command to the command line."""
