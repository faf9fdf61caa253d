"""The one error this package raises."""

from __future__ import annotations

from logformat.errors import InvalidRequest


class MalformedFrame(InvalidRequest):
    """The bytes of a frame are not what its API and version say; the connection cannot be trusted further."""
