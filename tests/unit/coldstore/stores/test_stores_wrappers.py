"""The wrappers around a store: the metered one counts and changes nothing, the faulty one does what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coldstore.object_store import (
    ConditionalConflict,
    ObjectMissing,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from coldstore.stores.metered import LATENCY_BOUNDS_MS, CallOutcome, LoggedCall, MeteredStore
from coldstore.stores.operations import Operation
from seams.rng import SeededRng
from tests.support.scenario import by
from tests.support.store.faulty_store import FAULTS_OF, Fault, FaultPlan, FaultyStore, even_rates
from tests.support.store.memory_store import MemoryStore, upload_of
from tests.support.store.store_conformance import StoreConformance
from tests.unit.coldstore.stores.test_stores_conformance import MemoryPlace


class SteppingClock:
    """Each reading of the monotonic clock is 30 ms after the one before."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        self.now_s += 0.030
        return self.now_s

    def boottime_s(self) -> float:
        return self.now_s


class MeteredPlace(MemoryPlace):
    def open(self) -> Any:
        return MeteredStore(super().open(), SteppingClock())


class CalmFaultyPlace(MemoryPlace):
    def open(self) -> Any:
        return FaultyStore(super().open(), SeededRng(1))


class TestMeteredStore(StoreConformance):
    """Counting changes no answer."""

    @pytest.fixture
    def place(self) -> MeteredPlace:
        return MeteredPlace()


class TestCalmFaultyStore(StoreConformance):
    """Without faults it is the store below."""

    @pytest.fixture
    def place(self) -> CalmFaultyPlace:
        return CalmFaultyPlace()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(main())


# -- metered -------------------------------------------------------------------------------------------------------


def test_requests_bytes_errors_and_latency_are_counted_by_operation() -> None:
    """What /metrics and the bill are made of: bodies in bytes, billed requests, errors by kind, a histogram."""
    store = MeteredStore(MemoryStore(), SteppingClock(), segment_requests=lambda size: 3 if size > 50 else 1)

    async def scenario() -> None:
        etag = await store.put_root("root", b"12345", None)
        await store.put_segment("s", upload_of(bytes(100)))
        await store.put_segment("t", upload_of(bytes(10)))
        await store.get("s", 10, 20)
        await store.get_if_changed("root", etag)
        await store.get_if_changed("root", None)
        with pytest.raises(PreconditionFailed):
            await store.put_root("root", b"", None)
        with pytest.raises(ObjectMissing):
            await store.head("absent")
        await store.delete([f"k{number}" for number in range(2001)])

    run(scenario)
    meters = {operation: store.meters[operation] for operation in Operation}
    counted = {op.value: (m.calls, m.requests, m.bytes, m.errors) for op, m in meters.items()}
    assert counted == {
        "get": (1, 1, 20, 0),
        "get_if_changed": (2, 2, 5, 0),
        "head": (1, 1, 0, 0),
        "put_segment": (2, 4, 110, 0),
        "put_root": (2, 2, 5, 0),
        "delete": (1, 3, 0, 0),
        "list": (0, 0, 0, 0),
    }
    assert meters[Operation.PUT_ROOT].outcomes == {CallOutcome.OK: 1, CallOutcome.LOST_RACE: 1}
    assert meters[Operation.GET_IF_CHANGED].outcomes == {CallOutcome.OK: 1, CallOutcome.UNCHANGED: 1}
    assert meters[Operation.HEAD].outcomes == {CallOutcome.MISSING: 1}
    for meter in meters.values():
        assert meter.buckets[LATENCY_BOUNDS_MS.index(50)] == sum(meter.buckets) == meter.calls
        assert meter.seconds == pytest.approx(0.030 * meter.calls)


def test_a_listing_counts_its_pages() -> None:
    """1 001 entries are two billed requests, none is one."""
    inner = MemoryStore()
    place = MemoryPlace()
    place._store = inner
    place.fill([f"k{number:04}" for number in range(1001)], b"x")
    store = MeteredStore(inner, SteppingClock())

    async def scenario() -> None:
        assert len([info async for info in store.list("k")]) == 1001
        assert [info async for info in store.list("none")] == []

    run(scenario)
    assert (store.meters[Operation.LIST].calls, store.meters[Operation.LIST].requests) == (2, 3)


def test_the_log_is_bounded_and_says_what_was_asked() -> None:
    """Tests read ranges and outcomes from it; production keeps none."""
    store = MeteredStore(MemoryStore(), SteppingClock(), log_max=3)
    silent = MeteredStore(MemoryStore(), SteppingClock())

    async def scenario() -> None:
        for each in (store, silent):
            await each.put_segment("s", upload_of(bytes(100)))
            await each.get("s")
            await each.get("s", 90, 20)
            await each.get("s", -30)
            with pytest.raises(ObjectMissing):
                await each.get("absent", 1, 1)

    run(scenario)
    assert list(store.log) == [
        LoggedCall(Operation.GET, "s", 90, 20, 10, CallOutcome.OK),
        LoggedCall(Operation.GET, "s", -30, None, 30, CallOutcome.OK),
        LoggedCall(Operation.GET, "absent", 1, 1, 0, CallOutcome.MISSING),
    ]
    assert not silent.log


# -- faulty --------------------------------------------------------------------------------------------------------


def faulty(inner: MemoryStore, **plan: Any) -> FaultyStore:
    return FaultyStore(inner, SeededRng(1), FaultPlan(**plan))


@pytest.mark.parametrize(
    ("fault", "error", "effect"),
    [
        (Fault.BEFORE, StoreUnavailable, False),
        (Fault.LOST, StoreUnavailable, True),
        (Fault.EMPTY_200, StoreUnavailable, True),
        (Fault.REFUSED, PreconditionFailed, False),
        (Fault.OWN_412, PreconditionFailed, True),
        (Fault.CONFLICT, ConditionalConflict, False),
    ],
)
@by(run)
async def test_a_scripted_fault_of_a_root(fault: Fault, error: type[Exception], effect: bool) -> None:
    """The error says what a store would say, the effect is there or not, once, on the key it was scripted for."""
    inner = MemoryStore()
    store = faulty(inner)
    store.script(Operation.PUT_ROOT, fault, match="mine")
    await store.put_root("other", b"x", None)
    with pytest.raises(error):
        await store.put_root("mine", b"one", None)
    assert ("mine" in inner.objects) is effect
    await store.put_root("mine2", b"x", None)
    assert store.hits == {fault: 1}


@by(run)
async def test_a_lost_answer_to_a_refused_write_is_no_hit() -> None:
    """Only faults that took effect count: the 412 came from the store."""
    store = faulty(MemoryStore())
    await store.put_root("root", b"one", None)
    store.script(Operation.PUT_ROOT, Fault.LOST)
    with pytest.raises(PreconditionFailed):
        await store.put_root("root", b"two", None)
    assert store.hits == {}


@by(run)
async def test_late_writes_land_if_their_condition_still_holds() -> None:
    """Fault O5: a root that nobody replaced meanwhile is overwritten minutes later, another one is not; segments always
    land, with the bytes they had when they were sent."""
    inner = MemoryStore()
    store = faulty(inner, late_s=(0.01, 0.02))
    source = bytearray(b"segment")
    etag = await store.put_root("still", b"1", None)
    other = await store.put_root("moved", b"1", None)
    for operation, times in ((Operation.PUT_ROOT, 2), (Operation.PUT_SEGMENT, 1)):
        store.script(operation, Fault.LATE, times=times)
    with pytest.raises(StoreUnavailable):
        await store.put_root("still", b"late", etag)
    with pytest.raises(StoreUnavailable):
        await store.put_root("moved", b"late", other)
    with pytest.raises(StoreUnavailable):
        await store.put_segment("segment", upload_of(source))
    source[:] = b"erased!"
    assert inner.objects["still"].data == b"1" and "segment" not in inner.objects
    await store.put_root("moved", b"2", other)
    await store.settle()
    assert inner.objects["still"].data == b"late"
    assert inner.objects["moved"].data == b"2"
    assert inner.objects["segment"].data == b"segment"
    assert store.hits == {Fault.LATE: 3} and store.landed_late == 2


@by(run)
async def test_reads_break_off_or_lie_in_one_bit() -> None:
    """Truncation is an error, never a short answer; a flip keeps length and ETag and leaves the stored bytes alone."""
    inner = MemoryStore()
    store = faulty(inner, flips=lambda key: key != "root")
    await store.put_segment("s", upload_of(bytes(1000)))
    await store.put_segment("root", upload_of(bytes(10)))
    store.script(Operation.GET, Fault.TRUNCATED)
    with pytest.raises(StoreUnavailable):
        await store.get("s", 0, 100)
    store.script(Operation.GET, Fault.FLIPPED, times=2)
    got = await store.get("s", 100, 200)
    assert len(got.data) == 200 and sum(byte.bit_count() for byte in got.data) == 1
    assert (await store.get("root")).data == bytes(10)
    assert inner.objects["s"].data == bytes(1000)
    assert store.hits == {Fault.TRUNCATED: 1, Fault.FLIPPED: 1}


def test_deletions_and_listings_lie() -> None:
    """T10, fault O6: success without effect, and an object that a listing does not show."""
    inner = MemoryStore()
    store = faulty(inner)

    async def scenario() -> None:
        for number in range(10):
            await store.put_segment(f"k{number}", upload_of(b"x"))
        store.script(Operation.DELETE, Fault.IGNORED)
        await store.delete(["k1"])
        assert "k1" in inner.objects
        store.script(Operation.LIST, Fault.UNLISTED)
        assert len([info async for info in store.list("k")]) == 9
        assert len([info async for info in store.list("k")]) == 10

    run(scenario)
    assert store.hits == {Fault.IGNORED: 1, Fault.UNLISTED: 1}


@by(run)
async def test_an_outage_stops_everything_until_it_ends() -> None:
    """Nine calls, nine hits, nothing written."""
    inner = MemoryStore()
    store = faulty(inner)
    await store.put_root("root", b"1", None)
    store.down = True
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get("root"),
        lambda: store.get_if_changed("root", None),
        lambda: store.head("root"),
        lambda: store.put_segment("s", upload_of(b"x")),
        lambda: store.put_root("r", b"x", None),
        lambda: store.delete(["root"]),
        lambda: anext(store.list("")),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    with pytest.raises(StoreUnavailable):
        store.open_local("root")
    assert list(inner.objects) == ["root"] and store.hits == {Fault.OUTAGE: 8}
    store.down = False
    assert (await store.get("root")).data == b"1"


async def _busy(store: FaultyStore, inner: MemoryStore) -> list[str]:
    """Some of every operation; returns what each call came to."""
    outcomes = []
    for number in range(300):
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda n=number: store.put_segment(f"s{n}", upload_of(bytes(50))),  # type: ignore[misc]
            lambda n=number: store.put_root(f"r{n}", b"root", None),  # type: ignore[misc]
            lambda n=number: store.get(f"s{n}"),  # type: ignore[misc]
            lambda n=number: store.get_if_changed(f"r{n}", None),  # type: ignore[misc]
            lambda n=number: store.head(f"r{n}"),  # type: ignore[misc]
            lambda n=number: store.delete([f"s{n}"]),  # type: ignore[misc]
        ]
        for call in calls:
            try:
                outcomes.append(repr(await call()))
            except (StoreError, ObjectMissing) as failure:
                outcomes.append(repr(failure))
        try:
            outcomes.append(repr([info.key async for info in store.list("r")]))
        except StoreError as failure:
            outcomes.append(repr(failure))
    await store.settle()
    outcomes.append(repr(sorted(inner.objects)))
    return outcomes


def test_the_same_seed_gives_the_same_faults_and_every_kind_takes_effect() -> None:
    """What the simulation's digest and its zero-hits rule rely on."""

    def once() -> tuple[list[str], dict[Fault, int]]:
        inner = MemoryStore()
        store = FaultyStore(inner, SeededRng(7), FaultPlan(even_rates(0.04), late_s=(0.0, 0.001)))
        outcomes: list[str] = []

        async def scenario() -> None:
            outcomes.extend(await _busy(store, inner))

        run(scenario)
        return outcomes, dict(store.hits)

    first, hits = once()
    again, hits_again = once()
    # Late writes of a real loop land by its clock: compare all but them in the simulation, here the counts.
    assert hits == hits_again and len(first) == len(again)
    assert set(hits) == set(Fault) - {Fault.OUTAGE, Fault.DENIED, Fault.READ_ONLY}


@by(run)
async def test_every_operation_has_a_fault_and_calm_heals() -> None:
    """The table covers the protocol; after calm() nothing fails any more."""
    assert set(FAULTS_OF) == set(Operation)
    inner = MemoryStore()
    store = FaultyStore(inner, SeededRng(7), FaultPlan({(Operation.HEAD, Fault.BEFORE): 1.0}))
    await store.put_root("root", b"1", None)
    with pytest.raises(StoreUnavailable):
        await store.head("root")
    store.script(Operation.HEAD, Fault.BEFORE, times=5)
    store.calm()
    assert (await store.head("root")).size == 1
