"""Ambiguous, refused and lying answers of S3, as they hurt others (T5–T9, T11): S3Store and what trusts
it, against a server that answers as scripted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from unittest import mock
from uuid import UUID

import msgspec
import pytest

from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.inspection.probe import StoreCondition, StoreRefused, probe
from coldstore.keys import SegmentKey, manifest_key
from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import ConditionalConflict, StoreError, StoreUnavailable
from coldstore.roots.root import RootStore, Unsettled
from coldstore.stores import s3_upload
from coldstore.stores.s3 import S3Deadlines, S3Store
from coldstore.url import S3Url
from logformat.errors import Retryable
from seams.clock import SystemClock
from seams.loop.workers import ThreadWorkers
from seams.rng import SeededRng
from tests.support.scenario import by
from tests.support.store.memory_store import upload_of
from tests.support.store.scripted_s3 import ScriptedS3, scripted_s3

pytestmark = pytest.mark.not_fast

PART = 1 << 20
TOPIC_ID = UUID(int=7)


class Counter(msgspec.Struct, frozen=True):
    """Content of a root; `done` names every commit that took effect."""

    done: tuple[str, ...] = ()


def run(scenario: Callable[[S3Store, ScriptedS3], Awaitable[None]]) -> None:
    """One store over one scripted server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "x")

    async def main() -> None:
        workers = ThreadWorkers()
        with scripted_s3() as server:
            url = S3Url("b", region="us-east-1", endpoint=f"http://127.0.0.1:{server.port}", path_style=True)
            store = S3Store(url, workers, SystemClock(), S3Deadlines(2.0, 2.0, 5.0), part_bytes=PART)
            try:
                async with asyncio.timeout(60):
                    await scenario(store, server)
            finally:
                await store.close()
                workers.close()

    asyncio.run(main())


def root_of(store: S3Store, seed: int = 1, deadline_s: float = 20.0) -> RootStore[Counter]:
    return RootStore(store, "root.json", Counter, SeededRng(seed), SystemClock(), deadline_s=deadline_s)


def adding(name: str) -> Callable[[Counter], Counter]:
    return lambda root: Counter(root.done if name in root.done else (*root.done, name))


@by(run)
async def test_peer_t05_the_lost_answer_of_every_conditional_write(store: S3Store, server: ScriptedS3, /) -> None:
    """aws-sdk-java-v2 #6580: a conditional PUT took effect, its answer was lost, the SDK sent it again and got 412, and
    the application believed that it had lost. Creation, replacement and claim: each takes effect once, is sent by the
    client below exactly as often as we say, and is found by reading back."""
    for kind in ("lost", "412", "empty200", "garbage200"):
        server.objects.clear()
        root = root_of(store)
        edits = [("create", 1, False, Counter()), ("replace", 1, False, None), ("claim", 2, True, None)]
        for number, (name, epoch, claim, initial) in enumerate(edits, start=1):
            server.script("PUT", "root.json", kind)
            before = server.sent("PUT", "root.json")
            done = await root.commit(adding(name), epoch=epoch, claim=claim, initial=initial)
            puts = server.sent("PUT", "root.json") - before
            assert puts == (2 if kind == "412" else 1), "nobody but us sends it again"
            assert done.version == number and done.content.done[-1] == name
        fresh = await root_of(store).load()
        assert fresh is not None and fresh.version == 3 and fresh.content.done == ("create", "replace", "claim")
    assert server.hits == 12


@by(run)
async def test_peer_t06_a_storm_of_409_is_no_sign_of_existence(store: S3Store, server: ScriptedS3, /) -> None:
    """arrow-rs-object-store #852, ravel #1354: 409 (another conditional write is under way) was taken for 412 (it
    exists), and nobody owned the lease. Two writers that create the same root in a storm of 409s: exactly one creates,
    both commits stand; a 409 by itself decides nothing either way."""
    server.script("PUT", "alone", "409")
    with pytest.raises(ConditionalConflict):
        await store.put_root("alone", b"x", None)
    assert "alone" not in server.objects
    server.script("PUT", "root.json", "409", times=6)
    server.script("PUT", "root.json", "done409", times=2)
    one, two = root_of(store, 1), root_of(store, 2)
    await asyncio.gather(
        one.commit(adding("one"), epoch=1, initial=Counter()), two.commit(adding("two"), epoch=1, initial=Counter())
    )
    assert server.hits == 9
    found = await root_of(store).load()
    assert found is not None and sorted(found.content.done) == ["one", "two"] and found.version == 2


@by(run)
async def test_peer_t06_a_storm_that_does_not_end_is_undecided(store: S3Store, server: ScriptedS3, /) -> None:
    """The same bug's other half: a caller whose every attempt met 409 has neither won nor lost, and says so."""
    server.script("PUT", "root.json", "409", times=1000)
    with pytest.raises((Unsettled, Retryable)):
        await root_of(store, deadline_s=2.0).commit(adding("x"), epoch=1, initial=Counter())
    # Undecided indeed: what was on its way at the deadline may still come in once the storm is over.
    server.scripts.clear()
    after = (await root_of(store, seed=2).commit(adding("y"), epoch=1, initial=Counter())).content.done
    assert after in (("y",), ("x", "y"))


@by(run)
async def test_peer_t07_a_200_with_an_error_inside_is_no_success(store: S3Store, server: ScriptedS3, /) -> None:
    """aws-sdk-java-v2 #7068, object_store #122, scylladb #20517, bun #34044: CompleteMultipartUpload answered 200 with
    an <Error> in its body, and the data was silently lost. No answer but a proper one is a success, of a whole upload
    as of one in parts."""
    asked = 0
    for kind in ("error200", "garbage200", "empty200"):
        for size in (100, 3 * PART):
            asked += 1
            key = str(SegmentKey(TOPIC_ID, 0, 0, 1, UUID(int=asked)))
            server.script(*(("PUT", key) if size == 100 else ("POST", "uploadId=")), kind)
            with pytest.raises(StoreError):
                await put(store, key, os.urandom(size))
            assert server.hits == asked
            assert (key in server.objects) == (kind != "error200")


async def put(store: S3Store, key: str, data: bytes) -> None:
    """A segment: by one PUT, in parts above `PART`."""
    with mock.patch.object(s3_upload, "SINGLE_PARTS", 1):
        await store.put_segment(key, upload_of(data))


@by(run)
async def test_peer_t08_a_complete_that_was_done_and_denied(store: S3Store, server: ScriptedS3, /) -> None:
    """niks3 #427, AutoMQ c9e4ccd: Complete, sent again, was answered NoSuchUpload although the object existed; one gave
    up, one retried for ever. Here Complete is sent once; the caller hears "unknown" and comes back under another name;
    both objects are whole, and no upload is left open."""
    for number, kind in enumerate(("lost", "404")):
        first, second = (str(SegmentKey(TOPIC_ID, number, 0, 1, UUID(int=n))) for n in (1, 2))
        data = os.urandom(2 * PART + 17)
        server.script("POST", "uploadId=", kind)
        with pytest.raises(StoreUnavailable):
            await put(store, first, data)
        assert server.sent("POST", "uploadId=") == 2 * number + 1
        await put(store, second, data)
        assert server.objects[first][0] == server.objects[second][0] == data
        assert not server.uploads


@pytest.mark.parametrize(
    ("quirk", "condition"),
    [("match_missing", StoreCondition.ABSENT), ("none_match_ignored", StoreCondition.CREATE_ONCE), ("304", None)],
)
@by(run)
async def test_peer_t09_providers_that_get_conditions_wrong_are_refused(
    store: S3Store, server: ScriptedS3, /, quirk: str, condition: StoreCondition | None
) -> None:
    """minio #21526, #20346, #19442, ceph: If-Match on a missing key created it, `*` was not known. The probe at start
    names the condition and refuses the store. 304 in the place of 412 keeps what was there, and is no success."""
    server.quirks.add(quirk)
    report = await probe(store, SeededRng(1))
    assert not server.objects, "the probe leaves nothing behind"
    if condition is None:
        report.require()
        etag = await store.put_root("r", b"1", None)
        with pytest.raises(StoreError):
            await store.put_root("r", b"2", None)
        with pytest.raises(StoreError):
            await store.put_root("r", b"2", '"other"')
        assert server.objects["r"][:2] == (b"1", etag)
        return
    assert condition in {finding.condition for finding in report.findings if not finding.passed}
    with pytest.raises(StoreRefused):
        report.require()


@by(run)
async def test_peer_t11_1001_objects_are_listed_collected_and_deleted(store: S3Store, server: ScriptedS3, /) -> None:
    """AutoMQ f2470b7, Aiven ce22599: LIST beyond 1 000 was not paged, DELETE of more than 1 000 keys was rejected.
    2 001 orphans of a dead epoch beside one live segment: gc sees all of them in three pages and deletes in three
    requests; the live one stays."""
    manifests = ManifestStore(store, TOPIC_ID, 0, SeededRng(1), SystemClock())
    await manifests.create(2, "orders", {}, 100)
    for number in range(2001):
        server.objects[str(SegmentKey(TOPIC_ID, 0, number, 1, UUID(int=number)))] = (b"x", '"e"', "")
    inspector = BucketInspector(store, ThreadWorkers())
    plan = await inspector.plan_gc(TOPIC_ID, 0)
    assert len(plan.deletable) == 2001 and server.sent("GET", "list-type") == 3
    await inspector.delete(plan)
    assert list(server.objects) == [manifest_key(TOPIC_ID, 0)] and server.sent("POST", "delete") == 3
    manifest = await manifests.load()
    assert isinstance(manifest, Manifest)
    await store.delete([f"k{number}" for number in range(1001)])
    assert server.sent("POST", "delete") == 5
