"""`MalformedFrame`, the only error that decoding raises."""

from __future__ import annotations

from logformat.errors import InvalidRequest


class MalformedFrame(InvalidRequest):
    """The bytes of a frame do not fit its API and version; the rest of the connection cannot be read."""
