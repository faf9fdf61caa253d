"""Every compare-and-set a broker makes, by what it is for, and the ways one can go wrong.

Owns a store that names each `put_root` by the change it makes, and lets one of them suffer one fault. Always true: a
fault is one that a store or the way to it commits; foreign commits are what another writer of the same root (a
rewriting job) would make: same content, next version, an id of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum
from typing import Any

import msgspec

from coldstore.object_store import ConditionalConflict, ObjectStore, PreconditionFailed, StoreError, StoreUnavailable
from coldstore.roots.root_format import RING_LENGTH
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.store.faulty_store import FaultyStore
from tests.support.store.memory_store import MemoryStore


class Wrong(Enum):
    """What happens to one conditional write."""

    LOST = "lost response"
    EMPTY = "200 without an ETag"
    OWN_412 = "412 to its own resend"
    REFUSED = "412, nothing happened"
    CONFLICT = "409"
    BEFORE = "503, nothing happened"
    LATE = "late landing"
    RING = "lost response, then more commits than the ring holds"
    RING_BEFORE = "503, then more commits than the ring holds"


class SiteStore(FaultyStore):
    """`target`: (site, occurrence from 0, what goes wrong), or None to count only. `sites` counts what was seen."""

    def __init__(self, inner: ObjectStore, rng: SeededRng, target: tuple[str, int, Wrong] | None) -> None:
        super().__init__(inner, rng)
        self.sites: Counter[str] = Counter()
        self.struck = 0
        self._target = target
        self._landing = Tasks()
        self._ids = rng

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        inner = self._inner
        assert isinstance(inner, MemoryStore)
        known = inner.objects.get(key)
        site = site_of(key, None if known is None else known.data, data)
        occurrence = self.sites[site]
        self.sites[site] += 1
        if self._target is None or self._target[:2] != (site, occurrence):
            return await inner.put_root(key, data, if_match)
        self.struck += 1
        return await self._strike(self._target[2], key, data, if_match)

    async def _strike(self, wrong: Wrong, key: str, data: bytes, if_match: str | None) -> str:
        inner = self._inner
        if wrong in (Wrong.LOST, Wrong.EMPTY, Wrong.OWN_412, Wrong.RING):
            await inner.put_root(key, data, if_match)
        if wrong in (Wrong.RING, Wrong.RING_BEFORE):
            for _ in range(RING_LENGTH + 1):
                await self._foreign_commit(key)
        if wrong is Wrong.LATE:
            self._landing.spawn("late landing", self._land(key, data, if_match))
        match wrong:
            case Wrong.EMPTY:
                return ""
            case Wrong.OWN_412 | Wrong.REFUSED:
                raise PreconditionFailed(f"PUT {key}: made up ({wrong.value})")
            case Wrong.CONFLICT:
                raise ConditionalConflict(f"PUT {key}: made up ({wrong.value})")
            case _:
                raise StoreUnavailable(f"PUT {key}: made up ({wrong.value})")

    async def _land(self, key: str, data: bytes, if_match: str | None) -> None:
        await asyncio.sleep(0.9)
        try:
            await self._inner.put_root(key, data, if_match)
        except StoreError:
            return

    async def _foreign_commit(self, key: str) -> None:
        inner = self._inner
        assert isinstance(inner, MemoryStore)
        known = inner.objects.get(key)
        if known is None:
            return  # nobody else creates a root that we are about to create
        root: dict[str, Any] = msgspec.json.decode(known.data)
        root.pop("crc32c", None)  # a writer of before there was one
        root["version"] += 1
        root["ring"] = [*root["ring"], [root["version"], self._ids.uuid().hex]][-RING_LENGTH:]
        await inner.put_root(key, msgspec.json.encode(root, order="sorted"), known.etag)


def site_of(key: str, before: bytes | None, after: bytes) -> str:
    """What a conditional write is for, by the change it makes."""
    if not key.endswith(".json"):
        return "probe"
    new: dict[str, Any] = msgspec.json.decode(after)
    old: dict[str, Any] | None = None if before is None else msgspec.json.decode(before)
    content = new["content"]
    if key == "lease.json":
        return "lease release" if content.get("released") else "lease"
    if key == "cluster.json":
        return "cluster claim" if old is None or old["epoch"] != new["epoch"] else "cluster delta"
    if old is None:
        return "manifest create"
    if old["epoch"] != new["epoch"]:
        return "manifest claim"
    was = old["content"]
    changed = {name for name in {*was, *content} if was.get(name) != content.get(name)}
    if "pages" in changed:
        return "manifest fold"
    if "added" in changed:
        return "manifest add"
    if "removed" in changed:
        return "manifest expire"
    if "snapshot" in changed:
        return "manifest snapshot"
    if "log_start_offset" in changed:
        return "manifest log start"
    if "reserved_end_offset" in changed:
        grew = content.get("reserved_end_offset", 0) > was.get("reserved_end_offset", 0)
        return "manifest reserve" if grew else "manifest release"
    return "manifest other"
