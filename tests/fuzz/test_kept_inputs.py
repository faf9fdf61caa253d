"""The archives of kept inputs: the same bytes for the same inputs, and what has a name is never dropped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz import kept as archives
from tests.fuzz.kept import CORPUS, FINDING, keep, kept, smallest, unpacked
from tests.fuzz.targets import names

TARGETS = sorted(name.removesuffix(".zip") for name in os.listdir(CORPUS))


@pytest.mark.parametrize("target", TARGETS)
def test_an_archive_written_anew_is_the_same(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = kept(target)
    assert inputs
    monkeypatch.setattr(archives, "CORPUS", str(tmp_path))
    keep(target, dict(reversed(inputs.items())))
    assert kept(target) == inputs
    assert (tmp_path / f"{target}.zip").read_bytes() == Path(CORPUS, f"{target}.zip").read_bytes()


def test_every_archive_has_a_target() -> None:
    assert TARGETS and set(TARGETS) <= set(names())


def test_libfuzzer_gets_a_file_an_input(tmp_path: Path) -> None:
    inputs = {"a": b"1", FINDING + "b": b""}
    folder = Path(unpacked(inputs, str(tmp_path / "kept")))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == inputs


def test_minimising_keeps_what_has_a_name_and_the_smallest_of_the_rest() -> None:
    """`make fuzz KEEP=1` once dropped the dearest frames that are named by their API."""
    old = {FINDING + "gzip-flag": b"long finding", "Metadata": b"frame", "0123456789abcdef": b"replaced"}
    found = {"x": b"333", "y": b"22", "z": b"1", "known": b"frame"}
    left = smallest(found, old, inputs_max=2, bytes_max=100)
    assert left.keys() >= {FINDING + "gzip-flag", "Metadata"} and "0123456789abcdef" not in left
    assert sorted(left.values()) == sorted([b"long finding", b"frame", b"1", b"22"])
    assert sorted(smallest(found, {}, inputs_max=9, bytes_max=3).values()) == [b"1", b"22"]
