"""Runs of markers that a leader appends, and what of a run was written when its append failed. Pure.

In a run no producer is named twice, so that markers of it do not change each other's answers: a producer's state tells
behind a failed append who was refused, as it told before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from logformat.errors import ThermoclineError
from logformat.transaction_marker import TransactionMarker


def runs_of(markers: Sequence[TransactionMarker]) -> Iterator[Sequence[TransactionMarker]]:
    """All of them, in order."""
    start, seen = 0, set[int]()
    for at, marker in enumerate(markers):
        if marker.producer_id in seen:
            yield markers[start:at]
            start = at
            seen.clear()
        seen.add(marker.producer_id)
    if start < len(markers):
        yield markers[start:]


def written_of(
    run: Sequence[TransactionMarker], base: int, end_offset: int, check: Callable[[TransactionMarker], None]
) -> list[tuple[TransactionMarker, int]]:
    """The markers that the log has at offsets `base` to `end_offset`, with these. `check`: raises for a marker that is
    refused, also after another producer's was written, and not for one that was written."""
    written: list[tuple[TransactionMarker, int]] = []
    for marker in run:
        if base + len(written) == end_offset:
            break
        try:
            check(marker)
        except ThermoclineError:
            continue
        written.append((marker, base + len(written)))
    return written
