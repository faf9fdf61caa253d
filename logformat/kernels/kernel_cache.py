"""Compiles the kernels once per machine, with numba's cache.

Without a writable cache directory a kernel is compiled in each process (some seconds). The cache key covers every
module beside the kernel, because numba itself checks only the kernel's own file.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, Final

import numba
import numba.core.config

Kernel = Callable[[int], int]
_OURS: Final = __package__


def compiled(function: Kernel) -> Kernel:
    """`function` (int64) → int64 as machine code that runs without the GIL."""
    # Becomes part of the cache's file names.
    function.__qualname__ = f"{function.__name__.strip('_')}_{_digest(function.__module__)}"
    try:
        return _compile(function, cache=True)
    except (RuntimeError, OSError):  # RuntimeError "no locator available": neither this folder nor $HOME is writable
        pass
    try:
        with _private_cache_directory():
            return _compile(function, cache=True)
    except (RuntimeError, OSError):
        return _compile(function, cache=False)


def _compile(function: Kernel, *, cache: bool) -> Kernel:
    kernel: Kernel = numba.njit("int64(int64)", nogil=True, cache=cache, boundscheck=False)(function)
    return kernel


def _digest(module: str) -> str:
    """Hash of the sources in the kernel's package and here."""
    digest = hashlib.sha256()
    for package in dict.fromkeys((_OURS, module.rpartition(".")[0])):
        for source in sorted(resources.files(package).iterdir(), key=lambda found: found.name):
            if source.name.endswith(".py"):
                digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _private_cache_directory() -> Iterator[None]:
    """Numba's cache in the temporary directory, if that folder is private: cached code is executed."""
    path = os.path.join(tempfile.gettempdir(), f"thermocline-numba-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RuntimeError(f"{path} is not a private directory of this user")
    config: Any = numba.core.config
    before = config.CACHE_DIR
    config.CACHE_DIR = path
    try:
        yield
    finally:
        config.CACHE_DIR = before
