"""A batch at another place of a log: what a leader writes into the header before it appends."""

from __future__ import annotations

from logformat.record_batch import PLACE, read_header


def stamp(batch: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """In place; the CRC does not cover these two."""
    PLACE.pack_into(batch, 0, base_offset, read_header(batch).length, leader_epoch)
