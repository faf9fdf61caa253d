"""The probe and the race against stores that get it wrong, each in a way that a real one did (T9, C12, C23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from coldstore.inspection.probe import (
    ProbeReport,
    RaceReport,
    StoreCondition,
    StoreRefused,
    Verification,
    probe,
    provider_of,
    race,
)
from coldstore.object_store import (
    AccessRefused,
    Got,
    ObjectInfo,
    ObjectStore,
    PreconditionFailed,
    StoreAway,
    StoreUnavailable,
    Upload,
)
from coldstore.stores.operations import Operation
from logformat.errors import InvalidRequest
from seams.rng import SeededRng
from tests.support.fast_loop import run_fast
from tests.support.store.faulty_store import FAULTS_OF, Fault, FaultPlan, FaultyStore
from tests.support.store.memory_store import MemoryStore, StoredObject, upload_of


def probed(store: ObjectStore) -> ProbeReport:
    return run_fast(probe(store, SeededRng(1)))


def failed(report: ProbeReport) -> set[StoreCondition]:
    return {finding.condition for finding in report.findings if not finding.passed}


class Unconditional(MemoryStore):
    """s3rver, rclone: the headers are ignored."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        found = self.objects.get(key)
        return await super().put_root(key, data, found.etag if found else None)


class CreatesOnIfMatch(MemoryStore):
    """minio #21526: If-Match on a missing key succeeded."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        return await super().put_root(key, data, if_match if key in self.objects else None)


class NoIfMatch(MemoryStore):
    """Knows If-None-Match only: every If-Match is a 501."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if if_match is not None:
            raise StoreUnavailable("501 NotImplemented")
        return await super().put_root(key, data, None)


class RefusesYetWrites(MemoryStore):
    """412 in the answer, the new bytes in the bucket."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        try:
            return await super().put_root(key, data, if_match)
        except PreconditionFailed:
            self.objects[key] = StoredObject(data, '"x"', None)
            raise


class Refuses500(MemoryStore):
    """radosgw: exact, but losers often get a 500."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        try:
            return await super().put_root(key, data, if_match)
        except PreconditionFailed:
            raise StoreUnavailable("500 InternalError") from None


class LosesRaces(MemoryStore):
    """s3s-fs: checks, then writes; in sequence nobody notices."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        found = self.objects.get(key)
        if (found.etag if found else None) != if_match:
            raise PreconditionFailed("412")
        await asyncio.sleep(0)
        self.objects[key] = StoredObject(data, f'"{crc32c(data)}"', None)
        return self.objects[key].etag


class IgnoresRanges(MemoryStore):
    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        return await super().get(key)


class KeepsAnyChecksum(MemoryStore):
    """C12: "verifies" whatever it was told."""

    def __init__(self) -> None:
        super().__init__(checks_checksums=False)

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        info = await super().put_segment(key, body)
        self.objects[key].crc32c = body.checksum()
        return info


class ForgetsChecksums(MemoryStore):
    async def head(self, key: str) -> ObjectInfo:
        return replace(await super().head(key), crc32c=None)


class KnowsNoTrailers(MemoryStore):
    """A checksum behind the bytes is answered with `failure`."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        if body.crc32c is None:
            raise self.failure
        return await super().put_segment(key, body)


class StoresTheFrames(MemoryStore):
    """Older gateways: `aws-chunked` is no encoding to them, but what the object holds."""

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        if body.crc32c is None:
            body = upload_of(b"80000\r\n" + b"".join(bytes(piece) for piece in body.open()) + b"\r\n0\r\n\r\n")
        return await super().put_segment(key, body)


class IgnoresTrailers(MemoryStore):
    """The bytes are right, whatever the checksum behind them says."""

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        if body.crc32c is None:
            body = upload_of(b"".join(bytes(piece) for piece in body.open()))
        return await super().put_segment(key, body)


class KeepsDeleted(MemoryStore):
    """litestream #976: Cloudflare R2 listed objects as deleted that remained."""

    async def delete(self, keys: Sequence[str]) -> None:
        return None


class ListsNothing(MemoryStore):
    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in ():
            yield info


class AlwaysFresh(MemoryStore):
    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        return await super().get_if_changed(key, None)


def test_an_exact_store_passes_and_is_left_clean() -> None:
    """All conditions are asked, nothing remains, copies may be verified by HEAD."""
    store = MemoryStore()
    report = probed(store)
    report.require()
    asked = [finding.condition for finding in report.findings]
    assert sorted(asked, key=list(StoreCondition).index) == list(StoreCondition)
    assert report.verification is Verification.HEAD and report.takes_trailers and not store.objects


@pytest.mark.parametrize(
    ("store", "condition"),
    [
        (Unconditional(), StoreCondition.CREATE_ONCE),
        (Unconditional(), StoreCondition.STALE),
        (CreatesOnIfMatch(), StoreCondition.ABSENT),
        (NoIfMatch(), StoreCondition.REPLACE),
        (RefusesYetWrites(), StoreCondition.CREATE_ONCE),
        (IgnoresRanges(), StoreCondition.RANGE),
        (IgnoresRanges(), StoreCondition.TAIL),
        (KeepsDeleted(), StoreCondition.DELETED),
        (ListsNothing(), StoreCondition.LISTED),
        (AlwaysFresh(), StoreCondition.UNCHANGED),
    ],
)
def test_a_store_that_breaks_a_condition_is_refused_by_its_name(store: MemoryStore, condition: StoreCondition) -> None:
    """The message names the store and the condition."""
    report = probed(store)
    assert condition in failed(report) and not report.passed
    with pytest.raises(StoreRefused, match=condition.value):
        report.require()


@pytest.mark.parametrize("store", [KeepsAnyChecksum(), ForgetsChecksums()])
def test_a_store_whose_checksums_prove_nothing_is_read_back(store: MemoryStore) -> None:
    """C12: no refusal of the store, but its word is not taken."""
    report = probed(store)
    report.require()
    assert report.verification is Verification.READ_BACK


@pytest.mark.parametrize(
    "store",
    [
        KnowsNoTrailers(InvalidRequest("400 x-amz-content-sha256")),
        KnowsNoTrailers(AccessRefused("403 SignatureDoesNotMatch")),
        KnowsNoTrailers(StoreUnavailable("501 NotImplemented")),
        KnowsNoTrailers(StoreAway("no answer within 300 s")),
        StoresTheFrames(),
        IgnoresTrailers(),
    ],
)
def test_a_store_that_wants_its_checksum_first_gets_it_first(store: MemoryStore) -> None:
    """No refusal of the store, whatever it says to a trailer: segments are read twice for it."""
    report = probed(store)
    report.require()
    assert failed(report) == {StoreCondition.TRAILER} and not report.takes_trailers
    assert report.verification is Verification.HEAD and not store.objects


def test_a_500_is_a_refusal_too() -> None:
    """What counts is that nothing changed (radosgw)."""
    probed(Refuses500()).require()
    run_fast(race(Refuses500(), SeededRng(1))).require()


def test_a_store_that_is_away_is_not_refused() -> None:
    """An outage, or missing rights, come out as they are: the caller waits, or an operator acts."""
    away = FaultyStore(MemoryStore(), SeededRng(1))
    away.down = True
    with pytest.raises(StoreUnavailable):
        probed(away)
    with pytest.raises(StoreUnavailable):
        run_fast(race(away, SeededRng(1)))

    class Forbidden(MemoryStore):
        async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
            raise AccessRefused("403")

    with pytest.raises(AccessRefused):
        probed(Forbidden())


class Hangs(MemoryStore):
    """Conditional writes of one kind get no answer; reads go through."""

    def __init__(self, *, creates: bool) -> None:
        super().__init__()
        self.creates = creates

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if (if_match is None) == self.creates:
            raise StoreAway("no answer within 10 s")
        return await super().put_root(key, data, if_match)


class NeverRefuses(MemoryStore):
    """A second create gets no answer."""

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        if key in self.objects and if_match is None:
            raise StoreAway("no answer within 10 s")
        return await super().put_root(key, data, if_match)


@pytest.mark.parametrize("store", [Hangs(creates=True), Hangs(creates=False), NeverRefuses()])
def test_a_store_whose_writes_hang_is_not_refused(store: MemoryStore) -> None:
    """Found in CI: conditional PUTs timed out while reads went through, and the broker ended with exit code 3. Nor does
    silence count as the refusal that a condition asks for."""
    with pytest.raises(StoreAway):
        probed(store)


def test_lost_answers_do_not_confuse_the_probe() -> None:
    """A good store behind a bad network passes: what lies there decides, not what was heard."""
    rates = {(Operation.PUT_ROOT, fault): 0.1 for fault in (Fault.BEFORE, Fault.LOST, Fault.OWN_412, Fault.CONFLICT)}
    passed = 0
    for seed in range(20):
        store = FaultyStore(MemoryStore(), SeededRng(seed), FaultPlan(rates))
        report = run_fast(probe(store, SeededRng(1)))
        passed += report.passed
        run_fast(race(store, SeededRng(1))).require()
    assert passed == 20


def test_a_store_that_fails_every_fourth_request_is_probed_in_one_go() -> None:
    """Found by a campaign: of 25 requests in a row one failed nearly always, so a broker did not start for minutes."""
    kinds = (Fault.BEFORE, Fault.LOST)
    rates = {(operation, fault): 0.125 for operation in Operation for fault in kinds if fault in FAULTS_OF[operation]}
    for seed in range(20):
        store = FaultyStore(MemoryStore(), SeededRng(seed), FaultPlan(rates))
        report = run_fast(probe(store, SeededRng(1)))
        report.require()
        assert report.takes_trailers and report.verification is Verification.HEAD
        run_fast(race(store, SeededRng(1))).require()


class AnswersLate(MemoryStore):
    """Every read times out."""

    reads = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        self.reads += 1
        await asyncio.sleep(10)
        raise StoreAway("no answer within 10 s")


def test_a_time_out_is_waited_for_once() -> None:
    store = AnswersLate()
    with pytest.raises(StoreAway):
        probed(store)
    assert store.reads == 1


def test_only_a_race_finds_a_store_that_loses_races() -> None:
    """C23: it passes every sequential condition."""
    store = LosesRaces()
    probed(store).require()
    report = run_fast(race(store, SeededRng(1)))
    assert not report.passed and max(report.winners) > 1
    with pytest.raises(StoreRefused, match="loses races"):
        report.require()
    assert not store.objects
    RaceReport("memory://", (1, 1)).require()


def test_providers_are_guessed_from_the_url() -> None:
    """For people: who is refused."""
    assert provider_of("s3://bucket?region=eu-west-1") == "Amazon S3"
    assert provider_of("s3://b/p?endpoint=https://x.r2.cloudflarestorage.com") == "Cloudflare R2"
    assert provider_of("s3://b?endpoint=http://127.0.0.1:9000") == "an S3-compatible store (127.0.0.1)"
    assert provider_of("file:///data") == "a directory"
