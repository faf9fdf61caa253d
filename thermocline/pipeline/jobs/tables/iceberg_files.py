"""pyiceberg's `FileIO` with durable local files: metadata and manifests of a table in a directory.

pyarrow does not fsync. A catalog in a database commits durably, so its metadata file must be durable first. Otherwise a
power cut leaves a table whose metadata is an empty file.
"""

from __future__ import annotations

import io
import os
from typing import Any

from thermocline.extras import require
from thermocline.pipeline.jobs.tables.data_file_storage import make_folder, sync

require("spark", "an Iceberg table", "pyiceberg")

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class SyncedFileIO(PyArrowFileIO):
    """`PyArrowFileIO`; a local file that was written and closed is durable, and its name too."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        make_folder(os.path.dirname(self._path))
        return io.BufferedWriter(_SyncedRaw(self._path, "wb"), io.DEFAULT_BUFFER_SIZE)


class _SyncedRaw(io.FileIO):
    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync(os.path.dirname(str(self.name)))
