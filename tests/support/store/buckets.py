"""A bucket as the tests see it behind the broker's back: list it, read it, move objects aside and put them back.

Owns no store code of the project: plain files for a directory, plain boto3 for S3 (straight to the server, so that the
proxy's log holds the broker's requests only). `BUCKET_KINDS` is what the evidence tests run on.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.store.s3_servers import (
    S3Server,
    StoreProxy,
    find_localstack,
    find_versitygw,
    localstack_server,
    moto_server,
    store_proxy,
    versitygw_server,
)

FIRST_BYTE_DELAY_MS = 20.0
BUCKET_KINDS = ("directory", "moto", pytest.param("versitygw", marks=pytest.mark.peer))


class Bucket(Protocol):
    """What a test may do to a bucket. Keys are below the bucket's prefix, as `thermocline bucket` prints them."""

    url: str

    @property
    def proxy(self) -> StoreProxy | None: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    def listing(self) -> set[str]: ...
    def read(self, key: str) -> bytes: ...
    def move_aside(self, prefix: str = "") -> int: ...
    def put_back(self) -> None: ...
    def load(self, objects: Mapping[str, bytes]) -> None: ...


def roots(bucket: Bucket) -> dict[str, dict]:
    """Every manifest's content by its prefix (`topics/<id>/<partition>/`), read from the bucket itself."""
    found = {}
    for key in bucket.listing():
        if key.startswith("topics/") and key.endswith("/manifest.json"):
            found[key.removesuffix("manifest.json")] = json.loads(bucket.read(key))["content"]
    return found


def manifest_of(bucket: Bucket, topic: str, partition: int = 0) -> tuple[str, dict]:
    """(prefix, manifest) of one partition; the topic's newest id, should it have been made again."""
    found = [(p, m) for p, m in roots(bucket).items() if m["topic"] == topic and m["partition"] == partition]
    assert found, f"no manifest of {topic}-{partition} in {bucket.url}"
    return max(found, key=lambda entry: entry[1]["leader_epoch"])


def segment_keys(prefix: str, manifest: dict) -> dict[tuple[int, int], str]:
    """(base, end) → key of the segments in the manifest's tail. For manifests without pages."""
    assert not manifest.get("pages"), "the tail is not the whole of this manifest"
    return {
        (s["base_offset"], s["end_offset"]): f"{prefix}segments/{s['base_offset']:020d}-{s['leader_epoch']}-"
        f"{s['uuid']}.log"
        for s in manifest.get("tail", [])
    }


@dataclass
class DirectoryBucket:
    """A directory."""

    path: Path
    proxy: None = None

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def listing(self) -> set[str]:
        return {
            str(Path(folder, name).relative_to(self.path))
            for folder, _, names in os.walk(self.path)
            if ".thermocline" not in Path(folder).relative_to(self.path).parts
            for name in names
        }

    def read(self, key: str) -> bytes:
        return (self.path / key).read_bytes()

    def move_aside(self, prefix: str = "") -> int:
        """Move what begins with `prefix` (all: '') out of the bucket; how many objects that were."""
        moved = [key for key in self.listing() if key.startswith(prefix)]
        for key in moved:
            aside = self._aside / key
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.path / key, aside)
        return len(moved)

    def load(self, objects: Mapping[str, bytes]) -> None:
        """Put objects into it, before any broker looks."""
        for key, body in objects.items():
            place = self.path / key
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(body)

    def put_back(self) -> None:
        for folder, _, names in os.walk(self._aside):
            for name in names:
                aside = Path(folder, name)
                os.rename(aside, self.path / aside.relative_to(self._aside))
        shutil.rmtree(self._aside)

    @property
    def _aside(self) -> Path:
        return self.path.with_name(self.path.name + ".aside")


@dataclass
class S3Bucket:
    """A bucket of an S3 server in another process; the broker talks to it through `proxy`."""

    server: S3Server
    proxy: StoreProxy
    name: str
    _moved: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = self.proxy.bucket_url(self.name, prefix="cluster-a")
        self._client = self.server.client()

    @property
    def environment(self) -> Mapping[str, str]:
        return self.server.environment()

    def listing(self) -> set[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix="cluster-a/")
        return {found["Key"].removeprefix("cluster-a/") for page in pages for found in page.get("Contents", [])}

    def read(self, key: str) -> bytes:
        return self._client.get_object(Bucket=self.name, Key=f"cluster-a/{key}")["Body"].read()

    def move_aside(self, prefix: str = "") -> int:
        """Take what begins with `prefix` (all: '') out of the bucket; how many objects that were."""
        for key in [key for key in self.listing() if key.startswith(prefix)]:
            self._moved[key] = self.read(key)
            self._client.delete_object(Bucket=self.name, Key=f"cluster-a/{key}")
        return len(self._moved)

    def put_back(self) -> None:
        self.load(self._moved)
        self._moved.clear()

    def load(self, objects: Mapping[str, bytes]) -> None:
        """Put objects into it, before any broker looks."""
        for key, body in objects.items():
            self._client.put_object(Bucket=self.name, Key=f"cluster-a/{key}", Body=body)

    def close(self) -> None:
        self._client.close()


class Stores:
    """The S3 servers of one test process, each started when it is first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[str, S3Server] = {}

    def server(self, kind: str) -> S3Server:
        if kind == "versitygw" and find_versitygw() is None:
            pytest.skip("versitygw is missing: tests/support/store/get_versitygw.sh installs it")
        if kind == "localstack" and not find_localstack():
            pytest.skip("LocalStack is missing: localstack/host-mode.sh installs it")
        if kind not in self._servers:
            start = {"moto": moto_server, "versitygw": versitygw_server, "localstack": localstack_server}[kind]
            self._servers[kind] = self._stack.enter_context(start())
        return self._servers[kind]

    @contextmanager
    def bucket(self, kind: str, path: Path, delay_ms: float = FIRST_BYTE_DELAY_MS) -> Iterator[Bucket]:
        """An empty bucket; on S3 behind a proxy of its own with `delay_ms` before each first byte."""
        if kind == "directory":
            yield DirectoryBucket(path / "bucket")
            return
        server = self.server(kind)
        with store_proxy(server, delay_ms) as proxy:
            bucket = S3Bucket(server, proxy, f"t-{uuid.uuid4().hex[:20]}")
            try:
                yield bucket
            finally:
                bucket.close()

    def close(self) -> None:
        self._stack.close()
