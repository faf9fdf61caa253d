"""Which format a manifest's root is written in (docs/formats/manifest.md). Pure.
A program of format 1 ignores `replaced`, `clean_end_offset` and an entry's `decided`, and would leave them out of the
root that it writes: replaced objects would go before their grace, or never, and an entry would not be its object's.
So a root that has one of them is of format 2, which such a program refuses. All others stay readable to it."""

from __future__ import annotations

from typing import Final

from coldstore.manifest.manifest import Manifest
from coldstore.roots.root_format import RootFormat


def format_needed(manifest: Manifest) -> int:
    """The oldest format whose programs keep all of it."""
    is_compacted = manifest.clean_end_offset > 0 or bool(manifest.replaced)
    return 2 if is_compacted or any(segment.decided for segment in manifest.tail) else 1


MANIFEST_FORMAT: Final[RootFormat[Manifest]] = RootFormat(2, {1: Manifest, 2: Manifest}, format_needed)
