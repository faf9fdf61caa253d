"""How a command ends: exit codes, and the error that carries one.

Owns the contract's numbers and the mapping of errors to them. Must not know what a command does.
"""

from __future__ import annotations

from enum import IntEnum

from logformat.errors import Corrupt, InvalidRequest, StorageFailed, ThermoclineError

INTERRUPTED = 130
"""Ended by ^C: 128 + SIGINT, as a shell expects."""


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1  # the operation failed
    USAGE = 2  # usage or config
    REFUSED = 3  # lock, identity, address, another broker serves the bucket, store probe, newer format
    STORAGE_FAILED = 4
    FINDINGS = 5  # bucket verify, scrub, cluster status


class CommandFailed(Exception):
    """A command ends here. The message says what happened, to what, and what to do."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


def plain_words(failed: OSError) -> str:
    """What failed, and why, without the number that Python puts before it."""
    named = f"{failed.filename}: " if isinstance(failed.filename, str) else ""
    return f"{named}{failed.strerror}" if failed.strerror else str(failed)


def exit_of(error: ThermoclineError) -> Exit:
    """The exit code of an error of the house."""
    from coldstore.inspection.probe import StoreRefused
    from coldstore.roots.root import NewerFormat

    match error:
        case NewerFormat() | StoreRefused():
            return Exit.REFUSED
        case InvalidRequest():
            return Exit.USAGE
        case StorageFailed() | Corrupt():
            return Exit.STORAGE_FAILED
        case _:
            return Exit.FAILED
