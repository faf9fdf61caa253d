"""The pipeline's decoder, by kernels and by numpy: the slow reader's rows, then the same poison from both.

Input: which columns are wanted and how large a batch of rows may be (one byte), then log bytes; run as they are and
with every batch's CRC made right.
"""

from __future__ import annotations

from logformat.gap import gap_batches
from logformat.record_batch import Codec, TimestampType
from logformat.records import Record, encode_batch
from tests.fuzz.targets.record_batch import resealed
from tests.support.pipeline.decode_logs import read, read_slowly
from tests.support.pipeline.numpy_decoder import NumpyWay
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.rows import COLUMNS

_WANTED = (COLUMNS, ("value",), ("offset",), ("headers", "timestamp"), ())
_TARGETS = (8 << 20, 300)


def seeds() -> list[bytes]:
    def records(first: int) -> list[Record]:
        return [
            Record(n, 5 + n, b"k" * n if n % 3 else None, bytes(n), (("h", b"v"),) * (n % 2))
            for n in range(first, first + 4)
        ]

    whole = b"".join(encode_batch(records(4 * n), codec=codec) for n, codec in enumerate(Codec))
    stamped = encode_batch(records(0), timestamp_type=TimestampType.LOG_APPEND_TIME)
    other = encode_batch([Record(2, -1, None, None)], control=True) + next(iter(gap_batches(3, 9, 1)))
    noise = encode_batch([Record(0, 2**62, b"", b"x" * 300, (("a\udcff", None),))], last_offset=5)
    return [bytes([n]) + log for n, log in enumerate((whole, stamped, other, noise, stamped[:-2], whole[:200]))]


def run(data: bytes) -> None:
    choice = data[0] if data else 0
    columns, target_bytes = _WANTED[choice % len(_WANTED)], _TARGETS[choice // len(_WANTED) % len(_TARGETS)]
    log = data[1:]
    for one in {log, resealed(log)}:
        agree(one)
        if columns != COLUMNS:
            first, second = (read(one, way, columns, target_bytes=target_bytes) for way in (KernelWay, NumpyWay))
            assert (first[0], str(first[1]), first[2]) == (second[0], str(second[1]), second[2])


def agree(log: bytes) -> None:
    """Both ways give the slow reader's rows, then the same poison."""
    expected, position = read_slowly(log)
    outcomes = [read(log, way) for way in (KernelWay, NumpyWay)]
    for rows, poison, _ in outcomes:
        assert rows == expected
        assert (poison.position if poison else None) == position
    first, second = (
        (poison and (poison.base_offset, poison.next_position, poison.reason), covered)
        for _, poison, covered in outcomes
    )
    assert first == second
