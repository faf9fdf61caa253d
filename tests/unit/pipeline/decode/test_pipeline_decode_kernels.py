"""What the kernels stand on: CRC32C, the compile cache and its fall-backs, threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import crc32c
import numba
import numpy as np
import pyarrow as pa
import pytest

from bench.decode import make_log
from logformat.compaction import clean_kernel, map_kernel
from logformat.kernels import crc_kernel, kernel_cache
from tests.support.pipeline.numpy_decoder import NumpyWay
from thermocline.pipeline.decode import kernel_way, rows_kernel, walk_kernel
from thermocline.pipeline.decode import layout as at
from thermocline.pipeline.decode.batches import BatchDecoder
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.split import RowFilter


def test_the_crc_is_crc32c() -> None:
    """By the machine's instruction and by table, at every length around the streams' borders, at odd addresses."""
    data = np.random.default_rng(1).integers(0, 256, 30_000, dtype=np.uint8)
    by_table = numba.njit(crc_kernel._crc_by_table)
    sizes = [*range(40), 255, 256, 767, 768, 769, 1540, 4096, 12_287, 12_288, 12_289, 13_400, 24_577, 29_000]
    for start in (0, 1, 5):
        for size in sizes:
            address = data.ctypes.data + start
            expected = crc32c.crc32c(data[start : start + size].tobytes())
            assert crc_kernel.crc_of(address, address + size) == expected, (start, size)
            assert by_table(address, address + size) == expected, (start, size)


def test_places_of_the_state_block_are_all_different() -> None:
    """Two names for one place would let a kernel write where another reads."""
    names = [name for name in vars(at) if name.isupper()]
    first, last = names.index("LOG"), names.index("STATE_WORDS")
    places = [getattr(at, name) for name in names[first:last]]
    assert sorted(places) == list(range(at.STATE_WORDS))


def increment(n: int) -> int:
    return n + 1


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_kernels_compile_wherever_nothing_can_be_cached(
    failures: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside the sources, else in a private temporary directory, else not cached at all."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tried: list[bool] = []

    def compile_or_fail(function: Callable[[int], int], *, cache: bool) -> Callable[[int], int]:
        tried.append(cache)
        if len(tried) <= failures:
            raise RuntimeError("cannot cache function: no locator available")
        return function

    monkeypatch.setattr(kernel_cache, "_compile", compile_or_fail)
    assert kernel_cache.compiled(increment)(4) == 5
    assert tried == [True, True, False][: failures + 1]
    assert vars(numba.core.config)["CACHE_DIR"] == ""


def test_a_cache_directory_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Code found there would be executed: it must be ours, and no one else's to write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"thermocline-numba-{os.getuid()}"
    theirs.mkdir(mode=0o777)
    theirs.chmod(0o777)
    with pytest.raises(RuntimeError, match="not a private directory"), kernel_cache._private_cache_directory():
        pass


def test_the_cache_knows_every_source() -> None:
    """Numba looks at one file only; a kernel's cached code must not outlive a change of the layout."""
    kernels = (walk_kernel._walk, rows_kernel._rows, map_kernel._map_batches, clean_kernel._clean_batches)
    for kernel in kernels:
        assert kernel.__qualname__.endswith(kernel_cache._digest(kernel.__module__))
    digests = {kernel.__module__.rpartition(".")[0]: kernel_cache._digest(kernel.__module__) for kernel in kernels}
    assert len(set(digests.values())) == len(digests) == 2


def test_the_kernels_are_used_where_no_decoder_is_named() -> None:
    assert type(BatchDecoder("t", 0, ("value",), RowFilter(0, 9))._way) is KernelWay


def test_kernels_run_without_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread is inside a kernel, another makes progress in Python."""
    log = make_log(100, 1 << 20, 8 << 20)
    monkeypatch.setattr(kernel_way, "_WALK_BYTES", 1 << 30)  # the whole log in one call
    switch = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody gives up the GIL but by releasing it
    turns = 0
    over = threading.Event()

    def count() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            time.sleep(0)  # gives the GIL to whoever waits for it

    def decode() -> None:
        for _ in range(20):
            list(BatchDecoder("t", 0, ("value",), RowFilter(0, 2**62), way=KernelWay).decode(log))
        over.set()

    try:
        threads = [threading.Thread(target=work, daemon=True) for work in (decode, count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(switch)
    assert over.is_set() and turns > 100  # about 1000; 60 where kernels hold it


def test_threads_do_not_disturb_each_other() -> None:
    """A decoder each, scratch memory each: two logs at once give what each alone gives."""
    logs = [make_log(size, 4 << 10, 2 << 20) for size in (50, 700)]
    expected = [
        pa.Table.from_batches(BatchDecoder("t", 0, ("value",), RowFilter(0, 2**62), way=NumpyWay).decode(log))
        for log in logs
    ]
    found: dict[int, bool] = {}

    def work(index: int) -> None:
        same = True
        for _ in range(5):
            made = list(BatchDecoder("t", 0, ("value",), RowFilter(0, 2**62)).decode(logs[index]))
            same &= pa.Table.from_batches(made).equals(expected[index])
        found[index] = same

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {0: True, 1: True}
