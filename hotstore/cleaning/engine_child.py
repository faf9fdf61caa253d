"""Main program of the cleaner's child process: runs a `LocalEngine` for the requests of one `ProcessEngine`.

It opens no path: files come as descriptors with a request. It exits when its parent exits, after `idle_s` (its third
argument) without a pass, and after an error that is not about a file or the content of a log.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import EMFILE
from importlib import import_module
from typing import Any, Final

import msgspec

from hotstore.cleaning import engine_messages as messages
from hotstore.cleaning.engine import CleanerEngine, LocalEngine
from hotstore.errors import DamagedLog
from logformat.compaction.rules import CleanRules
from seams.child_process import ParentChannel, lower_priority, return_free_memory
from seams.files.disk import File
from seams.files.posix_disk import PosixFile
from seams.rng import SystemRng

_KERNELS: Final = "logformat.compaction.batch_cleaner"


def main(arguments: Sequence[str]) -> None:
    channel = ParentChannel.of_arguments(arguments)
    lower_priority()
    import_module(_KERNELS)  # imported before the first request: the deadline of a start covers this
    channel.send(messages.encode(messages.Done()))
    serve(channel, LocalEngine(SystemRng()), float(arguments[2]))


def serve(channel: ParentChannel, engine: CleanerEngine, idle_s: float) -> None:
    """Answer requests until the parent ends, or sends nothing for `idle_s` after the end of a pass."""
    timeout_s: float | None = None  # the parent starts a child only for a pass
    ahead = _Ahead()
    while True:
        try:
            message, descriptors = channel.receive(timeout_s)
        except (EOFError, TimeoutError):
            return
        request = messages.decode_request(message)
        if ahead.takes(request):
            channel.send(messages.encode(messages.Done()))
            continue
        timeout_s = idle_s if isinstance(request, messages.End) else None
        reply: messages.Reply
        try:
            reply = _perform(engine, request, _files_of(request, descriptors), ahead)
        except (OSError, DamagedLog, MemoryError) as error:
            reply = messages.error_reply(error)
        except Exception as error:
            channel.send(messages.encode(messages.error_reply(error)))
            raise
        channel.send(messages.encode(reply))


@dataclass(slots=True)
class _Ahead:
    """The lists that were received in advance for the next pass."""

    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    last_offsets: list[int] = field(default_factory=list)

    def takes(self, request: messages.Request) -> bool:
        """Add the request if it is a part of these lists. Returns whether it is."""
        match request:
            case messages.Aborted(transactions):
                self.aborted += transactions
            case messages.LastOffsets(offsets):
                self.last_offsets += offsets
            case _:
                return False
        return True

    def rules(self, begin: messages.Begin) -> CleanRules:
        """Take the lists for the pass that begins now. The lists for the next pass are then empty."""
        aborted, last_offsets = tuple(self.aborted), tuple(self.last_offsets)
        self.aborted.clear()
        self.last_offsets.clear()
        return CleanRules(begin.now_ms, begin.delete_retention_ms, aborted, last_offsets, begin.tombstones_end)


def _perform(engine: CleanerEngine, request: messages.Request, files: Sequence[File], ahead: _Ahead) -> messages.Reply:
    match request:
        case messages.Begin(buffer_bytes):
            engine.begin(buffer_bytes, ahead.rules(request))
        case messages.Map(_, position, length):
            mapped = engine.map(files[0], position, length)
            return messages.MapDone(mapped.taken_bytes, mapped.end_offset, mapped.is_full)
        case messages.BeginSegment(base_offset, interval_bytes, _):
            engine.begin_segment(base_offset, interval_bytes, *files)
        case messages.Clean(_, position, length):
            return messages.CleanDone(engine.clean(files[0], position, length))
        case messages.FinishSegment():
            done = engine.finish_segment()
            stats: dict[str, Any] = msgspec.to_builtins(done.stats)
            return messages.SegmentDone(
                done.size, done.end_offset, done.max_timestamp, done.max_timestamp_offset, stats
            )
        case messages.End():
            engine.end()
            return_free_memory()
    return messages.Done()


def _files_of(request: messages.Request, descriptors: Sequence[int]) -> list[File]:
    """The request's files. A file is closed when its last user drops it. Raises OSError if the kernel dropped a
    descriptor."""
    paths: Sequence[bytes] = ()
    match request:
        case messages.Map(path) | messages.Clean(path):
            paths = (path,)
        case messages.BeginSegment(paths=three):
            paths = three
    if len(descriptors) != len(paths):
        raise OSError(EMFILE, f"{len(descriptors)} of {len(paths)} descriptors arrived")  # the pass is then over
    return [PosixFile(fd, messages.path_text(path)) for fd, path in zip(descriptors, paths, strict=True)]


if __name__ == "__main__":
    main(sys.argv[1:])
