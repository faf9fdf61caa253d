"""The shared conformance suite on the stores that need no server: memory (the unit tests' model) and a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstore.object_store import ObjectStore
from coldstore.stores.directory import DirectoryStore
from seams.files.posix_disk import PosixDisk
from seams.loop.workers import ThreadWorkers
from seams.rng import SystemRng
from tests.support.store.memory_store import MemoryStore, StoredObject
from tests.support.store.store_conformance import StoreConformance


class MemoryPlace:
    checks_checksums = True
    keeps_checksums = True
    refuses_reused_names = True

    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> ObjectStore:
        return self._store

    def fill(self, keys: list[str], data: bytes) -> None:
        self._store.objects.update({key: StoredObject(data, '"e"', None) for key in keys})


class DirectoryPlace:
    checks_checksums = True
    keeps_checksums = False
    refuses_reused_names = True

    def __init__(self, root: str) -> None:
        self._root = root
        self.workers = ThreadWorkers()

    def open(self) -> ObjectStore:
        return DirectoryStore(PosixDisk(), self.workers, self._root, SystemRng())

    def fill(self, keys: list[str], data: bytes) -> None:
        for key in keys:
            path = f"{self._root}/{key}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(data)


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def place(self) -> MemoryPlace:
        return MemoryPlace()


class TestDirectoryStore(StoreConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[DirectoryPlace]:
        place = DirectoryPlace(str(tmp_path / "not" / "yet" / "there"))
        yield place
        place.workers.close()
