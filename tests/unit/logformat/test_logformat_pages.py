"""The worked examples of docs/formats are what the code writes, and their tables are the code's layout."""

from __future__ import annotations

import re

from logformat.gap import gap_batches
from logformat.producer_snapshot import (
    BatchRecord,
    ProducerEntry,
    ProducerState,
    decode_producer_state,
    encode_producer_state,
)
from logformat.record_batch import HEADER, HEADER_SIZE
from logformat.records import Record, encode_batch, iter_records
from tests.support.repository import ROOT

FORMATS = ROOT / "docs" / "formats"


def dumps(page: str) -> list[bytes]:
    """The hex dumps of a page, each a fenced block of `address  bytes` lines with addresses that add up."""
    found = []
    for block in re.findall(r"```\n(0000  .*?)```", (FORMATS / page).read_text(), re.DOTALL):
        data = b""
        for line in block.splitlines():
            address, _, digits = line.partition("  ")
            assert int(address, 16) == len(data)
            data += bytes.fromhex(digits)
        found.append(data)
    return found


def table(page: str, columns: int) -> list[list[str]]:
    """Rows of the page's tables that have so many columns and begin with a number."""
    rows = re.findall(r"^\| *(\d+ .*)\|$", (FORMATS / page).read_text(), re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    return [row for row in cells if len(row) == columns]


def test_record_batch_page():
    """Both dumps, and the table's sizes in a row without hole up to the records."""
    records = [
        Record(42, 1700000000000, b"k", b"v", (("h", b"x"),)),
        Record(43, 1700000000005, None, b"w"),
    ]
    batch, gap = dumps("record-batch.md")
    assert encode_batch(records, leader_epoch=3, producer_id=7, producer_epoch=0, base_sequence=5) == batch
    assert list(iter_records(batch)) == records
    assert [gap] == list(gap_batches(1000, 2000, 4))
    rows = table("record-batch.md", 5)
    at = 0
    for row in rows[:-1]:
        assert int(row[0]) == at
        at += int(row[1])
    assert at == int(rows[-1][0]) == HEADER_SIZE == HEADER.size
    assert len(rows) == 14


def test_producer_state_page():
    """The dump, and the tables' sizes against it: header 24, entry 31, batch 32 bytes."""
    (raw,) = dumps("producer-state.md")
    batches = (BatchRecord(3, 4, 38, 39, 1699999999000), BatchRecord(5, 6, 42, 43, 1700000000005))
    state = ProducerState(44, (ProducerEntry(7, 0, batches, 1700000000005),))
    assert encode_producer_state(state) == raw
    assert decode_producer_state(raw) == state
    header = [int(row[1]) for row in table("producer-state.md", 5)]
    entry = [int(row[0]) for row in table("producer-state.md", 4)]
    batch = [int(row[0]) for row in table("producer-state.md", 3)]
    assert (sum(header), sum(entry), sum(batch)) == (24, 31, 32)
    assert sum(header) + sum(entry) + 2 * sum(batch) == len(raw)
