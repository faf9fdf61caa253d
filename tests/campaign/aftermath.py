"""What is left when the campaign is over: each replica's files against the others', the logs' stack traces.

Owns no verdict on records, which `books` has. Always true: files are looked at when no broker runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

HEAD = 12  # base offset, and the length of what follows it


def batches(folder: Path) -> dict[int, bytes]:
    """Base offset → whole batch, of all segments of one replica of one partition."""
    found: dict[int, bytes] = {}
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        at = 0
        while at + HEAD <= len(data):
            base = int.from_bytes(data[at : at + 8], "big")
            length = HEAD + int.from_bytes(data[at + 8 : at + HEAD], "big")
            if length == HEAD:
                break  # room that was allocated ahead
            found[base] = data[at : at + length]
            at += length
    return found


def differences(places: Sequence[Path], partition: str) -> tuple[int, list[str]]:
    """(batches that two replicas both hold, what differs); `places` are data directories."""
    replicas = {place.name: batches(place / partition) for place in places if (place / partition).is_dir()}
    compared, problems = 0, []
    for (one, left), (other, right) in combinations(sorted(replicas.items()), 2):
        if not left or not right:
            continue
        start, end = max(min(left), min(right)), min(max(left), max(right))
        for base in sorted(left.keys() | right.keys()):
            if not start <= base <= end:
                continue
            compared += 1
            if left.get(base) != right.get(base):
                problems.append(f"{partition}: {one} and {other} differ at offset {base}")
                break
        if max(left) != max(right):
            problems.append(f"{partition}: last batch at {max(left)} in {one}, at {max(right)} in {other}")
    return compared, problems


def stack_traces(log: str) -> list[str]:
    """Each kind once: the last line of a trace names it."""
    found = re.findall(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(.*)", log)
    return sorted(set(found))
