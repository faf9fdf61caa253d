"""From a partition's snapshot and log to a state in memory, and from the state to a snapshot.

Owns how both are cut into turns. Always true: between two turns everybody else is served; a turn is a few ms, however
large a batch, a snapshot or a state is. Must not know what records mean, nor where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from broker.internal_topics.batches import batch_of, batches_in, chunks
from broker.internal_topics.partition_door import PartitionDoor
from broker.internal_topics.replayed_state import Live, ReplayedState
from seams.turns import Turns, next_turn

_RECORDS_PER_TURN: Final = 250  # 15 µs each, decoded and applied
_SNAPSHOT_CHUNK: Final = 200  # 20 µs each, encoded


class Loaded(NamedTuple):
    """`end_offset`: below it everything is applied. `snapshot_end`: where the snapshot ended, None where none was read.
    `log_bytes`: of the local log, that were replayed."""

    end_offset: int
    snapshot_end: int | None
    log_bytes: int


async def load(door: PartitionDoor, state: ReplayedState, keep_objects: Callable[[], None]) -> Loaded:
    """Replay into an empty state and bring it to life. Raises as `PartitionDoor.replay`.

    `keep_objects` is called at every turn: 100 000 groups are two million objects that stay, and Python's collector,
    which looks at all of them again and again while they are made, took three fifths of the time, 1.1 s at once.
    """
    end_offset, snapshot_end, log_bytes = 0, None, 0
    turns = Turns(_RECORDS_PER_TURN)
    async for piece in door.replay():
        for next_offset, records in batches_in(piece.batches):
            while some := list(islice(records, _RECORDS_PER_TURN)):
                state.apply(some)
                if turns.over(len(some)):
                    keep_objects()
                    await next_turn()
            end_offset = max(end_offset, next_offset)
        end_offset = max(end_offset, piece.end_offset)
        if piece.is_snapshot:
            snapshot_end = piece.end_offset
        else:
            log_bytes += len(piece.batches)
    for _ in state.restore():
        if turns.over():
            keep_objects()
            await next_turn()
    return Loaded(end_offset, snapshot_end, log_bytes)


async def encode(live: Live, end_offset: int, now_ms: int, batch_bytes_max: int) -> bytes:
    """Whole batches of `live` whose offsets end at `end_offset`; b"" when nothing lives."""
    # Each live record came from an offset of its own, so they fit below the end; the last one lies just below it.
    base = max(end_offset - live.records_count, 0)
    batches = bytearray()
    for chunk in chunks(live.records, _SNAPSHOT_CHUNK, batch_bytes_max):
        batches += batch_of(chunk, now_ms, base)
        base += len(chunk)
        await next_turn()
    return bytes(batches)
