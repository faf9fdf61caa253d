"""Fixtures of the evidence tests: buckets on files and on S3, and a broker's site on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.buckets import BUCKET_KINDS, Bucket, DirectoryBucket, Stores
from tests.support.site import Site


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    """The S3 servers of this test process, started when first asked for."""
    found = Stores()
    yield found
    found.close()


@pytest.fixture(params=BUCKET_KINDS)
def bucket(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket of each kind: a directory, moto, versitygw (peer); S3 with 20 ms before each first byte."""
    with stores.bucket(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def site(tmp_path: Path, bucket: Bucket) -> Site:
    """A broker's place on each kind of bucket."""
    return Site(tmp_path, bucket)


@pytest.fixture
def directory_site(tmp_path: Path) -> Site:
    """A broker's place on a directory bucket."""
    return Site(tmp_path, DirectoryBucket(tmp_path / "bucket"))
