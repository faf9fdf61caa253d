"""An encrypted bucket in a simulated run, and an operator who brings its objects under another key beside the brokers.

Owns the two keys that every process has, and the rewraps. Always true: a rewrap is the product's own `Rewrapper`, on a
machine of its own and over a store without faults, from the first broker's start until the run is over; which key is
active changes with each pass, so objects are replaced again and again while brokers read, verify, compact and delete
them. What is rewrapped is counted. Must not know what is in an object.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.rewrap import Outcome, Rewrapper
from coldstore.object_store import ObjectStore, ReplacingStore
from seams.files.syncs import WorkerSyncs
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.store.keys import ring_of
from tests.support.workers import InlineWorkers

RING = ring_of("now", "before")
"""Of every broker, and of the checker."""
_PASSES = (ring_of("before", "now"), RING)
_APART_S = (0.2, 6.0)
_SCRATCH = "/scratch"


def drawn_encryption(name: str) -> bool:
    """In a sixth of the runs the bucket is encrypted."""
    return SeededRng(f"{name}/encryption").randrange(6) == 0


def seen_by_checker(store: ObjectStore) -> ObjectStore:
    return EncryptedStore(store, RING, InlineWorkers(), SeededRng("checker"))


async def rewrap_for_ever(store: ReplacingStore, name: str, hits: Counter[str]) -> None:
    """Pass after pass."""
    rng, workers, none = SeededRng(f"{name}/rewrap"), InlineWorkers(), None
    disk: Any = CrashDisk()
    disk.make_dirs(_SCRATCH)
    seams: Any = workers, WorkerSyncs(workers), none, rng, none  # type: ignore[arg-type]
    world = World(disk, *seams)
    for passes in range(1 << 30):
        await asyncio.sleep(rng.uniform(*_APART_S))
        async for one in Rewrapper(store, _PASSES[passes % 2], world, _SCRATCH).run(change=True):
            hits[f"rewrap {one.outcome.value}"] += one.outcome in (Outcome.REWRAPPED, Outcome.BUSY, Outcome.GONE)
            assert one.outcome not in (Outcome.DAMAGED, Outcome.NO_KEY, Outcome.ENCRYPTED), one
