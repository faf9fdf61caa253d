"""The shared conformance suite on S3 servers in other processes: moto, and versitygw where it is installed (`peer`)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coldstore.encryption.encrypted_store import EncryptedStore
from coldstore.encryption.rewrap import Outcome, Rewrapper
from coldstore.object_store import ObjectStore, PreconditionFailed
from coldstore.stores.s3 import S3Store
from coldstore.url import S3Url, parse_bucket_url
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.files.syncs import WorkerSyncs
from seams.loop.workers import ThreadWorkers
from seams.net import TcpNet
from seams.rng import SystemRng
from seams.world import World
from tests.support.store.keys import ring_of, sealed_bytes
from tests.support.store.memory_store import trailed, upload_of
from tests.support.store.s3_servers import S3Server, find_versitygw, moto_server, versitygw_server
from tests.support.store.store_conformance import StoreConformance

RING = ring_of("now", "before")
FOLDER = "topics/00000000-0000-4000-8000-000000000001/0/segments"
SEGMENT, OTHER = (f"{FOLDER}/{at:020d}-1-00000000-0000-4000-8000-00000000000a.log" for at in (0, 7))


class S3Place:
    refuses_reused_names = False

    def __init__(self, server: S3Server, *, checks_checksums: bool, keeps_checksums: bool) -> None:
        self.checks_checksums = checks_checksums
        self.keeps_checksums = keeps_checksums
        self.workers = ThreadWorkers()
        url = parse_bucket_url(server.bucket_url("conformance", prefix="some/prefix"))
        assert isinstance(url, S3Url)
        self._url = url
        self._client = server.client()

    def open(self) -> ObjectStore:
        return S3Store(self._url, self.workers, SystemClock())

    def fill(self, keys: list[str], data: bytes) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: self.put(key, data), keys))

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._url.bucket, Key=f"{self._url.prefix}/{key}", Body=data)

    def close(self) -> None:
        self.workers.close()
        self._client.close()


class EncryptedS3Place(S3Place):
    """The same, with all objects encrypted."""

    def open(self) -> ObjectStore:
        return EncryptedStore(super().open(), RING, self.workers, SystemRng())

    def put(self, key: str, data: bytes) -> None:
        super().put(key, sealed_bytes(key, data, RING))


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(scope="module")
def versitygw() -> Iterator[S3Server]:
    if find_versitygw() is None:
        pytest.skip("versitygw is not installed: run tests/support/store/get_versitygw.sh")
    with versitygw_server() as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server("").environment().items():
        monkeypatch.setenv(name, value)


class TestMoto(StoreConformance):
    @pytest.fixture
    def place(self, moto: S3Server) -> Iterator[S3Place]:
        place = S3Place(moto, checks_checksums=False, keeps_checksums=False)
        yield place
        place.close()


class TestEncryptedMoto(StoreConformance):
    @pytest.fixture
    def place(self, moto: S3Server) -> Iterator[S3Place]:
        place = EncryptedS3Place(moto, checks_checksums=True, keeps_checksums=False)
        yield place
        place.close()


@pytest.mark.peer
class TestVersitygw(StoreConformance):
    @pytest.fixture
    def place(self, versitygw: S3Server) -> Iterator[S3Place]:
        place = S3Place(versitygw, checks_checksums=True, keeps_checksums=True)
        yield place
        place.close()


@pytest.mark.peer
class TestEncryptedVersitygw(StoreConformance):
    @pytest.fixture
    def place(self, versitygw: S3Server) -> Iterator[S3Place]:
        place = EncryptedS3Place(versitygw, checks_checksums=True, keeps_checksums=True)
        yield place
        place.close()


@pytest.mark.parametrize("server", ["moto", pytest.param("versitygw", marks=pytest.mark.peer)])
def test_a_multipart_object_is_encrypted_and_rewrapped(server: str, request: pytest.FixtureRequest) -> None:
    """Parts are read and encrypted twice, to the same bytes; a rewrap stores it in its own place, unless it changed."""

    async def scenario() -> None:
        workers = ThreadWorkers()
        url = parse_bucket_url(request.getfixturevalue(server).bucket_url("parts"))
        assert isinstance(url, S3Url)
        below = S3Store(url, workers, SystemClock(), part_bytes=5 << 20)
        world = World(PosixDisk(), workers, WorkerSyncs(workers), SystemClock(), SystemRng(), TcpNet())
        data = bytes(i * 31 % 251 for i in range(251 * 1000)) * 90
        for key, body in ((SEGMENT, upload_of(data)), (OTHER, trailed(data))):
            await EncryptedStore(below, ring_of("before"), workers, SystemRng()).put_segment(key, body)
        with tempfile.TemporaryDirectory() as scratch:
            rewrapper = Rewrapper(below, RING, world, scratch)
            assert [one.outcome async for one in rewrapper.run(change=True)] == [Outcome.REWRAPPED] * 2
        store = EncryptedStore(below, ring_of("now"), workers, SystemRng())
        for key in (SEGMENT, OTHER):
            assert (await store.get(key)).data == data and (await store.head(key)).size == len(data)
            assert (await store.get(key, 11_000_000, 70_000)).data == data[11_000_000:11_070_000]
            with pytest.raises(PreconditionFailed):
                await below.replace_object(key, upload_of(data[:1000]), '"stale"')
        await store.close()
        workers.close()

    asyncio.run(scenario())
