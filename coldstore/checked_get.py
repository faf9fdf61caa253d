"""A ranged GET of bytes that somebody wrote down as being there.

Owns one translation. Always true: what is returned has exactly the length asked for (or, for a `tail`, what the object
has of it); an object that turns out to be shorter is Corrupt, whatever the store calls a range beyond its end.
"""

from __future__ import annotations

from coldstore.object_store import Got, ReadStore
from logformat.errors import Corrupt, InvalidRequest


async def get_range(store: ReadStore, key: str, position: int, length: int) -> Got:
    """Bytes `[position, position + length)`, all of them. Raises Corrupt, ObjectMissing, StoreError."""
    try:
        got = await store.get(key, position, length)
    except InvalidRequest as beyond:
        raise Corrupt(f"object {key} ends before byte {position + length}: {beyond}") from beyond
    if len(got.data) != length:
        raise Corrupt(f"object {key} has {got.size} bytes, it should reach byte {position + length}")
    return got


async def get_start(store: ReadStore, key: str, length_max: int) -> Got:
    """The first bytes, at most `length_max`. Raises Corrupt (also for an empty object), ObjectMissing, StoreError."""
    try:
        return await store.get(key, 0, length_max)
    except InvalidRequest as empty:
        raise Corrupt(f"object {key} is empty: {empty}") from empty
