"""Paths of the files of `serve --secure`. This module must not load `cryptography`: every start asks whether a
directory is secured (40 ms)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SECURITY: Final = "security"


def authority_file(data_dir: Path) -> Path:
    """The CA's certificate, written last: a directory without it is not secured."""
    return data_dir / SECURITY / "ca.pem"


def is_secured(data_dir: Path) -> bool:
    return authority_file(data_dir).exists()
