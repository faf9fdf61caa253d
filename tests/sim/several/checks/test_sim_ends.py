"""What the last look at copies says of logs that go on, or do not, after they were read to their end."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from logformat.gap import gap_batches
from logformat.records import Record, encode_batch
from tests.sim.checks.history import Final, History, Place, Poll
from tests.sim.several.checks import ends
from tests.sim.several.checks.ends import Ends
from tests.sim.several.crowd import Crowd
from tests.sim.world.loop import SimLoop
from tests.support.disk.crash_disk import CrashDisk

P: Place = ("log", 0)
READ, GAP = 1, 50
"""Where the log ended when it was read, and where the gap ends that was declared since."""


class _Fixed(Ends):
    """Of these copies: (where its files end, its high watermark)."""

    def __init__(self, stage: Crowd, copies: list[tuple[int, int]]) -> None:
        super().__init__(None, stage, [P])  # type: ignore[arg-type]
        self._held = [(_disk(end), high_watermark) for end, high_watermark in copies]

    def _copies(self, place: Place) -> Iterator[tuple[Any, list[str], int]]:
        for node_id, (disk, high_watermark) in enumerate(self._held):
            paths = self._disks.places(disk, str(node_id), synced=False).get(place, [])
            yield SimpleNamespace(machine=SimpleNamespace(disk=disk), node_id=node_id, node=None), paths, high_watermark


def _disk(end: int) -> CrashDisk:
    disk = CrashDisk()
    batches = [encode_batch([Record(0, 1, None, b"v")]), *(gap_batches(READ, end, 1) if end > READ else ())]
    for node_id in range(2):
        folder = f"/data/{node_id}/{P[0]}-{P[1]}"
        disk.make_dirs(folder)
        disk.open(f"{folder}/{0:020}.log", write=True, create=True).write_at(0, batches)
    return disk


def said(monkeypatch: pytest.MonkeyPatch, told: int, *copies: tuple[int, int], readable: bool = True) -> list[str]:
    """Of copies of a log that was read to READ, and whose leader tells that end now."""

    class Told:
        def __init__(self, *_: object, again: bool) -> None:
            self.position = -1

        async def ends(self) -> tuple[int, int]:
            return 0, told

        async def read_to(self, end: int, patience_s: float) -> bool:
            return readable and self.position == READ and end == told

    monkeypatch.setattr(ends, "Reader", Told)
    loop, found, history = SimLoop(), list[str](), History([Final(P, 0, READ, 0.0)])
    stage = Crowd(None, history, None, None, [], {})  # type: ignore[arg-type]
    try:
        loop.run_until_complete(_Fixed(stage, [*copies]).read_copies(lambda kind, detail: found.append(detail)))
    finally:
        loop.close()
    assert [event.consumer for event in history.events if isinstance(event, Poll)] == ["copy"] * len(copies)
    return [detail.partition("write: ")[2] for detail in found]


def test_a_gap_declared_after_the_last_reading_is_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever led next closed the hole of a lost tail, and every copy has it (seed 21126 of three brokers)."""
    assert said(monkeypatch, GAP, (GAP, GAP), (GAP, GAP)) == []
    assert said(monkeypatch, READ, (READ, READ), (READ, READ)) == []


def test_a_copy_that_lags_behind_the_later_reading_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its files, and in what it says to its readers."""
    assert said(monkeypatch, GAP, (GAP, GAP), (READ, READ)) == [f"node 1 has {P} to 1, high watermark 1, of 50"]
    assert said(monkeypatch, GAP, (GAP, READ), (GAP, GAP)) == [f"node 0 has {P} to 50, high watermark 1, of 50"]


def test_copies_that_go_on_where_nobody_can_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that tells no such end, one that tells it and does not serve what lies below; an end that fell."""
    beyond = [f"node {node_id} has {P} to 50, high watermark 50, of 1" for node_id in range(2)]
    assert said(monkeypatch, READ, (GAP, GAP), (GAP, GAP)) == beyond
    assert said(monkeypatch, GAP, (GAP, GAP), (GAP, GAP), readable=False) == beyond
    assert said(monkeypatch, 0, (READ, 0), (READ, READ)) == [f"node 0 has {P} to 1, high watermark 0, of 1"]
