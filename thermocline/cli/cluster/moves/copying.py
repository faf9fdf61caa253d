"""Progress of replica copies in `cluster status`: bytes that move, and bytes that stay in the bucket. Pure.

A copy counts as its leader's hot bytes at most. A finished copy counts as complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from thermocline.cli.cluster.moves.render import bar, progress
from thermocline.cli.terminal.output import Cell, table
from thermocline.units import show_size

_ROWS_MAX: Final = 10
_CELLS: Final = 40
_Copy: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Copying:
    """A replica that is being copied: `copied_bytes` of `hot_bytes`. `cold_bytes` of its partition are in the bucket
    and not copied. None: unknown. `is_move`: it is a new replica; otherwise it is a replica that returned and catches
    up.
    """

    topic: str
    partition: int
    node: int
    copied_bytes: int | None = None
    hot_bytes: int | None = None
    cold_bytes: int | None = None
    is_move: bool = False

    @property
    def key(self) -> _Copy:
        return self.topic, self.partition, self.node

    def fields(self) -> dict[str, Cell]:
        """The fields of its JSON object."""
        return {
            "node": self.node,
            "copied_bytes": self.copied_bytes,
            "hot_bytes": self.hot_bytes,
            "cold_bytes": self.cold_bytes,
            "is_move": self.is_move,
        }


@dataclass(slots=True)
class CopyBook:
    _seen: dict[_Copy, Copying] = field(default_factory=dict)
    _running: set[_Copy] = field(default_factory=set)
    _pace: list[tuple[float, int]] = field(default_factory=list)  # (time, copied bytes) of the last updates

    def note(self, copies: Iterable[Copying], now_s: float) -> None:
        for copy in copies:
            before = self._seen.get(copy.key)
            hot = max(copy.hot_bytes or 0, (before.hot_bytes or 0) if before is not None else 0)
            copied = max(copy.copied_bytes or 0, (before.copied_bytes or 0) if before is not None else 0)
            known = copy.hot_bytes is not None
            self._seen[copy.key] = Copying(
                *copy.key, min(copied, hot) if known else None, hot if known else None, copy.cold_bytes, copy.is_move
            )
        self._running = {copy.key for copy in copies}
        for key, copy in self._seen.items():
            if key not in self._running:
                self._seen[key] = Copying(*key, copy.hot_bytes, copy.hot_bytes, copy.cold_bytes, copy.is_move)
        self._pace = [*self._pace[-5:], (now_s, self.copied_bytes)]

    @property
    def copied_bytes(self) -> int:
        return sum(copy.copied_bytes or 0 for copy in self._seen.values())

    @property
    def hot_bytes(self) -> int:
        return sum(copy.hot_bytes or 0 for copy in self._seen.values())

    @property
    def cold_bytes(self) -> int:
        return sum(copy.cold_bytes or 0 for copy in self._seen.values())

    @property
    def per_second(self) -> float | None:
        """Rate over the last updates."""
        if len(self._pace) < 2 or not self._running:
            return None
        (first_s, first), (last_s, last) = self._pace[0], self._pace[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def lines(self, *, plain: bool) -> list[str]:
        """Lines that show the copying; none before the first replica is copied."""
        if not self._seen:
            return []
        running = [self._seen[key] for key in sorted(self._running)]
        over = len(self._seen) - len(running)
        words = "nothing is being copied"
        if running:
            words = f"{len(running)} replica{'s are' if len(running) > 1 else ' is'} being copied"
        lines = [f"{words}{f'; copied since this watch began: {over}' if over else ''}"]
        lines.append(progress(self.copied_bytes, self.hot_bytes, self.per_second, plain=plain))
        lines += beside(self.hot_bytes, self.cold_bytes, plain=plain)
        return [*lines, *_rows(running, plain=plain)]


def beside(moves_bytes: int, stays_bytes: int, *, plain: bool) -> list[str]:
    """Two bars on one scale: bytes that move, and bytes that stay."""
    most = max(moves_bytes, stays_bytes, 1)

    def drawn(size: int) -> str:
        cells = max(round(size / most * _CELLS), 1 if size else 0)
        return (bar(1, plain=plain, cells=cells)).ljust(_CELLS)

    return [
        f"  has to move          {drawn(moves_bytes)} {show_size(moves_bytes)}",
        f"  stays in the bucket  {drawn(stays_bytes)} {show_size(stays_bytes)}",
    ]


def _rows(running: Sequence[Copying], *, plain: bool) -> list[str]:
    if not running:
        return []
    rows = [
        (
            f"{copy.topic}-{copy.partition}",
            str(copy.node),
            "joins" if copy.is_move else "catches up",
            bar((copy.copied_bytes or 0) / copy.hot_bytes if copy.hot_bytes else 1, plain=plain, cells=10),
            "-" if copy.copied_bytes is None else show_size(copy.copied_bytes),
            "-" if copy.hot_bytes is None else show_size(copy.hot_bytes),
            "-" if copy.cold_bytes is None else show_size(copy.cold_bytes),
        )
        for copy in running[:_ROWS_MAX]
    ]
    header = ("partition", "to broker", "and", "", "copied", "of", "in the bucket")
    lines = table(header, rows, right=("to broker", "copied", "of", "in the bucket")).splitlines()
    if (more := len(running) - _ROWS_MAX) > 0:
        lines.append(f"and {more} more (--json has all)")
    return lines
