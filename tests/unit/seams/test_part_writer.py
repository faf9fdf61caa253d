"""`PartWriter`: the bytes of the file, and the sizes of its synced parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seams.files.disk import Buffer
from seams.files.part_writer import PART_MAX, PART_MIN, PartWriter
from seams.files.posix_disk import PosixDisk

KIB = 1 << 10


class SyncedFile:
    """Notes its size at each sync, which takes `sync_s` on its clock."""

    def __init__(self, sync_s: float = 0.0) -> None:
        self.data = bytearray()
        self.synced: list[int] = []
        self.sync_s = sync_s
        self.now_s = 0.0

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        assert position == len(self.data)
        self.data += b"".join(buffers)
        return len(self.data) - position

    def sync(self) -> None:
        self.synced.append(len(self.data))
        self.now_s += self.sync_s

    def parts(self) -> list[int]:
        return [end - begin for begin, end in zip([0, *self.synced], self.synced, strict=False)]

    def writer(self) -> PartWriter:
        file: Any = self
        return PartWriter(file, lambda: self.now_s)


def pieces(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size


@given(st.lists(st.lists(st.integers(0, 3 * PART_MIN), max_size=4), max_size=6), st.sampled_from([0.0, 0.004, 0.1]))
def test_the_file_has_all_bytes_in_order_whatever_the_buffers(sizes: list[list[int]], sync_s: float) -> None:
    file = SyncedFile(sync_s)
    writer = file.writer()
    data = bytes(range(256)) * (1 + sum(map(sum, sizes)) // 256)
    at = 0
    for run in sizes:
        writer.write(list(pieces(data[at:], run)))
        at += sum(run)
    assert file.data == data[:at]
    assert writer.size == at
    assert at - (file.synced[-1] if file.synced else 0) < PART_MAX


def test_a_buffer_of_many_parts_is_synced_part_by_part() -> None:
    """The cleaner writes up to 8 MiB at a time: one sync of them delayed a produce by as much."""
    file = SyncedFile()
    file.writer().write([bytes(8 << 20)])
    assert file.parts() == [PART_MIN] * ((8 << 20) // PART_MIN)


@pytest.mark.parametrize(
    ("sync_s", "parts"),
    [(0.0005, [128, 128, 128, 128]), (0.0035, [128, 256, 128, 256]), (0.1, [128, 256, 512, 1024, 1024])],
)
def test_parts_grow_while_syncs_are_slow(sync_s: float, parts: list[int]) -> None:
    file = SyncedFile(sync_s)
    file.writer().write([bytes(sum(parts) * KIB)])
    assert file.parts() == [size * KIB for size in parts]


def test_on_a_real_disk(tmp_path: Path) -> None:
    file = PosixDisk().open(f"{tmp_path}/f", write=True, create=True)
    data = bytes(range(256)) * 4096
    PartWriter(file).write([data[:300_000], b"", memoryview(data)[300_000:]])
    assert file.read_at(0, len(data) + 1) == data
    file.close()
