"""The state block and the batch table that Python and the kernels share (int64 words), statuses, and reasons of a
refusal.

Each word has one writer at a time: Python between calls, a kernel during one.
"""

from __future__ import annotations

from typing import Final

from logformat.kernels.refusals import Reason as Reason

# --- state block: places of int64 words -------------------------------------------------------------------------------
# The log and what is wanted of it
LOG: Final = 0  # address of the first byte
LOG_SIZE: Final = 1
POS: Final = 2  # position of the walk
OFFSET_NEXT: Final = 3  # no batch may begin below it
START_OFFSET: Final = 4
END_OFFSET: Final = 5
TIMED: Final = 6  # 1: only timestamps in [TIME_MIN, TIME_MAX)
TIME_MIN: Final = 7
TIME_MAX: Final = 8
ABORTED: Final = 9  # address of (producer id, first offset, last offset) triples, sorted
ABORTED_COUNT: Final = 10
# The batch table
TABLE: Final = 11
TABLE_ROWS_MAX: Final = 12
WALK_BYTES: Final = 13  # a walk stops after this many bytes of log, while they are in the CPU cache
TABLE_ROWS: Final = 14
COVER_FIRST: Final = 15  # offsets walked so far without a hole; COVER_END −1: none yet
COVER_END: Final = 16
# Position of the rows kernel
ENTRY: Final = 17
AT: Final = 18  # next record of that entry, relative to its data; 0 at its start
DONE: Final = 19  # number of records of that entry before AT
DELTA_BEFORE: Final = 20
VALIDATED: Final = 21  # 1: the whole batch was parsed once, so the rest of it cannot fail
# Output
WANTED: Final = 22  # wanted columns as bits, which are defined below
ROWS: Final = 23
ROWS_MAX: Final = 24
BUDGET: Final = 25  # bytes left in this output; a row takes its record's bytes and ROW_WIDTH
ROW_WIDTH: Final = 26
KEY_BITS: Final = 27  # validity bitmaps, all ones before the first call
KEY_OFFSETS: Final = 28
KEY_DATA: Final = 29
KEY_NULLS: Final = 30
VALUE_BITS: Final = 31
VALUE_OFFSETS: Final = 32
VALUE_DATA: Final = 33
VALUE_NULLS: Final = 34
OFFSETS: Final = 35
TIMESTAMPS: Final = 36
TIMESTAMP_BITS: Final = 37
TIMESTAMP_NULLS: Final = 38
TIMESTAMP_TYPES: Final = 39
LIST_BITS: Final = 40
LIST_OFFSETS: Final = 41
LIST_NULLS: Final = 42
HEADERS: Final = 43  # header entries so far
HEADERS_MAX: Final = 44
HEADER_KEY_OFFSETS: Final = 45
HEADER_KEY_DATA: Final = 46
HEADER_KEY_NOT_ASCII: Final = 47
HEADER_VALUE_BITS: Final = 48
HEADER_VALUE_OFFSETS: Final = 49
HEADER_VALUE_DATA: Final = 50
HEADER_VALUE_NULLS: Final = 51
# Results
REASON: Final = 52
NEED_BYTES: Final = 53  # for the record that does not fit into an empty output
NEED_HEADERS: Final = 54
STATE_WORDS: Final = 55

# --- one row of the batch table ---------------------------------------------------------------------------------------
B_POS: Final = 0
B_SIZE: Final = 1
B_BASE_OFFSET: Final = 2
B_LAST_DELTA: Final = 3
B_BASE_TIMESTAMP: Final = 4
B_MAX_TIMESTAMP: Final = 5
B_ATTRIBUTES: Final = 6
B_COUNT: Final = 7
B_DATA: Final = 8  # address of the records, decompressed
B_DATA_SIZE: Final = 9
BATCH_WORDS: Final = 10

# --- WANTED -----------------------------------------------------------------------------------------------------------
WANT_KEY: Final = 1
WANT_VALUE: Final = 2
WANT_OFFSET: Final = 4
WANT_TIMESTAMP: Final = 8
WANT_TIMESTAMP_TYPE: Final = 16
WANT_HEADERS: Final = 32

# --- statuses ---------------------------------------------------------------------------------------------------------
MORE: Final = 0  # walk: the table is full, or WALK_BYTES were walked
END: Final = 1  # walk: end of the log; rows: end of the table
POISON: Final = 2  # REASON says why. walk: the batch at POS; rows: the batch of ENTRY
HOLE: Final = 3  # walk: the batch at POS does not continue COVER_END
FULL: Final = 4  # rows: deliver the output, and call again
TOO_SMALL: Final = 5  # rows: nothing fits; NEED_BYTES and NEED_HEADERS have the needed sizes
