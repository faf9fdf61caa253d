"""Hostile bytes: both ways refuse the same batches for the same reasons, and no kernel reads outside its bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from logformat.record_batch import HEADER_SIZE, Codec, walk
from logformat.records import Record, encode_batch
from tests.fuzz.targets.decode_kernels import agree
from tests.support.pipeline.decode_logs import logs, read, with_right_crc
from tests.support.pipeline.numpy_decoder import NumpyWay
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.rows import COLUMNS

slowly = settings(deadline=None, max_examples=70, suppress_health_check=list(HealthCheck))
edits = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=4)
some_columns = st.lists(st.sampled_from(COLUMNS), unique=True)


def edited(log: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = bytearray(log)
    for place, byte in changes:
        if out:
            out[place % len(out)] = byte
    return bytes(out)


def resealed(log: bytes, changes: list[tuple[int, int]], *, headers: bool) -> bytes:
    """Each batch's bytes changed (its header's too, from the attributes on), then its CRC made right again."""
    out = b""
    for position, header in walk(log):
        batch = log[position : position + header.size]
        first = 21 if headers else HEADER_SIZE
        out += with_right_crc(batch[:first] + edited(batch[first:], changes))
    return out


@slowly
@given(logs(), edits)
@example(encode_batch([Record(0, 1, b"k", b"v")]) * 2, [(0, 64), (10, 1)])  # a base offset of 2^62
def test_flipped_bytes_give_the_rows_before_them_or_poison(log: bytes, changes: list[tuple[int, int]]) -> None:
    """Bytes changed anywhere: the CRC or the header's own sense finds it."""
    agree(edited(log, changes))


@slowly
@given(logs(), st.integers(0, 2**20))
def test_a_log_cut_anywhere_is_poison_at_its_last_batch(log: bytes, end: int) -> None:
    """Whole batches are asked for; a part of one is refused, the ones before it are rows."""
    agree(log[: end % (len(log) + 1)])


@slowly
@given(logs(), edits)
@example(encode_batch([Record(0, 1, b"k", b"v")]), [(2, 0x80), (3, 0xFF)])
def test_a_producer_that_lies_about_its_records(log: bytes, changes: list[tuple[int, int]]) -> None:
    """Records changed and sealed under a right CRC: every length and varint is bounded, and rows are all or none."""
    agree(resealed(log, changes, headers=False))


@slowly
@given(logs(batches_max=3), edits)
def test_a_producer_that_lies_in_its_header(log: bytes, changes: list[tuple[int, int]]) -> None:
    """Attributes, counts, timestamps and deltas changed under a right CRC."""
    agree(resealed(log, changes, headers=True))


def test_fuzz_no_records_have_no_timestamp_out_of_range() -> None:
    """Found by the fuzz target decode_kernels: of a stamped batch of no records numpy blamed the timestamp, the
    kernels the bytes behind its header."""
    batch = bytearray(encode_batch([Record(0, 1, None, b"v")]))
    batch[22] |= 0x08
    batch[35:43] = (-(2**63)).to_bytes(8, "big", signed=True)
    batch[57:61] = bytes(4)
    agree(with_right_crc(batch))


@slowly
@given(st.integers(1, 5), st.binary(max_size=80), st.sampled_from([0, 1, 9, 2**31 - 1]))
def test_records_made_of_noise(count: int, noise: bytes, last_delta: int) -> None:
    """Bytes that never were records."""
    batch = bytearray(encode_batch([Record(0, 1, None, None)], last_offset=last_delta))[:HEADER_SIZE] + noise
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    agree(with_right_crc(batch))


@slowly
@given(logs(), edits, some_columns, st.sampled_from([300, 8 << 20]))
def test_both_ways_agree_whatever_is_wanted(
    log: bytes, changes: list[tuple[int, int]], columns: list[str], target_bytes: int
) -> None:
    """Fields of no wanted column are not validated: by neither way, so that results do not depend on numba."""
    log = resealed(log, changes, headers=True)
    first, second = (read(log, way, columns, target_bytes=target_bytes) for way in (KernelWay, NumpyWay))
    assert first[0] == second[0]
    assert str(first[1]) == str(second[1])
    assert first[2] == second[2]


@pytest.mark.parametrize("way", [KernelWay, NumpyWay], ids=["kernels", "numpy"])
def test_compression_bombs_are_refused(way: type[KernelWay | NumpyWay]) -> None:
    """Records that decompress to more than a batch may hold are poison, and cost no memory beyond that."""
    bomb = encode_batch([Record(0, 1, None, bytes(140 << 20))], codec=Codec.ZSTD)
    assert len(bomb) < 100_000
    _, poison, _ = read(bomb, way, ["offset"])
    assert poison is not None and poison.next_position == len(bomb)


GUARDED = """
import ctypes, mmap, random, sys
from logformat.record_batch import Codec, walk
from logformat.records import Record, encode_batch
from tests.support.pipeline.decode_logs import EVERYTHING, with_right_crc
from thermocline.pipeline.decode.batches import BatchDecoder, PoisonBatch
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.rows import COLUMNS

libc = ctypes.CDLL(None, use_errno=True)
PAGES = 16
memory = mmap.mmap(-1, (PAGES + 2) * mmap.PAGESIZE)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for page in (0, PAGES + 1):
    assert libc.mprotect(ctypes.c_void_p(base + page * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
end = base + (PAGES + 1) * mmap.PAGESIZE
rng = random.Random(5)
seeds = [
    encode_batch([Record(n, 1, b"key", bytes(rng.randrange(300)), (("h", b"v"), ("g", None))) for n in range(9)]),
    encode_batch([Record(n, n << 40, None, b"") for n in range(30)]),
    encode_batch([Record(0, 1, b"", bytes(9000), ())]),
]
decoders = [BatchDecoder("t", 0, columns, EVERYTHING, target_bytes=target, way=KernelWay)
            for columns in (COLUMNS, ("value",), ("key",), ("offset",), ("headers", "timestamp"))
            for target in (200, 1 << 20)]
poisoned = 0
for turn in range(6000):
    batch = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(4)):
        place = rng.randrange(21, len(batch)) if rng.random() < 0.9 else rng.randrange(21)
        batch[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.3:
        del batch[rng.randrange(len(batch)):]
        if len(batch) > 61:
            batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    if len(batch) > 21 and rng.random() < 0.9:
        batch = with_right_crc(batch)
    ctypes.memmove(end - len(batch), bytes(batch), len(batch))  # the page behind the last byte cannot be read
    log = (ctypes.c_char * len(batch)).from_address(end - len(batch))
    try:
        for rows in decoders[turn % len(decoders)].decode(memoryview(log).cast("B")):
            rows.validate(full=True)
    except PoisonBatch:
        poisoned += 1
print(poisoned)
"""


@pytest.mark.not_fast
def test_kernels_never_read_behind_the_log() -> None:
    """In a process of its own, with the log's last byte before a page that kills whoever reads it."""
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert 1000 < int(done.stdout) < 6000
