"""Journal of a scrub: a local file with the objects already read, so that a killed scrub resumes.

JSON lines: the bucket's URL, then a line for each object that was read to its end without a finding. Lines are fsynced
before the scrub continues. A line cut short by a crash is ignored and its object read again. Damaged objects are read
again too, because they may have been restored. A file that belongs to another bucket, or is not a journal, is refused
and left unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO, Final

import msgspec

from logformat.errors import InvalidRequest
from thermocline.pipeline.jobs.scrub.scrub_worker import ScrubDone, ScrubTask


class _Head(msgspec.Struct):
    """The first line. Copies of a bucket have the same keys, so the keys do not identify it."""

    bucket: str


class _Noted(msgspec.Struct):
    """An object that was read to its end. Older journals have `findings` too."""

    key: str
    findings: list[msgspec.Raw] = []


_HEAD: Final = msgspec.json.Decoder(_Head)
_NOTED: Final = msgspec.json.Decoder(_Noted)


class Journal:
    def __init__(self, path: str, bucket: str) -> None:
        """Raises InvalidRequest when the file is not a journal of this bucket."""
        self._path = path
        self._bucket = bucket
        self.skipped = 0
        self._read: set[str] = set()
        if os.path.exists(path):
            with open(path, "rb") as file:
                self._check_head(file.readline())
                for line in file:
                    self._learn(line)

    def _check_head(self, line: bytes) -> None:
        whole = msgspec.json.encode(_Head(self._bucket)) + b"\n"
        if line == whole or (not line.endswith(b"\n") and whole.startswith(line)):  # a crash cut it short
            return
        try:
            whose = f"the journal of {_HEAD.decode(line).bucket}, not of {self._bucket}"
        except msgspec.MsgspecError:
            whose = "not a journal of a scrub"
        raise InvalidRequest(f"{self._path} is {whose}; name another file, or remove it")

    def _learn(self, line: bytes) -> None:
        try:
            noted = _NOTED.decode(line)
        except msgspec.MsgspecError:
            return
        if not noted.findings:
            self._read.add(noted.key)

    def left_of(self, task: ScrubTask) -> ScrubTask | None:
        """The task without the objects that an earlier run has read; None when nothing is left."""
        assert task.topic_id is not None or not task.segments
        segments = tuple(
            segment
            for segment in task.segments
            if task.topic_id is not None and str(segment.key(task.topic_id, task.partition)) not in self._read
        )
        blobs = tuple(blob for blob in task.blobs if blob.key not in self._read)
        self.skipped += len(task.segments) + len(task.blobs) - len(segments) - len(blobs)
        return replace(task, segments=segments, blobs=blobs) if segments or blobs else None

    def note(self, done: Sequence[ScrubDone]) -> None:
        """Record, durably, the objects that these tasks found sound."""
        with open(self._path, "ab") as file:
            file.write(self._start(file))
            for one in done:
                damaged = {finding.key for finding in one.findings}
                for key in one.read:
                    if key not in damaged:
                        file.write(msgspec.json.encode(_Noted(key)) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _start(self, file: BinaryIO) -> bytes:
        """The first line for a new file, or a newline after a line that a crash cut short."""
        head = msgspec.json.encode(_Head(self._bucket)) + b"\n"
        size = file.seek(0, os.SEEK_END)
        if size >= len(head):
            return b"\n"
        file.truncate(0)
        return head

    def remove(self) -> None:
        """The scrub is complete."""
        if os.path.exists(self._path):
            os.unlink(self._path)
