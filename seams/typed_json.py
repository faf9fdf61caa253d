"""Typed JSON decoders, created one at a time.

msgspec reads the fields of a Struct when a decoder of it is first made. A second thread that uses the type meanwhile
reads unfilled fields, and the process dies of SIGSEGV (msgspec 0.22). Every decoder that is made while threads run
therefore comes from here; module-level decoders are made at import. A finished decoder may be used from any thread.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_ONE_AT_A_TIME: Final = Lock()
_MADE: Final[dict[object, msgspec.json.Decoder[Any]]] = {}


def decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of `kind`, the same one for every caller. Its `decode` raises msgspec.MsgspecError."""
    with _ONE_AT_A_TIME:
        made = _MADE.get(kind)
        if made is None:
            made = _MADE[kind] = msgspec.json.Decoder(kind)
        return made
