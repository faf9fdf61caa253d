"""Cleans batches: removes superseded records, keeps the empty last batches of producers, and puts fillers in place of
other emptied batches (ADR 30)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

from logformat.compaction import layout as at
from logformat.compaction.clean_kernel import clean_batches, finish_hole
from logformat.compaction.filler import FILLER_BYTES_MAX
from logformat.compaction.offset_map import OffsetMap, enter, enter_aborted, poison, unpacked
from logformat.compaction.rules import CleanRules, CleanStats
from logformat.compression import compress
from logformat.record_batch import (
    CODEC_MASK,
    INT64_MAX,
    Buffer,
    Codec,
    batch_of,
    read_header,
)

_SLACK_BYTES: Final = 64 << 10
_CODECS: Final = tuple(Codec)

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class BatchCleaner:
    """The cleaner of one segment. `offsets` has all keys of the pass. Batches come in the order of their offsets."""

    def __init__(self, offsets: OffsetMap, rules: CleanRules) -> None:
        self._offsets = offsets
        self._state = state = array("q", bytes(8 * at.STATE_WORDS))
        self._address = state.buffer_info()[0]
        self._out = self._decisions = self._kept = np.empty(0, np.uint8)
        self._read_bytes = self._written_bytes = 0
        state[at.NOW] = rules.now_ms
        state[at.HORIZON] = min(rules.now_ms + rules.delete_retention_ms, INT64_MAX)
        state[at.TOMBSTONES_END] = rules.tombstones_end
        self._aborted = enter_aborted(state, rules.aborted)
        self._last_offsets = array("q", rules.last_offsets)  # its address is in the state
        state[at.LAST_OFFSETS], state[at.LAST_OFFSETS_COUNT] = self._last_offsets.buffer_info()
        state[at.END_OFFSET] = state[at.HOLE_FIRST] = -1

    @property
    def stats(self) -> CleanStats:
        state = self._state
        return CleanStats(
            records_read=state[at.RECORDS_READ],
            records_kept=state[at.RECORDS_KEPT],
            keyless_dropped=state[at.KEYLESS_DROPPED],
            tombstones_dropped=state[at.TOMBSTONES_DROPPED],
            read_bytes=self._read_bytes,
            written_bytes=self._written_bytes,
            fillers=state[at.FILLERS],
        )

    def clean(self, batches: Buffer) -> Sequence[Buffer]:
        """Returns the retained part of `batches`, which are complete and continue those of the last call. The caller
        writes the result before the next call. A hole at the end is kept for the next call. Raises CorruptBatch."""
        state = self._state
        data = np.frombuffer(batches, np.uint8)
        state[at.DATA], state[at.SIZE] = data.ctypes.data, data.size
        state[at.POS] = state[at.RECORDS] = 0
        enter(state, self._offsets)
        made: list[Buffer] = []
        self._new_output(data.size + data.size // 4 + _SLACK_BYTES)
        taken = 0  # `made` has the output's bytes before this position
        while (status := clean_batches(self._address)) != at.DONE:
            if status == at.POISON:
                raise poison(state)
            if status == at.PACKED:
                records = unpacked(batches, state[at.POS])
                state[at.RECORDS], state[at.RECORDS_SIZE] = records.ctypes.data, records.size
            elif status == at.DECISIONS_SHORT:
                self._decisions = np.empty(2 * state[at.NEED], np.uint8)
                state[at.DECISIONS], state[at.DECISIONS_SIZE] = self._decisions.ctypes.data, self._decisions.size
            elif status == at.KEPT_SHORT:
                self._kept = np.empty(state[at.NEED] + state[at.NEED] // 4, np.uint8)
                state[at.KEPT], state[at.KEPT_BYTES] = self._kept.ctypes.data, self._kept.size
            else:
                self._take(made, taken)
                taken = state[at.OUT_AT]
                if status == at.REWRITE:
                    made.append(self._rewritten(batches))
                else:
                    self._new_output(state[at.NEED] + data.size - state[at.POS] + _SLACK_BYTES)
                    taken = 0
        self._take(made, taken)
        self._read_bytes += data.size
        self._written_bytes += sum(map(len, made))
        return made

    def finish(self) -> bytes:
        """The filler of the last hole; empty if there is no hole."""
        self._new_output(FILLER_BYTES_MAX)
        finish_hole(self._address)
        made = self._out[: self._state[at.OUT_AT]].tobytes()
        self._written_bytes += len(made)
        return made

    def _new_output(self, size: int) -> None:
        state = self._state
        self._out = np.empty(size, np.uint8)
        state[at.OUT], state[at.OUT_SIZE], state[at.OUT_AT] = self._out.ctypes.data, size, 0

    def _take(self, made: list[Buffer], taken: int) -> None:
        if self._state[at.OUT_AT] > taken:
            made.append(self._out.data[taken : self._state[at.OUT_AT]])

    def _rewritten(self, batches: Buffer) -> bytes:
        """The compressed batch at BATCH_POS, with only its retained records."""
        state = self._state
        header = read_header(batches, state[at.BATCH_POS])
        records = self._kept.data[: state[at.KEPT_SIZE]]
        body = compress(_CODECS[header.attributes & CODEC_MASK], records)
        frame = header._replace(
            attributes=state[at.BATCH_ATTRIBUTES],
            base_timestamp=state[at.BATCH_BASE_TIMESTAMP],
            max_timestamp=state[at.BATCH_MAX_TIMESTAMP],
            record_count=state[at.BATCH_COUNT],
        )
        return bytes(batch_of(frame, body))
