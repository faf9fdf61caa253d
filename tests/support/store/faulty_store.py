"""A store wrapper that injects faults, by seeded chance or by script: for the simulation and tests.
Every fault is one that a real store, or the network to it, is known to commit (faults O1–O9): the protocol's errors,
late writes, flipped bits, false listings. A fault is counted when it takes effect, not when it is drawn: a lost
response to a failed write is nothing. The same seed and the same calls give the same faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from coldstore.object_store import (
    AccessRefused,
    ConditionalConflict,
    Got,
    ObjectInfo,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    Upload,
)
from coldstore.stores.operations import Operation
from logformat.errors import InvalidRequest
from seams.files.disk import File
from seams.loop.tasks import Tasks
from seams.rng import Rng


class Fault(Enum):
    BEFORE = "before"  # 503, reset, time-out: nothing happened
    LOST = "lost"  # it happened, the answer was lost
    EMPTY_200 = "empty_200"  # it happened, the answer was 200 without an ETag
    REFUSED = "refused"  # 412 though the condition held (a store's restart, a stale replica): nothing happened
    OWN_412 = "own_412"  # it happened, and the client's resend was answered 412
    CONFLICT = "conflict"  # 409: nothing happened
    LATE = "late"  # 503 now, and the write lands later, if its condition still holds then
    TRUNCATED = "truncated"  # the body of a GET broke off
    FLIPPED = "flipped"  # one bit of a GET's body is wrong
    IGNORED = "ignored"  # a deletion reported as done that was not (Cloudflare R2)
    UNLISTED = "unlisted"  # an object missing from a listing
    OUTAGE = "outage"  # nothing works until it ends
    DENIED = "denied"  # 403 to everything: credentials expired
    READ_ONLY = "read_only"  # 403 to everything that writes: a policy, a lock


FAULTS_OF: Mapping[Operation, tuple[Fault, ...]] = {
    Operation.GET: (Fault.BEFORE, Fault.TRUNCATED, Fault.FLIPPED),
    Operation.GET_IF_CHANGED: (Fault.BEFORE, Fault.TRUNCATED),
    Operation.HEAD: (Fault.BEFORE,),
    Operation.PUT_SEGMENT: (Fault.BEFORE, Fault.LOST, Fault.EMPTY_200, Fault.LATE),
    Operation.PUT_ROOT: (
        Fault.BEFORE,
        Fault.LOST,
        Fault.EMPTY_200,
        Fault.REFUSED,
        Fault.OWN_412,
        Fault.CONFLICT,
        Fault.LATE,
    ),
    Operation.DELETE: (Fault.BEFORE, Fault.LOST, Fault.IGNORED),
    Operation.LIST: (Fault.BEFORE, Fault.UNLISTED),
}


WRITES: Final = frozenset({Operation.PUT_SEGMENT, Operation.PUT_ROOT, Operation.DELETE})


class FaultPlan(msgspec.Struct, frozen=True):
    """Probabilities by operation and fault, and durations (seconds, drawn evenly)."""

    rates: Mapping[tuple[Operation, Fault], float] = msgspec.field(default_factory=dict)
    latency_s: tuple[float, float] = (0.0, 0.0)
    late_s: tuple[float, float] = (0.1, 120.0)
    late_max: int = 64  # writes under way to a late landing; above it a LATE is a BEFORE
    flips: Callable[[str], bool] = lambda _key: True  # which keys' bytes may be flipped: those somebody checks

    def __post_init__(self) -> None:
        for operation, fault in self.rates:
            assert fault in FAULTS_OF[operation], f"{operation.value} cannot have {fault.value}"


def even_rates(rate: float) -> dict[tuple[Operation, Fault], float]:
    """Every fault of every operation with the same probability."""
    return {(operation, fault): rate for operation, faults in FAULTS_OF.items() for fault in faults}


@dataclass(slots=True)
class _Script:
    operation: Operation
    fault: Fault
    match: str
    left: int


class FaultyStore:
    """`ObjectStore` over `inner` with faults. `plan` may be replaced at any time; `calm()` ends all faults."""

    def __init__(self, inner: ObjectStore, rng: Rng, plan: FaultPlan | None = None) -> None:
        self.plan = plan or FaultPlan()
        self.hits: Counter[Fault] = Counter()  # faults that took effect
        self.landed_late = 0  # of the LATE ones, those that changed the store when they landed
        self.down = False  # an outage, until set back
        self.denies: Collection[Operation] = ()  # answered 403, until set back
        self._inner = inner
        self._rng = rng
        self._scripts: list[_Script] = []
        self._late = Tasks()

    @property
    def url(self) -> str:
        return self._inner.url

    # -- control ---------------------------------------------------------------------------------------------------

    def script(self, operation: Operation, fault: Fault, *, match: str = "", times: int = 1) -> None:
        """The next `times` calls of `operation` whose key contains `match` have this fault, whatever the plan is."""
        assert fault in FAULTS_OF[operation], f"{operation.value} cannot have {fault.value}"
        self._scripts.append(_Script(operation, fault, match, times))

    def calm(self) -> None:
        """No more faults; late writes still arrive."""
        self.plan = replace(self.plan, rates={}, latency_s=(0.0, 0.0))
        self.down = False
        self.denies = ()
        self._scripts.clear()

    async def settle(self) -> None:
        """Wait until every late write has arrived."""
        while len(self._late):
            await asyncio.sleep(self.plan.late_s[1] / 100)

    # -- the protocol ----------------------------------------------------------------------------------------------

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        fault = await self._begin(Operation.GET, key)
        got = await self._inner.get(key, start, length)
        self._break_off(fault, key)
        if fault is Fault.FLIPPED and got.data and self.plan.flips(key):
            flipped = bytearray(got.data)
            flipped[self._rng.randrange(len(flipped))] ^= 1 << self._rng.randrange(8)
            self.hits[fault] += 1
            return Got(bytes(flipped), got.etag, got.size)
        return got

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        fault = await self._begin(Operation.GET_IF_CHANGED, key)
        got = await self._inner.get_if_changed(key, etag)
        if got is not None:
            self._break_off(fault, key)
        return got

    async def head(self, key: str) -> ObjectInfo:
        await self._begin(Operation.HEAD, key)
        return await self._inner.head(key)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        fault = await self._begin(Operation.PUT_SEGMENT, key)
        if fault is Fault.LATE:
            data = b"".join(bytes(piece) for piece in body.open())  # sent already: its source may go
            held = Upload(len(data), crc32c(data), lambda: iter((data,)))
            raise self._land_later(key, lambda: self._inner.put_segment(key, held))
        info = await self._inner.put_segment(key, body)
        self._lose_answer(fault, key)
        return info

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        fault = await self._begin(Operation.PUT_ROOT, key)
        if fault is Fault.LATE:
            raise self._land_later(key, lambda: self._inner.put_root(key, data, if_match))
        if fault in (Fault.REFUSED, Fault.CONFLICT):
            self.hits[fault] += 1
            kind = PreconditionFailed if fault is Fault.REFUSED else ConditionalConflict
            raise kind(f"PUT {key}: made up ({fault.value})")
        etag = await self._inner.put_root(key, data, if_match)
        if fault is Fault.OWN_412:
            self.hits[fault] += 1
            raise PreconditionFailed(f"PUT {key}: made up (the answer to a resend)")
        self._lose_answer(fault, key)
        return etag

    async def delete(self, keys: Sequence[str]) -> None:
        fault = await self._begin(Operation.DELETE, keys[0] if keys else "")
        if fault is Fault.IGNORED and keys:
            self.hits[fault] += 1
            return
        await self._inner.delete(keys)
        self._lose_answer(fault, f"{len(keys)} objects")

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        fault = await self._begin(Operation.LIST, prefix)
        position, hidden = 0, self._rng.randrange(8) if fault is Fault.UNLISTED else -1
        async for info in self._inner.list(prefix):
            if position == hidden:
                self.hits[Fault.UNLISTED] += 1
            else:
                yield info
            position += 1

    def open_local(self, key: str) -> File | None:
        if self.down:
            self.hits[Fault.OUTAGE] += 1
            raise StoreUnavailable(f"{key}: made up (outage)")
        return self._inner.open_local(key)

    async def close(self) -> None:
        await self._late.close()
        await self._inner.close()

    # -- faults ----------------------------------------------------------------------------------------------------

    async def _begin(self, operation: Operation, key: str) -> Fault | None:
        """Wait for the call's latency and draw its fault; raises those before any effect."""
        low, high = self.plan.latency_s
        if high > 0:
            await asyncio.sleep(self._rng.uniform(low, high))
        if self.down:
            self.hits[Fault.OUTAGE] += 1
            raise StoreUnavailable(f"{operation.value} {key}: made up (outage)")
        if operation in self.denies:
            self.hits[Fault.READ_ONLY if self.denies is WRITES else Fault.DENIED] += 1
            raise AccessRefused(f"{operation.value} {key}: made up (403)")
        fault = self._scripted(operation, key) or self._drawn(operation)
        if fault is Fault.LATE and len(self._late) >= self.plan.late_max:
            fault = Fault.BEFORE
        if fault is Fault.BEFORE:
            self.hits[fault] += 1
            raise StoreUnavailable(f"{operation.value} {key}: made up (before any effect)")
        return fault

    def _scripted(self, operation: Operation, key: str) -> Fault | None:
        for script in self._scripts:
            if script.operation is operation and script.match in key:
                script.left -= 1
                if script.left <= 0:
                    self._scripts.remove(script)
                return script.fault
        return None

    def _drawn(self, operation: Operation) -> Fault | None:
        draw = self._rng.uniform(0.0, 1.0)
        for fault in FAULTS_OF[operation]:
            draw -= self.plan.rates.get((operation, fault), 0.0)
            if draw < 0:
                return fault
        return None

    def _break_off(self, fault: Fault | None, key: str) -> None:
        if fault is Fault.TRUNCATED:
            self.hits[fault] += 1
            raise StoreUnavailable(f"GET {key}: made up (the body broke off)")

    def _lose_answer(self, fault: Fault | None, what: str) -> None:
        if fault in (Fault.LOST, Fault.EMPTY_200):
            self.hits[fault] += 1
            raise StoreUnavailable(f"{what}: made up ({fault.value}, after the effect)")

    def _land_later(self, key: str, write: Callable[[], Awaitable[object]]) -> StoreUnavailable:
        self.hits[Fault.LATE] += 1
        self._late.spawn(f"late write of {key}", self._land(write))
        return StoreUnavailable(f"PUT {key}: made up (it may land later)")

    async def _land(self, write: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self._rng.uniform(*self.plan.late_s))
        try:
            await write()
        except (StoreError, InvalidRequest):
            return  # its condition no longer holds, or its name was used by a resend
        self.landed_late += 1
