"""Storage of data files: a local directory, or the storage that the table's catalog configures.

A closed local file and the directories created for it are fsynced, because a commit must not be more durable than its
files. pyiceberg (a second of imports in each worker) is loaded only for non-local storage.
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
    """A complete Parquet file that no table names yet. `metadata` is its footer."""

    location: str
    size: int
    metadata: pq.FileMetaData
    rows: int


class DataFileOutput:
    def __init__(self, location: str, io_properties: Mapping[str, str]) -> None:
        """Raises OSError from the storage."""
        self.location = location
        self._path = _local_path(location)
        if self._path is not None:
            make_folder(os.path.dirname(self._path))
        system, path = _find(location, io_properties)
        self.sink: pa.NativeFile = system.open_output_stream(path)

    def close(self) -> int:
        """Store everything. Returns the file's size."""
        size = int(self.sink.tell())
        self.sink.close()
        if self._path is not None:
            for name in (self._path, os.path.dirname(self._path)):
                sync(name)
        return size


def open_data_file(location: str, io_properties: Mapping[str, str]) -> pa.NativeFile:
    """A file to read. Raises OSError from the storage."""
    system, path = _find(location, io_properties)
    return system.open_input_file(path)


def _find(location: str, io_properties: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """The file system of a location, and the path there."""
    path = _local_path(location)
    if path is not None:
        return fs.LocalFileSystem(), path
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO(dict(io_properties))
    scheme, netloc, place = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, netloc), place


def _local_path(location: str) -> str | None:
    if location.startswith("/"):
        return location
    return "/" + location.removeprefix("file:").lstrip("/") if location.startswith("file:") else None


def make_folder(path: str) -> None:
    """Create the directory and its missing parents, and fsync them, so that the name of a synced file survives."""
    above = os.path.dirname(path)
    if os.path.isdir(path) or above == path:
        return
    make_folder(above)
    os.makedirs(path, exist_ok=True)  # another task may have created it
    sync(above)


def sync(path: str) -> None:
    """pyarrow does not fsync."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
