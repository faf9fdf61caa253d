"""The kept inputs of a target: one archive each, `tests/fuzz/corpus/<target>.zip`, an entry an input.

Always true: the same entries make the same bytes, on every machine (sorted, stored as they are, without times), so an
archive changes when its inputs do. Entries are named by the beginning of their hash, or by what they are (the
dearest frame of an API, `finding-…` for what once broke a parser); minimising never drops what has a name of its own.
Must not know any parser.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
FINDING = "finding-"
_HASHED = re.compile(r"[0-9a-f]{16}")
_MIDNIGHT = (1980, 1, 1, 0, 0, 0)  # the first a ZIP entry can name


def kept(target: str) -> dict[str, bytes]:
    """The inputs by name, in the names' order; none where the target has no archive yet."""
    path = _path(target)
    if not os.path.exists(path):
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in sorted(archive.namelist())}


def keep(target: str, inputs: Mapping[str, bytes]) -> None:
    """Write the archive anew, with exactly `inputs`."""
    os.makedirs(CORPUS, exist_ok=True)
    path = _path(target)
    with zipfile.ZipFile(path + ".new", "w") as archive:
        for name in sorted(inputs):
            entry = zipfile.ZipInfo(name, _MIDNIGHT)
            entry.create_system = 3  # Unix, wherever it is written
            archive.writestr(entry, inputs[name])
    os.replace(path + ".new", path)


def smallest(
    found: Mapping[str, bytes], old: Mapping[str, bytes], *, inputs_max: int, bytes_max: int
) -> dict[str, bytes]:
    """What to keep of `found`: the smallest first, within the bounds, named by their hashes; and of `old` what has a
    name."""
    chosen = {name: data for name, data in old.items() if not _HASHED.fullmatch(name)}
    named = set(chosen.values())
    size = 0
    for data in sorted(set(found.values()) - named, key=lambda data: (len(data), data))[:inputs_max]:
        size += len(data)
        if size > bytes_max:
            break
        chosen[hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]] = data
    return chosen


def unpacked(inputs: Mapping[str, bytes], folder: str) -> str:
    """`folder`, made, with a file an input: libFuzzer reads folders."""
    os.mkdir(folder)
    for name, data in inputs.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    return folder


def _path(target: str) -> str:
    return os.path.join(CORPUS, target + ".zip")
