"""The state block that Python and the kernels of compaction share (int64 words), and the kernels' statuses."""

from __future__ import annotations

from typing import Final

# The run of batches
DATA: Final = 0  # address of its first byte
SIZE: Final = 1
POS: Final = 2  # position of the next batch
RECORDS: Final = 3  # address of that batch's decompressed records; 0: not decompressed
RECORDS_SIZE: Final = 4
END_OFFSET: Final = 5  # after the last processed batch; −1: none yet
# The map
SLOTS: Final = 6  # address; a slot has two words of hash, then the offset + 1 (0 in an empty slot)
SLOT_COUNT: Final = 7  # a prime
ENTRIES: Final = 8
ENTRIES_MAX: Final = 9
HASH_KEY_0: Final = 10
HASH_KEY_1: Final = 11
# Rules
NOW: Final = 12
HORIZON: Final = 13  # delete horizon for tombstones that are retained for the first time
TOMBSTONES_END: Final = 14  # batches that end at or above this offset keep their tombstones
# Output
OUT: Final = 15
OUT_SIZE: Final = 16
OUT_AT: Final = 17
KEPT: Final = 18  # address of the retained records of a compressed batch
KEPT_SIZE: Final = 19
KEPT_BYTES: Final = 20
DECISIONS: Final = 21  # address; one byte per record
DECISIONS_SIZE: Final = 22
# The hole: a run of emptied batches whose filler is not written yet. HOLE_FIRST is −1 if there is none.
HOLE_FIRST: Final = 23
HOLE_END: Final = 24
HOLE_EPOCH: Final = 25
# Results
REASON: Final = 26
NEED: Final = 27
BATCH_COUNT: Final = 28  # of the compressed batch that is rewritten
BATCH_BASE_TIMESTAMP: Final = 29
BATCH_MAX_TIMESTAMP: Final = 30
BATCH_ATTRIBUTES: Final = 31
RECORDS_READ: Final = 32
RECORDS_KEPT: Final = 33
KEYLESS_DROPPED: Final = 34
TOMBSTONES_DROPPED: Final = 35
FILLERS: Final = 36
BATCH_POS: Final = 37  # of the compressed batch that is rewritten
MAP_END: Final = 38  # the map has the keys of all dirty records below this offset, and of no record above it
ABORTED: Final = 39  # address of sorted (producer id, first offset, last offset) triples
ABORTED_COUNT: Final = 40
LAST_OFFSETS: Final = 41  # address of the sorted last offsets of batches that never become part of a hole
LAST_OFFSETS_COUNT: Final = 42
STATE_WORDS: Final = 43

DONE: Final = 0
POISON: Final = 1  # the batch at POS is refused for REASON
PACKED: Final = 2  # the batch at POS is compressed: supply its decompressed records
FULL: Final = 3  # map: the batch at POS does not fit; clean: NEED bytes do not fit into the output
REWRITE: Final = 4  # KEPT has the retained records of the batch at BATCH_POS: compress and write them
DECISIONS_SHORT: Final = 5  # DECISIONS needs NEED bytes
KEPT_SHORT: Final = 6  # KEPT needs NEED bytes
