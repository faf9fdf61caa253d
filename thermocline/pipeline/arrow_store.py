"""A read-only bucket through pyarrow's file systems, for processes without a broker (Spark drivers and executors).

A call returns exactly the requested bytes, or raises an error of `coldstore.object_store`. Every request has a timeout
and the client's bounded retries. Any thread may call it. The coroutines block and never suspend: `finished` runs them
without an event loop, so that coldstore's readers work in threads too.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from coldstore.object_store import AccessRefused, Got, ObjectInfo, ObjectMissing, StoreUnavailable
from coldstore.stores.directory_files import SMALL_BYTES_MAX, content_etag, size_etag
from coldstore.stores.limits import SYSTEM_DIRECTORY, check_key, check_range, resolve_range
from coldstore.url import DEFAULT_REGION, KEY_FILE_VARIABLE, DirectoryUrl, S3Url, parse_bucket_url, with_key_file
from logformat.errors import Corrupt, ThermoclineError

CONNECT_S: Final = 5.0
REQUEST_S: Final = 20.0  # time without a byte
ATTEMPTS_MAX: Final = 5  # per request, with the client's backoff
HANDLES_MAX: Final = 64  # an open handle saves a HEAD; it costs at most a file descriptor
_REFUSED: Final = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE", "INVALID_CLIENT_TOKEN", "HTTP status: 403")
_GONE: Final = ("NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "HTTP status: 404")

T = TypeVar("T")


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`, run to its end at once. Only for coroutines that never wait for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a coroutine over an ArrowStore waited for an event loop")


class ArrowStore:
    """`ReadStore` over a directory or a prefix of an S3 bucket. `requests` and `bytes_read` count its traffic.

    `read` caches handles, so it is for immutable objects only. A deleted object is ObjectMissing; an open file can
    still be read.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, url: str) -> None:
        self.requests = 0
        self.bytes_read = 0
        self.is_directory = isinstance(filesystem, fs.LocalFileSystem)
        """A read is mostly a copy from the page cache, not a request."""
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._url = url
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, pa.NativeFile] = OrderedDict()

    @property
    def url(self) -> str:
        return self._url

    # ── for threads ──────────────────────────────────────────────────────────────────────────────────────────────
    def read(self, key: str, start: int, length: int) -> pa.Buffer:
        """Bytes `[start, start + length)` of an immutable object, all of them; blocks without the GIL.

        Raises Corrupt when the object is shorter, ObjectMissing, AccessRefused, StoreUnavailable.
        """
        handle = self._handle(key)
        size = handle.size()
        if start + length > size:
            raise Corrupt(f"object {key} has {size} bytes, but should reach byte {start + length}")
        try:
            # Read into Arrow's pool, which reuses pages; Python maps large bytes anew each time (0.15 CPU s per GiB).
            data = handle.get_stream(start, length).read_buffer(length)
        except (OSError, pa.ArrowException) as failure:
            raise self._mapped(key, failure, check_exists=True) from failure
        self._count(key, start, length, data.size)
        return data

    def announce(self, key: str, start: int, length: int) -> None:
        """Read-ahead hint for bytes of an open object in a directory."""
        with self._lock:
            handle = self._handles.get(key)
        if handle is None or not self.is_directory or not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError):  # a file system may not support the hint; the read itself reports errors
            os.posix_fadvise(handle.fileno(), start, length, os.POSIX_FADV_WILLNEED)

    def forget(self, key: str) -> None:
        """Drop the cached handle of an object whose content is in doubt."""
        with self._lock:
            self._handles.pop(key, None)

    def size(self, key: str) -> int:
        """Bytes of the whole object, as of its first use here. Errors: as `read`."""
        size: int = self._handle(key).size()
        return size

    def children(self, prefix: str) -> Sequence[str]:
        """Names directly below `prefix` (with its final slash) that hold further objects, sorted; one listing."""
        found = self._listed(prefix, recursive=False)
        names = [info.base_name for info in found if info.type == fs.FileType.Directory]
        return sorted(name for name in names if name != SYSTEM_DIRECTORY)

    # ── ReadStore ────────────────────────────────────────────────────────────────────────────────────────────────
    async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        check_range(key, start, length)
        handle = self._opened(key)  # a new handle, because the content of a root changes
        first, given = resolve_range(key, start, length, handle.size())
        data = self._read_at(key, handle, first, given)
        return Got(data, self._etag(handle, data), handle.size())

    async def get_if_changed(self, key: str, etag: str | None) -> Got | None:
        handle = self._opened(key)
        if etag is not None and _kept_etag(handle) == etag:
            return None
        size = handle.size()
        _, given = resolve_range(key, 0, None, size)
        data = self._read_at(key, handle, 0, given)
        found = self._etag(handle, data)
        return None if found == etag else Got(data, found, size)

    async def head(self, key: str) -> ObjectInfo:
        handle = self._opened(key)
        return ObjectInfo(key, handle.size(), _kept_etag(handle) or size_etag(handle.size()))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        infos = [
            ObjectInfo(info.path.removeprefix(f"{self._root}/"), info.size, size_etag(info.size))
            for info in self._listed(prefix, recursive=True)
            if info.type == fs.FileType.File
        ]
        for found in sorted(infos, key=lambda one: one.key):
            if found.key.startswith(prefix) and not found.key.startswith(f"{SYSTEM_DIRECTORY}/"):
                yield found

    async def close(self) -> None:
        with self._lock:
            self._handles.clear()

    # ── the client ───────────────────────────────────────────────────────────────────────────────────────────────
    def _handle(self, key: str) -> pa.NativeFile:
        with self._lock:
            handle = self._handles.get(key)
            if handle is not None:
                self._handles.move_to_end(key)
                return handle
        handle = self._opened(key)
        with self._lock:
            self._handles[key] = handle
            while len(self._handles) > HANDLES_MAX:
                self._handles.popitem(last=False)  # a reader's reference keeps it open
        return handle

    def _opened(self, key: str) -> pa.NativeFile:
        check_key(key)
        try:
            path = f"{self._root}/{key}"
            handle = pa.OSFile(path) if self.is_directory else self._fs.open_input_file(path)  # OSFile has a fileno
        except (OSError, pa.ArrowException) as failure:
            raise self._mapped(key, failure) from failure
        with self._lock:
            self.requests += 1
        return handle

    def _read_at(self, key: str, handle: pa.NativeFile, start: int, length: int) -> bytes:
        try:
            data: bytes = handle.read_at(length, start)
        except (OSError, pa.ArrowException) as failure:
            raise self._mapped(key, failure, check_exists=True) from failure
        self._count(key, start, length, len(data))
        return data

    def _count(self, key: str, start: int, length: int, came: int) -> None:
        """Count a request. Raises StoreUnavailable when fewer bytes arrived than were asked for."""
        with self._lock:
            self.requests += 1
            self.bytes_read += came
        if came != length:
            self.forget(key)
            raise StoreUnavailable(f"GET {key}: only {came} of {length} bytes from position {start} arrived; try again")

    def _listed(self, prefix: str, *, recursive: bool) -> Sequence[fs.FileInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder)
        selector = fs.FileSelector(f"{self._root}/{folder}".rstrip("/"), recursive=recursive, allow_not_found=True)
        try:
            found: Sequence[fs.FileInfo] = self._fs.get_file_info(selector)
        except (OSError, pa.ArrowException) as failure:
            raise self._mapped(prefix, failure) from failure
        with self._lock:
            self.requests += 1 + len(found) // 1000
        return found

    def _etag(self, handle: pa.NativeFile, data: bytes) -> str:
        kept = _kept_etag(handle)
        if kept is None and len(data) == handle.size() <= SMALL_BYTES_MAX:
            return content_etag(data)
        return kept or size_etag(handle.size())

    def _mapped(self, key: str, failure: Exception, *, check_exists: bool = False) -> ThermoclineError:
        text = str(failure)
        self.forget(key)
        if isinstance(failure, FileNotFoundError) or any(word in text for word in _GONE):
            return ObjectMissing(f"{self._url}: no object {key}")
        code = failure.errno if isinstance(failure, OSError) else None
        if code in (errno.EACCES, errno.EPERM) or any(word in text for word in _REFUSED):
            return AccessRefused(f"{self._url}: {key}: {text}; the job needs the right to read it")
        if code == errno.ENOTDIR:
            return ObjectMissing(f"{self._url}: no object {key}")
        # The client reports a 404 in the middle of an object as a broken stream, so check whether the key still exists.
        if check_exists and self._is_gone(key):
            return ObjectMissing(f"{self._url}: {key} was deleted while it was read")
        return StoreUnavailable(f"{self._url}: {key}: {text}; is the address right and the store up? Then try again")

    def _is_gone(self, key: str) -> bool:
        try:
            return bool(self._fs.get_file_info(f"{self._root}/{key}").type == fs.FileType.NotFound)
        except (OSError, pa.ArrowException):
            return False


def _kept_etag(handle: pa.NativeFile) -> str | None:
    """The handle's ETag; None for a file."""
    kept: bytes | None = handle.metadata().get("ETag")
    return None if kept is None else kept.decode()


def open_arrow_store(url: str) -> ArrowStore:
    """The bucket behind `url` (`coldstore.url.SYNTAX`), with credentials by the usual chain. Sends no request yet.

    With a key file, of the URL or the environment, objects are decrypted. Raises InvalidRequest for a bad URL or key
    file; AccessRefused, StoreUnavailable of a key service.
    """
    parsed = with_key_file(parse_bucket_url(url), os.environ.get(KEY_FILE_VARIABLE))
    if isinstance(parsed, DirectoryUrl):
        filesystem, root = fs.LocalFileSystem(), parsed.path
    else:
        filesystem, root = _s3(parsed), f"{parsed.bucket}/{parsed.prefix}" if parsed.prefix else parsed.bucket
    if parsed.key_file is None:
        return ArrowStore(filesystem, root, parsed.printed())
    from coldstore.encryption.key_file import load_ring
    from thermocline.pipeline.encrypted_arrow_store import EncryptedArrowStore

    return EncryptedArrowStore(filesystem, root, parsed.printed(), load_ring(parsed.key_file))


def _s3(url: S3Url) -> fs.FileSystem:
    region = url.region
    if region is None and url.endpoint is not None:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    options: dict[str, object] = {"region": region}
    if url.endpoint is not None:
        split = urlsplit(url.endpoint)
        options |= {"endpoint_override": split.netloc, "scheme": split.scheme}
        options["force_virtual_addressing"] = url.path_style is False
    return fs.S3FileSystem(
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
        **options,
    )
