"""Roots that a run's onlookers read again and again, decoded once for each state.

Owns the last root decoded of each key. Always true: what it gives is what the bytes and the ETag say. Must not know
stores.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from coldstore.object_store import Got
from coldstore.roots.root import Root
from coldstore.roots.root_format import RootCodec

Content = TypeVar("Content", bound=msgspec.Struct)


class ReadRoots(Generic[Content]):
    """`decode` as `codec` does it."""

    def __init__(self, codec: RootCodec[Content]) -> None:
        self._codec = codec
        self._known: dict[str, tuple[Got, Root[Content]]] = {}

    def decode(self, key: str, got: Got) -> Root[Content]:
        """Corrupt: the bytes are no root."""
        known = self._known.get(key)
        if known is not None and known[0] == got:
            return known[1]
        root = self._codec.decode(key, got)
        self._known[key] = got, root
        return root
