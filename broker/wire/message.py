"""Base class of all messages: msgspec structs, constructed in C in 0.1 µs.

One class serves all versions of a message. A field that a version lacks is not encoded, and has its default after
decoding.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, gc=False, repr_omit_defaults=True):
    """A request, a response, a record, or a structure in one of them.

    It is not tracked by the garbage collector (`gc=False`), so no part of a message may refer back to the message.
    """


class EncodedElements(msgspec.Struct, gc=False):
    """Encoded elements of an array, in the requested version. It replaces the list of elements in a response that is
    encoded in steps."""

    count: int
    body: bytes

    def __len__(self) -> int:
        return self.count


class Encoded(msgspec.Struct, gc=False):
    """The encoded body of a response, in the requested version."""

    body: bytes
