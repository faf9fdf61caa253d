"""Ranged GETs of bytes that must exist. An answer has exactly the requested length.

A shorter object raises Corrupt, even if the store has another error for a range beyond the end.
"""

from __future__ import annotations

from coldstore.object_store import Got, ReadStore
from logformat.errors import Corrupt, InvalidRequest


async def get_range(store: ReadStore, key: str, position: int, length: int) -> Got:
    """All bytes `[position, position + length)`. Raises Corrupt, ObjectMissing, StoreError."""
    try:
        got = await store.get(key, position, length)
    except InvalidRequest as beyond:
        raise Corrupt(f"object {key} ends before byte {position + length}: {beyond}") from beyond
    if len(got.data) != length:
        raise Corrupt(f"object {key} has {got.size} bytes, but should reach byte {position + length}")
    return got


async def get_start(store: ReadStore, key: str, length_max: int) -> Got:
    """The first bytes, at most `length_max`. Raises Corrupt (also for an empty object), ObjectMissing, StoreError."""
    try:
        return await store.get(key, 0, length_max)
    except InvalidRequest as empty:
        raise Corrupt(f"object {key} is empty: {empty}") from empty
