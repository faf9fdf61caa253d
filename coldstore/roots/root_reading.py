"""Reads a root.

A root that cannot be decoded is read again, to distinguish a damaged object from a damaged response. A root counts as
damaged after three undecodable reads of one version (one ETag). A bit that was flipped in transit thus does no harm. A
mix of two versions does no harm either. `ArrowStore` on S3 may read such a mix if a writer commits between its request
for the size and its read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coldstore.checked_get import get_start
from coldstore.object_store import Got, ReadStore, StoreUnavailable
from coldstore.roots.root_format import ROOT_BYTES_MAX, Root, T
from logformat.errors import Corrupt
from logformat.values import NewerFormat

SAME_READS: Final = 3  # undecodable reads of one version that count as damage
READS_MAX: Final = 12  # reads in all, if each finds another version; a writer commits a few times a second at most


async def read_root(
    store: ReadStore, key: str, decode: Callable[[str, Got], Root[T]], got: Got | None = None
) -> Root[T]:
    """The root under `key`, decoded by `decode`. `got`: a first response, if the caller has one.

    Raises ObjectMissing, Corrupt, NewerFormat, AccessRefused, StoreError (also if it changed under every read)."""
    etag, failures = "", 0
    for _ in range(READS_MAX):
        try:
            if got is None:
                got = await get_start(store, key, ROOT_BYTES_MAX)
            return decode(key, got)
        except (Corrupt, NewerFormat):
            seen = "" if got is None else got.etag  # an empty object has no ETag here
            failures = failures + 1 if seen == etag else 1
            if failures == SAME_READS:
                raise
            etag, got = seen, None
    raise StoreUnavailable(f"root {key} changed under each of {READS_MAX} reads; try again")
