"""Fixtures of the evidence tests: buckets on files and on S3, and a broker's site on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.link_proxy import Links
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import BUCKET_KINDS, Bucket, DirectoryBucket, Stores


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


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """Three brokers on a directory bucket, and links between them, for all tests of a module: a start of three costs
    more than most of them."""
    directory = tmp_path_factory.mktemp("three")
    with Links() as links, three(Site(directory, DirectoryBucket(directory / "bucket")), links) as found:
        yield found


@pytest.fixture
def cluster(three_brokers: Three) -> Three:
    """The module's three brokers: all run, all links carry, every replica is in sync, whatever the last test left."""
    assert three_brokers.links is not None
    three_brokers.links.heal()
    for node_id in {1, 2, 3} - three_brokers.alive():
        three_brokers.gone(node_id)
        three_brokers.start(node_id)
    three_brokers.wait(three_brokers.is_whole, "three brokers, and every replica in sync")
    return three_brokers
