"""Footers with packed indexes without segments of many MiB, and what a reader sees that does not know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from msgspec.structs import replace

from coldstore.segments import packed_indexes
from coldstore.segments.segment_object import SegmentFooter

SMALL = {"PACKED_ENTRIES_MIN": 1, "THIN_BYTES": 600, "_LOG_BYTES_MIN": 1}


@contextmanager
def packing(*, always: bool = True) -> Iterator[None]:
    """Indexes are packed however short they are, thin entries lie 600 bytes apart."""
    with ExitStack() as stack:
        for name, value in SMALL.items() if always else ():
            stack.enter_context(mock.patch.object(packed_indexes, name, value))
        yield


def thin(footer: SegmentFooter) -> SegmentFooter:
    """The same with the indexes that stand in the sections of version 1; as it is where nothing is packed."""
    with packing():
        if not packed_indexes.is_worth_packing(footer.offset_index, footer.log_bytes):
            return footer
        offset_index, time_index = packed_indexes.thinned(footer.offset_index, footer.time_index)
    return replace(footer, offset_index=offset_index, time_index=time_index)
