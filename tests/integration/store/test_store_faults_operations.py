"""Each operation of S3Store × each fault of the proxy: what a caller hears, what the store did (T5–T8, faults O1–O4).

Owns the table of outcomes (`expected`). Every cell is played alone and must have struck: a fault that never fired is a
hole. Bytes that arrive changed in a success are the one thing a store's client cannot see; `CHANGED` names those cells,
and who notices them is shown in test_store_faults_broker and in the codecs' own tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from coldstore.object_store import ConditionalConflict, ObjectMissing, StoreUnavailable
from coldstore.roots.root import RootStore
from coldstore.stores.s3 import S3Deadlines, S3Store
from coldstore.url import S3Url, parse_bucket_url
from logformat.errors import Corrupt
from seams.clock import SystemClock
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng
from tests.support.store.memory_store import upload_of
from tests.support.store.s3_proxy import OPERATIONS
from tests.support.store.s3_servers import (
    Fault,
    S3Server,
    StoreProxy,
    find_versitygw,
    moto_server,
    store_proxy,
    versitygw_server,
)

PART = 64 << 10  # moto is told to take such parts; versitygw gets S3's least
DATA = bytes(range(256)) * 64
HELD_S = 1.0  # the deadline of every call that the proxy holds for longer

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("status", status=500),
        Fault("status", status=503),
        Fault("status", status=409),
        Fault("reset"),
        Fault("reset_after"),
        Fault("lost"),
        Fault("stall", seconds=3 * HELD_S),
        Fault("slow", seconds=3 * HELD_S),
        Fault("empty200"),
        Fault("error200"),
        Fault("garbage200"),
        Fault("truncate"),
        Fault("flip"),
    )
}
READS = ("get_range", "get_whole", "get_if_changed")
ROOTS = ("put_if_absent", "put_if_match")
MULTIPART = ("create_multipart", "put_part", "complete_multipart", "abort_multipart")
SEGMENTS = ("put", *MULTIPART)
RESENT = (*READS, "head", "list")  # aiohttp asks once more on a new connection when a kept one breaks
# What may be called at once without sharing a request; a store uploads two segments at a time.
TOGETHER = (
    (*READS, "head", "list", *ROOTS, "delete_many"),
    ("put", "create_multipart"),
    ("put_part", "complete_multipart"),
    ("abort_multipart",),
)
# Their answers have nothing to flip or to break off.
BODILESS = {"head", "put", *ROOTS, "put_part", "abort_multipart"}
# The store did what was asked; nobody can know it from the answer.
AFTER_EFFECT = {"reset_after", "lost", "slow", "empty200", "garbage200"}
UNAVAILABLE, CONFLICT, DONE, CHANGED = "unavailable", "conflict", "done", "changed"
# A bit of markup that no decision rests on, or one that does: then it is an error or a wrong name, never an object's.
HARMLESS = {DONE, CHANGED, UNAVAILABLE}


def expected(operation: str, fault: str) -> set[str]:
    """What the caller may hear."""
    if fault in ("truncate", "flip") and operation in BODILESS - {"abort_multipart"}:
        return {DONE}
    match operation, fault:
        case "put_if_absent" | "put_if_match", "status 409":
            return {CONFLICT}
        case "get_range" | "get_whole" | "get_if_changed", "flip":
            return {CHANGED}  # what every CRC of ours is for
        case "list" | "create_multipart" | "complete_multipart" | "delete_many", "flip":
            return HARMLESS
        case "head", "error200":
            return {CHANGED}  # a size that is wrong, which refuses the copy until it is asked again
        case "delete_many", "empty200":
            return {DONE}  # believed no more than any deletion: only a listing proves absence
    return {UNAVAILABLE}


@dataclass
class Bench:
    """Two stores on one bucket behind the proxy, on a loop of their own: `patient`, and `hasty` for held requests."""

    runner: asyncio.Runner
    patient: S3Store
    hasty: S3Store
    proxy: StoreProxy
    part_bytes: int
    rows: int = 0

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(100):
                await scenario

        self.runner.run(bounded())


@contextmanager
def bench_on(server: S3Server, part_bytes: int) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch, store_proxy(server) as proxy, asyncio.Runner() as runner:
        for name, value in proxy.environment().items():
            patch.setenv(name, value)
        url = parse_bucket_url(proxy.bucket_url("cells"))
        assert isinstance(url, S3Url)
        workers = ThreadWorkers()
        held = S3Deadlines(get_s=HELD_S, small_s=HELD_S, segment_s=2 * HELD_S)
        patient = S3Store(url, workers, SystemClock(), part_bytes=part_bytes)
        hasty = S3Store(url, workers, SystemClock(), held, part_bytes=part_bytes)
        bench = Bench(runner, patient, hasty, proxy, part_bytes)

        async def warm() -> None:
            await patient.put_segment("there", upload_of(DATA))
            await patient.head("there")
            await hasty._open_reader()  # building clients takes longer than a hasty call may
            await hasty._open_writers()

        bench.run(warm())
        yield bench
        proxy.faults()
        runner.run(patient.close())
        runner.run(hasty.close())
        workers.close()


@pytest.fixture(scope="module")
def moto_bench() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_UPLOAD_PART_MIN_SIZE", str(PART))
        with moto_server() as server, bench_on(server, PART) as bench:
            yield bench


@pytest.fixture(scope="module")
def versitygw_bench() -> Iterator[Bench]:
    if find_versitygw() is None:
        pytest.skip("versitygw is missing: tests/support/store/get_versitygw.sh installs it")
    with versitygw_server() as server, bench_on(server, 5 << 20) as bench:
        yield bench


def test_the_table_has_every_operation() -> None:
    """What the proxy tells apart, less what this project never sends: one key is deleted by DeleteObjects as well."""
    assert {operation for group in TOGETHER for operation in group} == set(OPERATIONS) - {"delete", "other"}


@pytest.mark.parametrize("fault", [pytest.param(n, marks=pytest.mark.slow) if n == "slow" else n for n in FAULTS])
def test_every_operation_under(moto_bench: Bench, fault: str) -> None:
    """One row of the table: each operation meets the fault, which takes effect, and its caller hears what it must."""
    moto_bench.run(play_row(moto_bench, FAULTS[fault]))


@pytest.mark.peer
@pytest.mark.parametrize("fault", FAULTS)
def test_every_operation_of_versitygw_under(versitygw_bench: Bench, fault: str) -> None:
    """The same on a store that checks checksums and secrets."""
    versitygw_bench.run(play_row(versitygw_bench, FAULTS[fault]))


async def play_row(bench: Bench, fault: Fault) -> None:
    wrong = []
    for operations in TOGETHER if fault.seconds else [(operation,) for group in TOGETHER for operation in group]:
        wrong += await play_cells(bench, operations, fault)
    assert not wrong, "\n".join(wrong)


async def play_cells(bench: Bench, operations: tuple[str, ...], fault: Fault) -> list[str]:
    """Calls that do not get in each other's way, at once; what was not as it must be."""
    bench.rows += 1
    proxy, store = bench.proxy, bench.hasty if fault.seconds else bench.patient
    keys = {operation: f"cell-{bench.rows}-{operation}" for operation in operations}
    prepared = [await prepare(bench, operation, key) for operation, key in keys.items()]
    before = proxy.counts()
    # What is struck before it reaches the last request of a multipart upload would never come to that one.
    rules = [replace(fault, operation=o, match=key if o in (*ROOTS, *SEGMENTS) else "") for o, key in keys.items()]
    if "abort_multipart" in keys:
        rules.append(Fault("status", operation="put_part", match=keys["abort_multipart"], status=500))
    proxy.faults(*rules)
    outcomes = await asyncio.gather(
        *(outcome_of(store, o, keys[o], p, bench.part_bytes) for o, p in zip(operations, prepared, strict=True))
    )
    proxy.faults()
    after = proxy.counts()
    hits, asked = after.hits - before.hits, after.requests - before.requests
    wrong = []
    for operation, outcome in zip(operations, outcomes, strict=True):
        found = [] if outcome in expected(operation, fault.name) else [f"heard {outcome}"]
        if not hits[operation, fault.name] and not (fault.name in ("truncate", "flip") and operation in BODILESS):
            found.append(f"it never struck: {hits}")
        # What was struck bears this cell's key; among all that came may be a late abort of the cell before.
        sent = hits[operation, fault.name] or asked[operation]
        if len(operations) == 1 and operation not in RESENT and sent > (5 if operation == "put_part" else 1):
            found.append(f"sent {sent} times: a write is never sent again by itself")
        if operation in ("put", *ROOTS):
            found += await check_effect(bench, operation, fault, keys[operation])
        wrong += [f"{operation} under {fault.name}: {what}" for what in found]
    return wrong


async def check_effect(bench: Bench, operation: str, fault: Fault, key: str) -> list[str]:
    """A write that was answered after its effect is there; one that was refused before it is not."""
    try:
        found = (await bench.patient.get(key)).data
    except ObjectMissing:
        found = None
    before = b"earlier" if operation == "put_if_match" else None
    landed = fault.name in AFTER_EFFECT or fault.name in ("truncate", "flip")
    return [] if found == (DATA if landed else before) else [f"the store holds {found!r:.40}"]


async def prepare(bench: Bench, operation: str, key: str) -> Any:
    """What the call needs to be there, and what it answers when nothing is wrong."""
    match operation:
        case "put_if_match":
            return await bench.patient.put_root(key, b"earlier", None)
        case "delete_many":
            await bench.patient.put_segment(key, upload_of(DATA))
    return None


async def outcome_of(store: S3Store, operation: str, key: str, prepared: Any, part_bytes: int) -> str:
    try:
        match operation:
            case "get_range":
                good = (await store.get("there", 100, 9000)).data == DATA[100:9100]
            case "get_whole":
                good = (await store.get("there")).data == DATA
            case "get_if_changed":
                got = await store.get_if_changed("there", '"another"')
                good = got is not None and got.data == DATA
            case "head":
                good = (await store.head("there")).size == len(DATA)
            case "list":
                good = [(info.key, info.size) async for info in store.list("there")] == [("there", len(DATA))]
            case "put":
                good = (await store.put_segment(key, upload_of(DATA))).size == len(DATA)
            case "put_if_absent" | "put_if_match":
                good = bool(await store.put_root(key, DATA, prepared))
            case "delete_many":
                await store.delete([key, key + "-2"])
                good = True
            case _:  # of a multipart upload
                body = upload_of(bytes(part_bytes * 4 + 1))
                good = (await store.put_segment(key, body)).size == body.size
    except ConditionalConflict:
        return CONFLICT
    except StoreUnavailable:
        return UNAVAILABLE
    return DONE if good else CHANGED


def test_a_success_without_a_listing_is_no_empty_bucket(moto_bench: Bench) -> None:
    """An empty 200 to LIST was read as "nothing is there": a deleted topic's objects would have stayed for ever."""

    async def scenario() -> None:
        moto_bench.proxy.faults(Fault("empty200", operation="list"))
        with pytest.raises(StoreUnavailable):
            [info async for info in moto_bench.patient.list("")]
        moto_bench.proxy.faults()
        assert [info async for info in moto_bench.patient.list("nothing-begins-so")] == []

    moto_bench.run(scenario())


@pytest.mark.parametrize("operation", ["create_multipart", "put_part"])
def test_an_upload_without_its_id_or_a_parts_etag_is_unknown(moto_bench: Bench, operation: str) -> None:
    """An empty 200 to either was a KeyError, which no caller takes for a store that is away."""

    async def scenario() -> None:
        moto_bench.proxy.faults(Fault("empty200", operation=operation))
        with pytest.raises(StoreUnavailable, match="success without an"):
            await moto_bench.patient.put_segment(f"no-id-{operation}", upload_of(bytes(PART * 4 + 1)))

    moto_bench.run(scenario())


def test_an_error_inside_a_success_is_no_object(moto_bench: Bench) -> None:
    """200 with an <Error> body and an ETag was handed out as the object: a root then counted as damaged."""

    async def scenario() -> None:
        moto_bench.proxy.faults(Fault("error200", method="GET"))
        with pytest.raises(StoreUnavailable, match="200 with an error as the body"):
            await moto_bench.patient.get("there")
        with pytest.raises(StoreUnavailable, match="200 with an error as the body"):
            await moto_bench.patient.get_if_changed("there", None)

    moto_bench.run(scenario())


@pytest.mark.parametrize("operation", ["get_range", "get_if_changed"])
def test_a_bit_flipped_on_the_way_is_no_damaged_root(moto_bench: Bench, operation: str) -> None:
    """It stopped copies ("restore an earlier version of the object") and the lease; read again, the root is whole."""

    def root() -> RootStore[dict[str, int]]:
        return RootStore(moto_bench.patient, f"root-{operation}", dict[str, int], SeededRng("root"), SystemClock())

    async def scenario() -> None:
        moto_bench.proxy.faults()
        reader, writer = root(), root()
        await writer.commit(lambda content: content, epoch=1, claim=True, initial={"a": 1})
        await reader.load()
        await writer.commit(lambda content: {"a": 2}, epoch=1)
        moto_bench.proxy.faults(Fault("flip", operation=operation, times=1))
        found = await (reader.load() if operation == "get_range" else reader.load_if_changed())
        assert moto_bench.proxy.hits() == [1]
        assert found is not None and found.content == {"a": 2}
        moto_bench.proxy.faults(Fault("flip", operation="get_range"))
        with pytest.raises(Corrupt):
            await root().load()  # what is damaged each time it is read, is damaged

    moto_bench.run(scenario())
