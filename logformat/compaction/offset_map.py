"""Map of the newest offset of each key in a pass (Kafka's SkimpyOffsetMap), and its filling from batches.

The map stores the 128-bit hash of a key, so an entry takes 24 bytes for a key of any length."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

from logformat.compaction import layout as at
from logformat.compaction.map_kernel import SLOT_BYTES, map_batches
from logformat.compaction.rules import LOAD_FACTOR, Mapped
from logformat.compression import decompress
from logformat.kernels.aborted_kernel import triples
from logformat.kernels.refusals import Reason
from logformat.record_batch import CODEC_MASK, HEADER_SIZE, Buffer, Codec, CorruptBatch, read_header
from logformat.records import RECORDS_BYTES_MAX

_SLOTS_MIN: Final = 3
_CODECS: Final = tuple(Codec)


class OffsetMap:
    """The map of a pass. `seed`: 16 bytes, the key of the hash. The system allocates a page when it is first written.
    `end_offset`: exclusive end of the mapped records."""

    def __init__(self, bytes_max: int, seed: bytes) -> None:
        """Raises OSError (ENOMEM)."""
        self.slot_count = _prime_below(max(bytes_max // SLOT_BYTES, _SLOTS_MIN))
        self.capacity = max(int(self.slot_count * LOAD_FACTOR), 1)
        self.entries = 0
        self.end_offset = 0
        self.key = (int.from_bytes(seed[:8], "little", signed=True), int.from_bytes(seed[8:], "little", signed=True))
        self._memory: mmap.mmap | None = mmap.mmap(-1, SLOT_BYTES * self.slot_count)
        view = np.frombuffer(self._memory, np.uint8)
        self.address: int = view.ctypes.data

    def close(self) -> None:
        """Free the memory; do not use the map afterwards."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()


class KeyMapper:
    """Fills a map; batches come in the order of their offsets."""

    def __init__(self, offsets: OffsetMap, aborted: Sequence[tuple[int, int, int]] = ()) -> None:
        """`aborted`: aborted transactions as in `CleanRules`; the keys of their records are not mapped."""
        self._offsets = offsets
        self._state = array("q", bytes(8 * at.STATE_WORDS))
        self._aborted = enter_aborted(self._state, aborted)
        self._address = self._state.buffer_info()[0]

    def map(self, batches: Buffer) -> Mapped:
        """Map complete, contiguous batches. Each batch is mapped completely or not at all. Raises CorruptBatch."""
        state, offsets = self._state, self._offsets
        data = np.frombuffer(batches, np.uint8)
        state[at.DATA], state[at.SIZE] = data.ctypes.data, data.size
        state[at.POS], state[at.RECORDS], state[at.END_OFFSET] = 0, 0, -1
        enter(state, offsets)
        while (status := map_batches(self._address)) == at.PACKED:
            records = unpacked(batches, state[at.POS])
            state[at.RECORDS], state[at.RECORDS_SIZE] = records.ctypes.data, records.size
        offsets.entries = state[at.ENTRIES]
        if status == at.POISON:
            raise poison(state)
        end_offset = state[at.END_OFFSET]
        if end_offset < 0:
            end_offset = read_header(batches).base_offset
        offsets.end_offset = max(offsets.end_offset, end_offset)
        return Mapped(state[at.POS], end_offset, status == at.FULL)


def enter(state: array[int], offsets: OffsetMap) -> None:
    """Write the map's address and sizes to a state block."""
    state[at.SLOTS], state[at.SLOT_COUNT] = offsets.address, offsets.slot_count
    state[at.ENTRIES], state[at.ENTRIES_MAX] = offsets.entries, offsets.capacity
    state[at.HASH_KEY_0], state[at.HASH_KEY_1] = offsets.key
    state[at.MAP_END] = offsets.end_offset


def enter_aborted(state: array[int], transactions: Sequence[tuple[int, int, int]]) -> array[int]:
    """Write the address of the aborted transactions to a state block. The caller keeps the returned object as long as
    it uses the block."""
    aborted = triples(transactions)
    state[at.ABORTED], state[at.ABORTED_COUNT] = aborted.buffer_info()[0], len(transactions)
    return aborted


def unpacked(batches: Buffer, pos: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The decompressed records of the batch at `pos`. The caller has checked its CRC. Raises CorruptBatch."""
    header = read_header(batches, pos)
    body = memoryview(batches)[pos + HEADER_SIZE : pos + header.size]
    records = decompress(_CODECS[header.attributes & CODEC_MASK], body, RECORDS_BYTES_MAX)
    if not records:
        raise CorruptBatch(f"batch at offset {header.base_offset} claims records but has no bytes")
    return np.frombuffer(records, np.uint8)


def poison(state: array[int]) -> CorruptBatch:
    """The error for the batch at POS."""
    return CorruptBatch(f"batch at position {state[at.POS]} of the run: {Reason(state[at.REASON]).text}")


def _prime_below(number: int) -> int:
    """The greatest prime up to `number` ≥ 3."""
    while any(number % divisor == 0 for divisor in (2, *range(3, int(number**0.5) + 1, 2))):
        number -= 1
    return number
