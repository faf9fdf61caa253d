"""The shared conformance suite on S3 servers in other processes: moto, and versitygw where it is installed (`peer`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coldstore.object_store import ObjectStore
from coldstore.stores.s3 import S3Store
from coldstore.url import S3Url, parse_bucket_url
from seams.clock import SystemClock
from seams.loop.workers import ThreadWorkers
from tests.support.store.s3_servers import S3Server, find_versitygw, moto_server, versitygw_server
from tests.support.store.store_conformance import StoreConformance


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
        def put(key: str) -> None:
            self._client.put_object(Bucket=self._url.bucket, Key=f"{self._url.prefix}/{key}", Body=data)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, keys))

    def close(self) -> None:
        self.workers.close()
        self._client.close()


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


@pytest.mark.peer
class TestVersitygw(StoreConformance):
    @pytest.fixture
    def place(self, versitygw: S3Server) -> Iterator[S3Place]:
        place = S3Place(versitygw, checks_checksums=True, keeps_checksums=True)
        yield place
        place.close()
