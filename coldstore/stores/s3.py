"""An S3-compatible bucket, through two clients.

Reads, listings and deletions use aiobotocore on the loop. Writes use boto3 in worker threads, for two reasons.
aiobotocore stalls the loop when it uploads a segment. aiohttp sends the PUT of a root again if a kept connection closes
without an answer; the second PUT then gets 412 because the first one succeeded. Nothing is retried here. At most two
segments are uploaded at a time, so two threads of the lane stay free for roots. A read has exactly the length that the
store announced, or fails. Every call has a deadline. Importing this module loads both clients in 1.2 s, so only
`coldstore.stores.opening` imports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
import boto3
import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.client import Config
from botocore.exceptions import BotoCoreError, ClientError
from crc32c import crc32c

from coldstore.object_store import Got, ObjectInfo, StoreAway, StoreUnavailable, Upload
from coldstore.stores.limits import GET_BYTES_MAX, PART_BYTES, check_key, check_range
from coldstore.stores.s3_errors import mapped, refusal
from coldstore.stores.s3_upload import announce_trailer, decoded_crc32c, encoded_crc32c, put_object
from coldstore.url import DEFAULT_REGION, S3Url
from logformat.errors import InvalidRequest, ThermoclineError
from seams.clock import Clock
from seams.files.disk import File
from seams.loop.workers import Lane, Workers

T = TypeVar("T")

RANGED_GETS_MAX = 4  # at once; more would queue in the NIC and delay the loop (measured)
SEGMENT_PUTS_MAX = 2  # the store lane has four threads
DELETE_KEYS_MAX = 1000  # S3's limit for one request
_BODY_CHUNK = 1 << 20
_CONNECT_S = 5.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_OF_A_LISTING = frozenset({"IsTruncated", "Name", "KeyCount", "Contents"})  # every listing has at least one of these
_MISSING_IS_FINE = frozenset({"NoSuchKey", "NotFound"})
_CLIENT_ERRORS = (BotoCoreError, ClientError, aiohttp.ClientError, OSError)


class S3Deadlines(msgspec.Struct, frozen=True):
    """Seconds after which a call raises StoreAway, including its wait for a slot."""

    get_s: float = 30.0
    small_s: float = 10.0  # HEAD, reads and writes of roots, one page of a listing, one request of deletions
    segment_s: float = 300.0


class S3Store:
    """An `ObjectStore` over one bucket and prefix. It belongs to the event loop of its first call."""

    def __init__(
        self,
        url: S3Url,
        workers: Workers,
        clock: Clock,
        deadlines: S3Deadlines | None = None,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._url = url
        self._prefix = f"{url.prefix}/" if url.prefix else ""
        self._workers = workers
        self._clock = clock
        self._deadlines = deadlines or S3Deadlines()
        self._part_bytes = part_bytes
        self._ranged_gets = asyncio.Semaphore(RANGED_GETS_MAX)
        self._segment_puts = asyncio.Semaphore(SEGMENT_PUTS_MAX)
        self._opening = asyncio.Lock()
        self._connections = RANGED_GETS_MAX + 12
        self._reader: Any = None
        self._exits = contextlib.AsyncExitStack()
        self._writers: tuple[Any, Any] | None = None  # clients for roots and for segments; their time-outs differ

    @property
    def url(self) -> str:
        return self._url.printed()

    # -- reading ---------------------------------------------------------------------------------------------------

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        check_range(key, start, length)
        target = self._target(key)
        if start == 0 and length is None:
            return await self._call(f"GET {key}", self._deadlines.get_s, self._get, key, target)
        last = "" if length is None else start + length - 1
        target["Range"] = f"bytes={start}-{last}" if start >= 0 else f"bytes={start}"
        return await self._call(f"GET {key}", self._deadlines.get_s, self._get_range, key, target, start, length)

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        target = self._target(key) | ({"IfNoneMatch": etag} if etag is not None else {})
        return await self._call(f"GET {key}", self._deadlines.small_s, self._get_if_changed, key, target)

    async def head(self, key: str) -> ObjectInfo:
        target = self._target(key) | {"ChecksumMode": "ENABLED"}
        return await self._call(f"HEAD {key}", self._deadlines.small_s, self._head, key, target)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        token: str | None = None
        last = ""
        while True:
            page, token = await self._call(f"LIST {prefix}", self._deadlines.small_s, self._list_page, prefix, token)
            for info in page:
                if info.key <= last:
                    raise StoreUnavailable(f"LIST {prefix}: {info.key!r} came after {last!r}, so it is not in order")
                last = info.key
                yield info
            if token is None:
                return

    def open_local(self, key: str) -> File | None:
        return None

    # -- writing ---------------------------------------------------------------------------------------------------

    async def put_segment(self, key: str, body: Upload) -> ObjectInfo:
        return await self._call(
            f"PUT {key}", self._deadlines.segment_s, self._put_segment, key, self._target(key), body
        )

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": if_match}
        target = self._target(key) | condition
        what = f"PUT {key} if {if_match or 'absent'}"
        return await self._call(what, self._deadlines.small_s, self._put_root, key, target, data, conditional=True)

    async def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        await self._call(
            f"PUT {key} if {if_match}",
            self._deadlines.segment_s,
            self._put_segment,
            key,
            self._target(key),
            body,
            if_match,
            conditional=True,
        )

    async def delete(self, keys: Sequence[str]) -> None:
        names = [self._target(key)["Key"] for key in keys]
        for at in range(0, len(names), DELETE_KEYS_MAX):
            page = names[at : at + DELETE_KEYS_MAX]
            await self._call(f"DELETE of {len(page)} objects", self._deadlines.small_s, self._delete_page, page)

    async def close(self) -> None:
        async with self._opening:
            self._reader = None
            await self._exits.aclose()
            writers, self._writers = self._writers, None
            for writer in writers or ():
                await self._workers.run(writer.close, lane=Lane.STORE)

    # -- one attempt each ------------------------------------------------------------------------------------------

    async def _call(
        self,
        what: str,
        deadline_s: float,
        attempt: Callable[..., Awaitable[T]],
        *args: Any,
        conditional: bool = False,
    ) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await attempt(*args)
        except ThermoclineError:
            raise
        except TimeoutError as late:
            raise StoreAway(f"{what} in {self._url.bucket}: no answer within {deadline_s:g} s") from late
        except _CLIENT_ERRORS as failure:
            raise mapped(failure, f"{what} in {self._url.bucket}", conditional=conditional) from failure

    async def _get(self, key: str, target: dict[str, str]) -> Got:
        answer = await (await self._open_reader()).get_object(**target)
        size = int(answer["ContentLength"])
        if size > GET_BYTES_MAX:
            answer["Body"].close()
            raise InvalidRequest(f"GET {key}: {size} bytes at once, at most {GET_BYTES_MAX}; read it in ranges")
        data = await _body(answer, key, size)
        if _is_error(data):
            raise StoreUnavailable(f"GET {key}: the store answered 200 with an error as the body: {data[:200]!r}")
        return Got(data, _etag(answer, key), size)

    async def _get_range(self, key: str, target: dict[str, str], start: int, length: int | None) -> Got:
        async with self._ranged_gets:
            answer = await (await self._open_reader()).get_object(**target)
            try:
                given, size = _granted(answer, key, start, length)
            except ThermoclineError:
                answer["Body"].close()
                raise
            return Got(await _body(answer, key, given), _etag(answer, key), size)

    async def _get_if_changed(self, key: str, target: dict[str, str]) -> Got | None:
        try:
            return await self._get(key, target)
        except ClientError as refused:
            if refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 304:
                return None
            raise

    async def _head(self, key: str, target: dict[str, str]) -> ObjectInfo:
        answer = await (await self._open_reader()).head_object(**target)
        checksum = decoded_crc32c(answer.get("ChecksumCRC32C"))
        return ObjectInfo(key, int(answer["ContentLength"]), _etag(answer, key), checksum)

    async def _list_page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        parameters = {"Bucket": self._url.bucket, "Prefix": self._prefix + prefix}
        if token is not None:
            parameters["ContinuationToken"] = token
        answer = await (await self._open_reader()).list_objects_v2(**parameters)
        if not _OF_A_LISTING & answer.keys():
            raise StoreUnavailable(f"LIST {prefix}: the store answered 200 without a listing; there may be objects")
        page = [
            ObjectInfo(entry["Key"][len(self._prefix) :], int(entry["Size"]), str(entry.get("ETag", "")))
            for entry in answer.get("Contents", ())
            if not entry["Key"].endswith("/")  # a "folder" of a console; no valid key ends with a slash
        ]
        following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        if answer.get("IsTruncated") and not following:
            raise StoreUnavailable(f"LIST {prefix}: the listing is cut short, without a continuation token")
        return page, following

    async def _delete_page(self, names: Sequence[str]) -> None:
        objects = [{"Key": name} for name in names]
        answer = await (await self._open_reader()).delete_objects(
            Bucket=self._url.bucket, Delete={"Objects": objects, "Quiet": True}
        )
        for error in answer.get("Errors", ()):
            code = str(error.get("Code", ""))
            if code not in _MISSING_IS_FINE:
                status = 403 if code == "AccessDenied" else 500
                raise refusal(f"DELETE {error.get('Key')}", status, code, str(error.get("Message", "")))

    async def _put_segment(
        self, key: str, target: dict[str, str], body: Upload, if_match: str | None = None
    ) -> ObjectInfo:
        deadline = self._clock.monotonic_s() + self._deadlines.segment_s
        async with self._segment_puts:
            _, client = await self._open_writers()
            return await self._workers.run(
                put_object,
                client,
                target,
                key,
                body,
                self._storage(),
                # asyncio's timeout does not stop the thread. This deadline ends its upload.
                lambda: self._clock.monotonic_s() > deadline,
                self._part_bytes,
                {} if if_match is None else {"IfMatch": if_match},
                lane=Lane.STORE,
            )

    async def _put_root(self, key: str, target: dict[str, str], data: bytes) -> str:
        client, _ = await self._open_writers()
        parameters = target | self._storage() | {"ChecksumCRC32C": encoded_crc32c(crc32c(data))}
        answer = await self._workers.run(lambda: client.put_object(Body=data, **parameters), lane=Lane.STORE)
        if answer["ResponseMetadata"]["HTTPStatusCode"] != 200 or not answer.get("ETag"):
            raise StoreUnavailable(
                f"PUT {key}: the store answered without an ETag; it is unknown whether the object was stored"
            )
        return str(answer["ETag"])

    # -- clients ---------------------------------------------------------------------------------------------------

    def _target(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self._url.bucket, "Key": self._prefix + key}

    def _storage(self) -> dict[str, str]:
        wanted = {
            "StorageClass": self._url.storage_class,
            "ServerSideEncryption": self._url.sse,
            "SSEKMSKeyId": self._url.sse_key,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def _client_arguments(self, region: str | None) -> dict[str, str | None]:
        return {"endpoint_url": self._url.endpoint, "region_name": self._url.region or region or DEFAULT_REGION}

    def _config(self, read_s: float) -> dict[str, Any]:
        style = {None: "auto" if self._url.endpoint is None else "path", True: "path", False: "virtual"}
        return {
            "connect_timeout": _CONNECT_S,
            "read_timeout": read_s,
            "retries": {"mode": "standard", "total_max_attempts": 1},
            "max_pool_connections": self._connections,
            "s3": {"addressing_style": style[self._url.path_style], "payload_signing_enabled": False},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "user_agent_appid": "thermocline",
        }

    async def _open_reader(self) -> Any:
        if self._reader is None:
            async with self._opening:
                if self._reader is None:
                    session = get_session()
                    config = AioConfig(warm_up_loader_caches=True, **self._config(self._deadlines.get_s))
                    arguments = self._client_arguments(session.get_config_variable("region"))
                    self._reader = await self._exits.enter_async_context(
                        session.create_client("s3", config=config, **arguments)
                    )
        return self._reader

    async def _open_writers(self) -> tuple[Any, Any]:
        if self._writers is None:
            async with self._opening:
                if self._writers is None:
                    self._writers = await self._workers.run(self._make_writers, lane=Lane.STORE)
        return self._writers

    def _make_writers(self) -> tuple[Any, Any]:
        session = boto3.session.Session()
        arguments = self._client_arguments(session.region_name)
        small, segment = self._deadlines.small_s, max(self._deadlines.small_s, self._deadlines.segment_s / 5)
        writers = (
            session.client("s3", config=Config(**self._config(small)), **arguments),
            session.client("s3", config=Config(**self._config(segment)), **arguments),
        )
        writers[1].meta.events.register("before-sign.s3.PutObject", announce_trailer)
        return writers


def _etag(answer: dict[str, Any], key: str) -> str:
    etag = answer.get("ETag")
    if not etag:
        raise StoreUnavailable(f"{key}: the store answered without an ETag")
    return str(etag)


def _is_error(data: bytes) -> bool:
    """Whether a complete object is an error document of S3. Valid objects are JSON, Parquet or record batches."""
    return data[:5] == b"<?xml" and b"<Error>" in data[:200]


def _granted(answer: dict[str, Any], key: str, start: int, length: int | None) -> tuple[int, int]:
    """Length of the returned range, and the object's size. Raises StoreUnavailable if it is not the requested range."""
    match = _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange", "")))
    if match is None or answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
        raise StoreUnavailable(f"GET {key}: a range was asked for, the store answered without one")
    first, last, size = map(int, match.groups())
    start = max(0, size + start) if start < 0 else start
    given = size - start if length is None else min(length, size - start)
    if (first, last + 1) != (start, start + given) or int(answer["ContentLength"]) != given:
        raise StoreUnavailable(
            f"GET {key}: asked for {given} bytes at {start} of {size}, but the store answered {answer['ContentRange']}"
        )
    if given > GET_BYTES_MAX:
        raise InvalidRequest(f"GET {key}: {given} bytes at once, at most {GET_BYTES_MAX}; read it in ranges")
    return given, size


async def _body(answer: dict[str, Any], key: str, size: int) -> bytes:
    body = BytesIO()  # gives its buffer away without a copy, so that a large range is in memory once
    async with answer["Body"] as stream:
        async for chunk in stream.iter_chunks(_BODY_CHUNK):
            body.write(chunk)
    if (got := body.tell()) != size:
        raise StoreUnavailable(f"GET {key}: only {got} of {size} bytes arrived")
    return body.getvalue()
