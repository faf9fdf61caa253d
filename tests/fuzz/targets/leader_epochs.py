"""The leader epoch checkpoint: Corrupt, or a lineage that round-trips and keeps its order through every cut.

Input: two offsets (8 bytes each) to cut at, then the file.
"""

from __future__ import annotations

import struct

from logformat.errors import Corrupt
from logformat.leader_epochs import EpochStart, LeaderEpochs
from tests.fuzz.inputs import Cursor


def seeds() -> list[bytes]:
    lineage = LeaderEpochs((EpochStart(0, 0), EpochStart(4, 700), EpochStart(5, 1010))).to_bytes()
    cuts = struct.pack(">qq", 700, 1009)
    return [cuts + lineage, cuts, cuts + b"0\n1\n0 9223372036854775807\n", cuts + b"0\n2\n1 5\n1 6\n"]


def run(data: bytes) -> None:
    cursor = Cursor(data)
    first, second = sorted((cursor.number(8) & (2**63 - 1), cursor.number(8) & (2**63 - 1)))
    try:
        lineage = LeaderEpochs.from_bytes(cursor.rest())
    except Corrupt:
        return
    assert LeaderEpochs.from_bytes(lineage.to_bytes()) == lineage
    for changed in (
        lineage.truncate_from_end(first),
        lineage.truncate_from_start(second),
        lineage.assign(first & (2**31 - 1), second),
    ):
        assert LeaderEpochs.from_bytes(changed.to_bytes()) == changed
    inside = lineage.truncate_from_start(first).truncate_from_end(second)
    for offset in (first, (first + second) // 2, second - 1):
        if first <= offset < second:
            assert inside.epoch_for(offset) == lineage.epoch_for(offset), offset
    for entry in lineage.entries[:5]:
        assert lineage.epoch_for(entry.start_offset) == entry.epoch
        assert lineage.end_offset_for(entry.epoch, 2**63 - 1).epoch == entry.epoch
