"""Exit codes, and the errors that carry them."""

from __future__ import annotations

from enum import IntEnum

from logformat.errors import Corrupt, InvalidRequest, StorageFailed, ThermoclineError

INTERRUPTED = 130
"""Ended by ^C: 128 + SIGINT."""


class Exit(IntEnum):
    DONE = 0
    FAILED = 1  # the operation failed
    USAGE = 2  # usage or config
    REFUSED = 3  # lock, identity, address, another broker serves the bucket, store probe, newer format
    STORAGE_FAILED = 4
    FINDINGS = 5  # bucket verify, scrub, cluster status


class CommandFailed(Exception):
    """Ends a command. The message has the failure, its object and the remedy."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


def plain_words(failed: OSError) -> str:
    """The file and the error, without Python's errno."""
    named = f"{failed.filename}: " if isinstance(failed.filename, str) else ""
    return f"{named}{failed.strerror}" if failed.strerror else str(failed)


def exit_of(error: ThermoclineError) -> Exit:
    """The exit code of one of our own errors."""
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


def no_right(what: str, right: str) -> CommandFailed:
    """The error for a user without a right on the cluster. `right`: the operation's name."""
    return CommandFailed(
        f"{what}: this user may not do it; it needs {right} on the cluster (`thermocline acl add --allow-principal "
        f"User:NAME --operation {right} --cluster`), or a super user (super.users)"
    )


def no_partition(topic: str, partition: int, count: int) -> CommandFailed:
    """The error for a partition that does not exist. `count`: the number of the topic's partitions."""
    return CommandFailed(f"topic {topic} has no partition {partition}; it has {count}, from 0")


def no_group(group: str) -> CommandFailed:
    return CommandFailed(f"there is no group {group}; see `thermocline group list`")
