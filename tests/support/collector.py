"""Python's collector of cycles, switched off for a while: its passes depend on everything else in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """What nobody holds any more is freed at once or, being part of a cycle, not at all."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
