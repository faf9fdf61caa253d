"""Where a worker's data files go: a directory of this machine, or whatever storage the table's catalog configured.

Owns the opening of an output and the promise that a file handed on is whole. Always true: a local file that was closed
here is on the disk, and so are the directories made for it, for a commit must not be more durable than what it names.
pyiceberg, a second of imports for every worker process, is loaded only where storage is not local. Must not know tables
or what is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs


@dataclass(frozen=True, slots=True)
class DataFileWritten:
    """A whole Parquet file that no table names yet. `metadata` is its footer, as the writer had it."""

    location: str
    size: int
    metadata: pq.FileMetaData
    rows: int


class DataFileOutput:
    """One new file, written from its beginning to its end."""

    def __init__(self, location: str, io_properties: Mapping[str, str]) -> None:
        """OSError when the storage refuses."""
        self.location = location
        self._path = _local_path(location)
        self.sink: pa.NativeFile
        if self._path is not None:
            _make_folder(os.path.dirname(self._path))
            self.sink = fs.LocalFileSystem().open_output_stream(self._path)
        else:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            io = PyArrowFileIO(dict(io_properties))
            scheme, netloc, path = io.parse_location(location, io.properties)
            self.sink = io.fs_by_scheme(scheme, netloc).open_output_stream(path)

    def close(self) -> int:
        """Everything is stored; returns the file's size."""
        size = int(self.sink.tell())
        self.sink.close()
        if self._path is not None:
            for name in (self._path, os.path.dirname(self._path)):
                _sync(name)
        return size


def open_data_file(location: str, io_properties: Mapping[str, str]) -> pa.NativeFile:
    """A file to read. OSError when the storage refuses."""
    path = _local_path(location)
    if path is not None:
        return fs.LocalFileSystem().open_input_file(path)
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO(dict(io_properties))
    scheme, netloc, place = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, netloc).open_input_file(place)


def _local_path(location: str) -> str | None:
    if location.startswith("/"):
        return location
    return "/" + location.removeprefix("file:").lstrip("/") if location.startswith("file:") else None


def _make_folder(path: str) -> None:
    """The directory and those above it; the names of new ones are on the disk, without which a synced file is gone."""
    above = os.path.dirname(path)
    if os.path.isdir(path) or above == path:
        return
    _make_folder(above)
    os.makedirs(path, exist_ok=True)  # another task may be quicker
    _sync(above)


def _sync(path: str) -> None:
    """pyarrow leaves the bytes to the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
