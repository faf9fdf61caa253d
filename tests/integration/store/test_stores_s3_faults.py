"""S3Store against a server behind a proxy that loses, breaks, delays and falsifies (T5–T8, faults O1–O4).

Every test also proves a negative: nothing is sent twice, and nothing doubtful is reported as done.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest
from crc32c import crc32c

from coldstore.object_store import (
    AccessRefused,
    ConditionalConflict,
    ObjectMissing,
    PreconditionFailed,
    StoreAway,
    StoreUnavailable,
    Upload,
)
from coldstore.stores.s3 import S3Deadlines, S3Store
from coldstore.url import S3Url, parse_bucket_url
from seams.clock import SystemClock
from seams.loop.workers import ThreadWorkers
from tests.support.store.memory_store import upload_of
from tests.support.store.s3_servers import (
    Fault,
    LoggedRequest,
    S3Server,
    StoreProxy,
    find_versitygw,
    moto_server,
    store_proxy,
    versitygw_server,
)

PART = 5 << 20  # S3's least


@pytest.fixture(scope="module")
def proxy_for_module() -> Iterator[StoreProxy]:
    with moto_server() as server, store_proxy(server) as proxy:
        proxy.bucket_url("faults")
        yield proxy


@pytest.fixture
def proxy(proxy_for_module: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> StoreProxy:
    for name, value in proxy_for_module.environment().items():
        monkeypatch.setenv(name, value)
    proxy_for_module.faults()
    proxy_for_module.forget()
    return proxy_for_module


def run(
    server: S3Server,
    scenario: Callable[[S3Store], Awaitable[None]],
    *,
    deadlines: S3Deadlines | None = None,
    options: str = "",
) -> None:
    """One store on one loop over the bucket `faults`."""
    url = parse_bucket_url(server.bucket_url("faults") + options)
    assert isinstance(url, S3Url)

    async def main() -> None:
        workers = ThreadWorkers()
        store = S3Store(url, workers, SystemClock(), deadlines, part_bytes=PART)
        try:
            async with asyncio.timeout(60):
                await scenario(store)
        finally:
            await store.close()
            workers.close()

    asyncio.run(main())


def puts(proxy: StoreProxy, key: str) -> list[LoggedRequest]:
    return [request for request in proxy.requests() if request.method == "PUT" and request.key == key]


@pytest.mark.parametrize("kind", ["lost", "empty200", "garbage200"])
def test_a_root_whose_answer_was_lost_is_unknown_and_sent_once(proxy: StoreProxy, kind: str) -> None:
    """T5, T7: it is there, the caller hears "unknown", and no client below resent it on the kept connection."""

    async def scenario(store: S3Store) -> None:
        key = f"lost-{kind}"
        etag = await store.put_root(key, b"warm", None)  # the connection is now a kept one
        proxy.faults(Fault(kind, method="PUT", times=1))
        with pytest.raises(StoreUnavailable):
            await store.put_root(key, b"one", etag)
        got = await store.get(key)
        assert got.data == b"one"
        assert len(puts(proxy, key)) == 2 and proxy.hits() == [1]
        proxy.faults(Fault(kind, method="PUT", times=1))
        with pytest.raises(StoreUnavailable):
            await store.put_root(key + "-created", b"two", None)
        assert (await store.get(key + "-created")).data == b"two"
        assert len(puts(proxy, key + "-created")) == 1

    run(proxy, scenario)


def test_the_reader_client_would_have_resent_it(proxy: StoreProxy) -> None:
    """Why roots go by boto3: aiobotocore, retries off, sends a PUT twice when a kept connection closes unanswered.

    When this fails, aiohttp has stopped doing that, and put_root may move to the loop.
    """

    async def scenario(store: S3Store) -> None:
        await store.put_root("resent", b"warm", None)
        await store.get("resent")
        client = await store._open_reader()
        proxy.faults(Fault("lost", method="PUT", times=1))
        with pytest.raises(Exception, match="PreconditionFailed"):
            await client.put_object(Bucket="faults", Key="resent-aio", Body=b"one", IfNoneMatch="*")
        assert [request.status for request in puts(proxy, "resent-aio")] == [200, 412]

    run(proxy, scenario)


@pytest.mark.parametrize("fault", [Fault("reset"), Fault("error200"), Fault("status", status=500), Fault("status")])
def test_a_root_that_never_arrived_is_unknown_too(proxy: StoreProxy, fault: Fault) -> None:
    """Faults O1, O4: reset, 200 with an error inside, 500, 503 SlowDown: one request, "unknown", nothing there."""

    async def scenario(store: S3Store) -> None:
        proxy.faults(replace(fault, method="PUT"))
        key = f"never-{fault.kind}-{fault.status}"
        with pytest.raises(StoreUnavailable):
            await store.put_root(key, b"one", None)
        with pytest.raises(StoreUnavailable):
            await store.put_segment(key, upload_of(b"one"))
        with pytest.raises(ObjectMissing):
            await store.head(key)
        assert len(puts(proxy, key)) == 2

    run(proxy, scenario)


def test_each_refusal_of_a_root_has_its_own_name(proxy: StoreProxy) -> None:
    """T6: 409 is not 412; 404 to If-Match is; anything else that is no success is unknown; 403 is for an operator."""
    outcomes = {409: ConditionalConflict, 412: PreconditionFailed, 404: PreconditionFailed, 403: AccessRefused}
    outcomes |= {400: StoreUnavailable, 429: StoreAway, 501: StoreUnavailable, 504: StoreAway}

    async def scenario(store: S3Store) -> None:
        for status, outcome in outcomes.items():
            proxy.faults(Fault("status", method="PUT", status=status))
            with pytest.raises(outcome):
                await store.put_root("refused", b"one", '"abc"')
        assert len(puts(proxy, "refused")) == len(outcomes)

    run(proxy, scenario)


def test_a_late_root_lands_after_its_503(proxy: StoreProxy) -> None:
    """Fault O5: 503 was the answer, and the write takes effect afterwards."""

    async def scenario(store: S3Store) -> None:
        with pytest.raises(ObjectMissing):
            await store.head("late")  # the client is open now
        proxy.faults(Fault("late", method="PUT", times=1, seconds=1))
        with pytest.raises(StoreUnavailable):
            await store.put_root("late", b"one", None)
        with pytest.raises(ObjectMissing):
            await store.head("late")
        async with asyncio.timeout(5):
            while not [request for request in proxy.requests() if request.method == "LATE"]:
                await asyncio.sleep(0.02)
        assert (await store.get("late")).data == b"one"

    run(proxy, scenario)


def test_every_operation_ends_by_its_deadline(proxy: StoreProxy) -> None:
    """T25: a store that holds every request for ever costs each operation its deadline, and no more."""

    async def scenario(store: S3Store) -> None:
        etag = await store.put_root("held", b"one", None)
        await store.head("held")
        proxy.faults(Fault("stall", seconds=30))
        began = asyncio.get_running_loop().time()
        results = await asyncio.gather(
            store.get("held"),
            store.get("held", 0, 1),
            store.get_if_changed("held", etag),
            store.head("held"),
            store.put_root("held", b"two", etag),
            store.put_segment("held-segment", upload_of(b"x")),
            store.delete(["held"]),
            anext(store.list("")),
            return_exceptions=True,
        )
        assert {type(result) for result in results} == {StoreAway}
        # Three seconds each by its deadline; the store would hold them for thirty. The rest is a loaded machine.
        assert asyncio.get_running_loop().time() - began < 20

    # Not less than three: the first calls build clients and TLS contexts, on a machine that runs other tests.
    run(proxy, scenario, deadlines=S3Deadlines(get_s=3, small_s=3, segment_s=3))


def test_a_slow_source_is_dropped_in_mid_body(proxy: StoreProxy) -> None:
    """The thread behind an upload that ran out of time lets go of its source, and the store keeps nothing of it."""
    gate, pieces = asyncio.Event(), []

    async def scenario(store: S3Store) -> None:
        loop = asyncio.get_running_loop()

        def slow() -> Iterator[bytes]:
            for number in range(100):
                asyncio.run_coroutine_threadsafe(asyncio.wait_for(gate.wait(), 5), loop).result()
                pieces.append(number)
                yield bytes(1000)

        await store.put_root("slow-warm", b"", None)
        with pytest.raises(StoreUnavailable):
            await store.put_segment("slow", Upload(100_000, crc32c(bytes(100_000)), slow))
        gate.set()
        async with asyncio.timeout(5):
            while not puts(proxy, "slow"):
                await asyncio.sleep(0.02)
        assert len(pieces) <= 1
        with pytest.raises(ObjectMissing):
            await store.head("slow")

    run(proxy, scenario, deadlines=S3Deadlines(segment_s=0.3))


@pytest.mark.parametrize("kind", ["truncate", "short", "wrong_range", "lost", "reset", "status", "garbage200"])
def test_a_broken_read_is_never_a_short_answer(proxy: StoreProxy, kind: str) -> None:
    """Fault O4: cut off, stalled half-way, another range, no answer: each is StoreUnavailable, whole GETs included."""

    async def scenario(store: S3Store) -> None:
        data = os.urandom(300_000)
        await store.put_segment(f"read-{kind}", upload_of(data))
        await store.head(f"read-{kind}")
        for start, length in ((1000, 200_000), (-100_000, None)):
            proxy.faults(Fault(kind, method="GET", seconds=0.1))
            with pytest.raises(StoreUnavailable):
                await store.get(f"read-{kind}", start, length)
        if kind not in ("wrong_range", "garbage200"):
            with pytest.raises(StoreUnavailable):
                await store.get(f"read-{kind}")
        proxy.faults()
        assert (await store.get(f"read-{kind}", 1000, 200_000)).data == data[1000:201_000]

    run(proxy, scenario)


def test_a_flipped_bit_goes_through(proxy: StoreProxy) -> None:
    """What no client notices, and why every chunk has a CRC32C of ours."""

    async def scenario(store: S3Store) -> None:
        data = os.urandom(100_000)
        await store.put_segment("flip", upload_of(data))
        proxy.faults(Fault("flip", method="GET", times=1))
        got = await store.get("flip", 0, 100_000)
        assert len(got.data) == len(data) and crc32c(got.data) != crc32c(data)

    run(proxy, scenario)


def test_a_listing_that_lies_about_its_pages_is_refused(proxy: StoreProxy) -> None:
    """Out of order, the same page again, truncated without a way on: never an endless or a silently short listing."""
    entry = "<Contents><Key>{}</Key><Size>1</Size><ETag>x</ETag></Contents>"
    page = "<?xml version='1.0'?><ListBucketResult><IsTruncated>{}</IsTruncated>{}{}</ListBucketResult>"
    token = "<NextContinuationToken>again</NextContinuationToken>"
    lies = (
        page.format("false", entry.format("b") + entry.format("a"), ""),
        page.format("true", entry.format("a"), token),
        page.format("true", entry.format("a"), ""),
    )

    async def scenario(store: S3Store) -> None:
        for lie in lies:
            proxy.faults(Fault("status", method="GET", match="list-type", status=200, body=lie))
            with pytest.raises(StoreUnavailable):
                [info async for info in store.list("")]

    run(proxy, scenario)


def test_a_deletion_refused_for_one_key_is_an_error(proxy: StoreProxy) -> None:
    """DeleteObjects answers 200 with errors by key; a missing key is none."""
    body = "<?xml version='1.0'?><DeleteResult><Error><Key>k</Key><Code>{}</Code></Error></DeleteResult>"
    outcomes = {"AccessDenied": AccessRefused, "InternalError": StoreUnavailable, "SlowDown": StoreUnavailable}

    async def scenario(store: S3Store) -> None:
        for code, outcome in outcomes.items():
            proxy.faults(Fault("status", method="POST", match="delete", status=200, body=body.format(code)))
            with pytest.raises(outcome):
                await store.delete(["k"])
        proxy.faults(Fault("status", method="POST", match="delete", status=200, body=body.format("NoSuchKey")))
        await store.delete(["k"])

    run(proxy, scenario)


def test_every_put_carries_its_checksum_and_the_urls_storage_options(proxy: StoreProxy) -> None:
    """storage_class, sse and sse_key go on every PUT; the body is neither signed nor in aws-chunks."""

    async def scenario(store: S3Store) -> None:
        await store.put_root("options-root", b"one", None)
        await store.put_segment("options-segment", upload_of(b"two"))
        await store.put_segment("options-parts", upload_of(bytes(PART * 4 + 1)))

    run(proxy, scenario, options="&storage_class=STANDARD_IA&sse=aws:kms&sse_key=alias/archive")
    made = [r for r in proxy.requests() if r.key.startswith("options") and (r.method, r.query) != ("POST", "")]
    carriers = [r for r in made if (r.method == "PUT" and "partNumber" not in r.query) or r.query == "uploads"]
    assert len(carriers) == 3
    for request in carriers:
        assert request.amz["x-amz-storage-class"] == "STANDARD_IA"
        assert request.amz["x-amz-server-side-encryption"] == "aws:kms"
        assert request.amz["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/archive"
    for request in (r for r in made if r.method == "PUT"):
        assert len(request.amz["x-amz-checksum-crc32c"]) == 8
        assert request.amz["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert "x-amz-trailer" not in request.amz
    assert [r.condition for r in made if r.key == "options-root"] == ["absent"]


@pytest.mark.parametrize("kind", ["lost", "error200", "garbage200", "empty200", "status"])
def test_a_multipart_upload_that_may_not_be_complete_is_unknown(proxy: StoreProxy, kind: str) -> None:
    """T7, T8: Complete answers 200 with an error, nonsense or nothing: unknown, asked once; the next has a new name."""

    async def scenario(store: S3Store) -> None:
        body = upload_of(bytes(PART * 4 + 1))
        proxy.faults(Fault(kind, method="POST", match="uploadId=", times=1))
        with pytest.raises(StoreUnavailable):
            await store.put_segment(f"parts-{kind}", body)
        assert proxy.hits() == [1]
        proxy.faults()
        info = await store.put_segment(f"parts-{kind}-again", body)
        assert info.size == (await store.head(f"parts-{kind}-again")).size == body.size

    run(proxy, scenario)
    completes = [r for r in proxy.requests() if r.method == "POST" and "uploadId=" in r.query]
    assert len([r for r in completes if not r.key.endswith("again")]) == 1
    aborts = [r for r in proxy.requests() if r.method == "DELETE" and "uploadId=" in r.query]
    assert len(aborts) == 1


def test_a_failed_part_leaves_no_upload_behind(proxy: StoreProxy) -> None:
    """Fault O9: parts are billed until aborted; what fails in the middle is aborted at once."""

    async def scenario(store: S3Store) -> None:
        proxy.faults(Fault("status", method="PUT", match="partNumber=3", status=500))
        with pytest.raises(StoreUnavailable):
            await store.put_segment("aborted", upload_of(bytes(PART * 4 + 1)))

    run(proxy, scenario)
    assert "Uploads" not in proxy.client().list_multipart_uploads(Bucket="faults")


def test_nobody_listening_and_no_credentials(proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away is StoreUnavailable; a broker without credentials is an operator's matter."""
    workers = ThreadWorkers()

    async def away() -> None:
        store = S3Store(S3Url("faults", endpoint="http://127.0.0.1:9"), workers, SystemClock())
        with pytest.raises(StoreUnavailable):
            await store.get("x")
        with pytest.raises(StoreUnavailable):
            await store.put_root("x", b"", None)
        await store.close()

    async def poor(store: S3Store) -> None:
        with pytest.raises(AccessRefused):
            await store.get("x")
        with pytest.raises(AccessRefused):
            await store.put_root("x", b"", None)

    asyncio.run(away())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    run(proxy, poor)
    workers.close()


def test_a_bucket_that_does_not_exist_is_an_operators_matter(proxy: StoreProxy) -> None:
    """A misspelt bucket is no empty one: reads and writes say so."""
    workers = ThreadWorkers()

    async def main() -> None:
        store = S3Store(S3Url("misspelt", endpoint=proxy.endpoint), workers, SystemClock())
        with pytest.raises(AccessRefused):
            await store.get("x")
        with pytest.raises(AccessRefused):
            await store.put_segment("x", upload_of(b"x"))
        with pytest.raises(AccessRefused):
            [info async for info in store.list("")]
        await store.close()

    asyncio.run(main())
    workers.close()


def test_importing_coldstore_loads_no_client() -> None:
    """A directory bucket never pays for boto3; the stores load their clients when one is opened."""
    modules = "sys, coldstore.url, coldstore.inspection.probe, coldstore.stores.directory"
    code = f"import {modules}; print('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.peer
def test_parts_and_secrets_on_versitygw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one checks what moto does not: the whole-object CRC32C of a multipart upload, and the secret."""
    if find_versitygw() is None:
        pytest.skip("versitygw is not installed: run tests/support/store/get_versitygw.sh")

    async def parts(store: S3Store) -> None:
        data = os.urandom(1 << 20) * 21
        await store.put_segment("parts", upload_of(data))
        head = await store.head("parts")
        assert (head.size, head.crc32c) == (len(data), crc32c(data))
        assert (await store.get("parts", PART - 10, 20)).data == data[PART - 10 : PART + 10]

    async def wrong_secret(store: S3Store) -> None:
        with pytest.raises(AccessRefused):
            await store.get("parts", 0, 10)
        with pytest.raises(AccessRefused):
            await store.put_root("root", b"", None)

    with versitygw_server() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        run(server, parts)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        run(server, wrong_secret)
