"""Selects the format of a manifest's root (docs/formats/manifest.md). Pure.

A program of format 1 ignores `replaced`, `clean_end_offset` and an entry's `decided`, and would drop them from the root
that it writes. Replaced objects would then be deleted before the end of their grace, or never. An entry would differ
from its object. A root with one of these fields thus has format 2, which such a program refuses. It can read all other
roots.
"""

from __future__ import annotations

from typing import Final

from coldstore.manifest.manifest import Manifest
from coldstore.roots.root_format import RootFormat


def format_needed(manifest: Manifest) -> int:
    """The oldest format that keeps all fields of the manifest."""
    is_compacted = manifest.clean_end_offset > 0 or bool(manifest.replaced)
    return 2 if is_compacted or any(segment.decided for segment in manifest.tail) else 1


MANIFEST_FORMAT: Final[RootFormat[Manifest]] = RootFormat(2, {1: Manifest, 2: Manifest}, format_needed)
