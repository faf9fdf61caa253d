"""Thermocline: a log service that speaks the Kafka protocol, with a local tier on disk and a cold tier in a bucket.

`thermocline.read` (history as Arrow batches) is imported at its first use, because the command line imports this
package.
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
