"""`bucket verify --deep` compares section 7 of a footer with the markers in the object's bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from coldstore.inspection.marker_audit import MarkerWalk
from coldstore.segments.segment_object import DecidedTransaction, SegmentFooter, TransactionOutcome
from hotstore.log.log_config import LogConfig
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import append, batch, new_log, read_all
from tests.unit.hotstore.log.test_hotstore_transactions import end, in_transaction

ABORTED, COMMITTED = TransactionOutcome.ABORTED, TransactionOutcome.COMMITTED


def log_bytes(base: int = 0) -> bytes:
    """0 of producer 7, 1 of producer 8, 2 plain, 3 aborts 7, 4 commits 8, 5 aborts nothing, 6 of 9, open."""
    _, log = new_log(CrashDisk(), LogConfig(segment_bytes=60_000, index_interval_bytes=100))
    in_transaction(log, 7, 0)
    in_transaction(log, 8, 0)
    append(log, batch())
    end(log, 7, commit=False)
    end(log, 8, commit=True)
    end(log, 5, commit=False)
    in_transaction(log, 9, 0)
    return b"".join(read_all(log, base))


def said(*named: DecidedTransaction, base: int = 0) -> SegmentFooter:
    statistics = SimpleNamespace(base_offset=base, end_offset=7)
    return cast(SegmentFooter, SimpleNamespace(transactions=named, statistics=statistics))


def differing(data: bytes, footer: SegmentFooter, piece: int = 1 << 20) -> list[str]:
    walk = MarkerWalk()
    for at in range(0, len(data), piece):
        walk.feed(data[at : at + piece])
    return walk.differences(footer)


SEVEN = DecidedTransaction(7, 0, 0, 3, ABORTED)
BEYOND = DecidedTransaction(9, 0, 6, 20, ABORTED), DecidedTransaction(9, 0, 6, 20, COMMITTED)


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 20])
def test_a_footer_that_says_what_the_markers_say_is_whole(piece: int) -> None:
    for beyond in BEYOND:
        assert differing(log_bytes(), said(SEVEN, beyond), piece) == []


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ((), ["producer 7 at offset 3 aborts records here, but the footer's section 7 does not list it"]),
        (
            (SEVEN, DecidedTransaction(8, 0, 1, 4, ABORTED)),
            ["producer 8 at offset 4 is listed as an abort in section 7, but commits"],
        ),
        (
            (SEVEN, DecidedTransaction(6, 0, 0, 2, ABORTED)),
            ["producer 6 at offset 2 is listed as an abort in section 7, but is missing"],
        ),
    ],
)
def test_one_that_hides_other_records_is_named(named: tuple[DecidedTransaction, ...], told: list[str]) -> None:
    found = differing(log_bytes(), said(*named))
    assert len(found) == len(told) and all(text in one for text, one in zip(told, found, strict=True))


def test_a_marker_of_records_before_the_object_need_not_be_known() -> None:
    """The records are not here, so whether it ended anything cannot be told; one that is named has to be there."""
    assert differing(log_bytes(base=2), said(base=2)) == differing(log_bytes(base=2), said(SEVEN, base=2)) == []
