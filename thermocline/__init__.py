"""Thermocline: a log service that speaks the Kafka protocol, warm on disk and cold in a bucket.

Nothing heavy is imported here: the command line starts from this package. `thermocline.read` (history as Arrow batches)
is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thermocline.pipeline.read import read as read

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "read":
        from thermocline.pipeline.read import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
