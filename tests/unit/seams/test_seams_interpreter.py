"""What a build of Python says of itself, by the variables that real builds have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seams import interpreter
from seams.interpreter import build_of, this_build

USED = "-fprofile-use -fprofile-correction"  # PGO_PROF_USE_FLAG, whether it was used or not


@pytest.mark.parametrize(
    ("options", "flag", "said"),
    [
        ("'--enable-shared'", USED, "Python 3.11.7 without PGO, without LTO"),  # pyenv's default
        ("'--enable-optimizations' '--with-lto'", USED, "Python 3.11.7 with PGO, with LTO"),  # Docker's python image
        ("'--enable-optimizations'", USED, "Python 3.11.7 with PGO, without LTO"),
        ("'--enable-shared' '--prefix=/usr'", "", "Python 3.11.7 as its distribution built it"),  # Debian's package
    ],
)
def test_a_build_is_named(options: str, flag: str, said: str) -> None:
    """A plain one is told from one that does not say."""
    found = build_of("3.11.7", {"CONFIG_ARGS": options, "PGO_PROF_USE_FLAG": flag})
    assert str(found) == said


@pytest.mark.not_fast
def test_another_interpreter_can_say_it() -> None:
    """The file runs alone, where none of our packages are."""
    words = [sys.executable, "-I", interpreter.__file__]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == str(this_build())
