"""Renders a plan of moves and its progress: a table and a bar for people, JSON lines for programs. Pure.

The names of the JSON fields are a contract (cli.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.config.units import show_duration
from thermocline.cli.cluster.moves.plan import Move, Nodes, Plan, totals
from thermocline.cli.terminal.output import json_line, table
from thermocline.units import show_rate, show_size

_MOVES_SHOWN_MAX: Final = 40
_BAR_CELLS: Final = 30


def plan_json(plan: Plan) -> list[str]:
    """An object for each partition that moves. `from`, `to`: replicas, the preferred leader first."""
    return [
        json_line(
            {
                "topic": move.topic,
                "partition": move.partition,
                "from": move.before,
                "to": move.after,
                "hot_bytes": move.hot_bytes,
                "cold_bytes": move.cold_bytes,
            }
        )
        for move in plan.moves
    ]


def plan_lines(plan: Plan) -> list[str]:
    lines = []
    if plan.moves:
        shown = sorted(plan.moves, key=lambda move: move.topic.startswith("__"))[:_MOVES_SHOWN_MAX]  # internal last
        rows = [(move.name, nodes(move.before), nodes(move.after), *_sizes(move)) for move in shown]
        header = ("partition", "from", "to", "copied", "in the bucket")
        lines = table(header, rows, right=("copied", "in the bucket")).splitlines()
        if (more := len(plan.moves) - _MOVES_SHOWN_MAX) > 0:
            lines.append(f"and {more} more (--json has all)")
    if plan.under_way:
        lines.append(f"{_partitions(len(plan.under_way))} moving already")
    if plan.moves:
        lines.append(moves_sentence(plan.moves))
    return lines


def moves_sentence(moves: Sequence[Move], *, verb: str = "moves") -> str:
    found = totals(moves)
    copied = f"{verb} {show_size(found.hot_bytes)} between brokers"
    if found.unknown:
        copied += f", plus an unknown size for {_partitions(found.unknown)}"
    replicas = f"{found.replicas} replica{'s' * (found.replicas != 1)} of {_partitions(len(moves))}"
    stays = f"; {show_size(found.cold_bytes)} stay where they are, in the bucket"
    return f"{copied} ({replicas}){stays if found.cold_bytes else ''}"


def _sizes(move: Move) -> tuple[str, str]:
    if not move.added:
        return "nothing", "leader only"
    hot = "-" if move.hot_bytes is None else show_size(move.hot_bytes)
    return hot, "-" if move.cold_bytes is None else show_size(move.cold_bytes)


def nodes(found: Nodes) -> str:
    return ",".join(map(str, found))


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count != 1)}"


def bar(share: float, *, plain: bool, cells: int = _BAR_CELLS) -> str:
    """`████░░░░`; `plain`: ASCII only."""
    full, empty = ("#", ".") if plain else ("█", "░")
    filled = round(min(max(share, 0.0), 1.0) * cells)
    return full * filled + empty * (cells - filled)


def progress(copied: int, hot: int, per_second: float | None, *, plain: bool) -> str:
    """`[████░░] 42 %  1.2 of 2.9 GiB copied, 84 MB/s, 20s left`."""
    share = copied / hot if hot else 1.0
    words = f"[{bar(share, plain=plain)}] {int(share * 100):3d} %  {show_size(copied)} of {show_size(hot)} copied"
    if per_second:
        left_ms = int((hot - copied) / per_second) * 1000
        words += f", {show_rate(per_second, 1)}" + (f", {show_duration(left_ms)} left" if left_ms else "")
    return words
