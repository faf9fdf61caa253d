"""Sizes, rates and durations as text for people. `broker.config.units.parse_size` reads what `show_size` prints."""

from __future__ import annotations


def show_size(size_bytes: float) -> str:
    """`128.0 MiB`: one decimal, binary units."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def show_rate(size_bytes: float, seconds: float) -> str:
    """`123 MB/s`, of 10^6 bytes."""
    return f"{size_bytes / 1e6 / seconds:.0f} MB/s" if seconds > 0 else "-"


def show_seconds(seconds: float) -> str:
    """A duration: `3.2 s`, `5 m 07 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} m {int(seconds) % 60:02d} s"
