"""Uploads one object with boto3, in the caller's thread.

At most one piece of the source is in memory. The object's CRC32C is sent before or after the bytes, and the store
checks it. Without a CRC32C, versitygw and LocalStack store a short object if a client dies in mid-body. No byte is sent
twice. An error of the source is raised unchanged. An object up to 256 MiB is one streaming PUT, because every part is a
billed request. A larger object has parts of 64 MiB (`limits.PART_BYTES`). Parts have their checksum in a header, so a
multipart upload reads its source twice (CRC32C runs at 9 GB/s or more). A checksum that is known only at the end is
sent as a trailer of the `aws-chunked` encoding, as the AWS SDKs do over TLS (STREAMING-UNSIGNED-PAYLOAD-TRAILER).
botocore's own encoder needs a C library for CRC32C and makes frames of 1 MiB. The frame is therefore made here, and
`announce_trailer` makes botocore sign it.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable, Iterator
from functools import partial
from traceback import clear_frames
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from crc32c import crc32c

from coldstore.object_store import ChecksumRefused, ObjectInfo, StoreUnavailable, Upload
from coldstore.stores.limits import PART_BYTES, SINGLE_PARTS
from logformat.errors import InvalidRequest
from seams.files.disk import Buffer

PARTS_MAX = 10_000  # S3
_TRAILER = "x-amz-checksum-crc32c"


class SegmentBody:
    """A request body for urllib3. `read` ignores the requested size and returns complete pieces, which urllib3 sends
    unchanged. Pieces of 1 MiB cost a tenth of the CPU of urllib3's own 16 KiB blocks.
    """

    def __init__(self, open_pieces: Callable[[], Iterator[Buffer]], size: int, expired: Callable[[], bool]) -> None:
        self._open_pieces = open_pieces
        self._pieces = open_pieces()
        self._size = size
        self._expired = expired
        self._sent = 0
        self.failure: Exception | None = None

    def read(self, _size: int = -1) -> Buffer:
        """The next piece; empty at the end."""
        try:
            if self._expired():
                raise StoreUnavailable("the upload's deadline passed before all bytes were sent")
            piece = next(self._pieces, b"")
            self._sent += len(piece)
            if self._sent > self._size or (not piece and self._sent < self._size):
                raise ChecksumRefused(f"the source gave {self._sent} bytes, but {self._size} were announced")
        except Exception as failure:
            self.failure = failure  # kept, because botocore wraps the error in its own
            raise
        return piece

    def tell(self) -> int:
        return self._sent

    def seek(self, position: int, _whence: int = 0) -> int:
        """Return to the start, after a redirect to the bucket's region. Other positions are refused."""
        if position != 0:
            raise OSError("an upload can only be sent again from its start")
        self._pieces = self._open_pieces()
        self._sent = 0
        return 0


class TrailedBody(SegmentBody):
    """The body in an `aws-chunked` frame, with the checksum after it."""

    def __init__(self, body: Upload, expired: Callable[[], bool]) -> None:
        super().__init__(lambda: _framed(body), framed_size(body.size), expired)
        self.decoded_size = body.size


def announce_trailer(request: Any, **_: object) -> None:
    """Handler of botocore's `before-sign` event: set the headers of a TrailedBody, which are then signed."""
    if isinstance(request.data, TrailedBody):
        request.headers["Content-Encoding"] = "aws-chunked"
        request.headers["X-Amz-Trailer"] = _TRAILER
        request.headers["X-Amz-Decoded-Content-Length"] = str(request.data.decoded_size)
        request.context["checksum"] = {"request_algorithm": {"in": "trailer", "algorithm": "crc32c", "name": _TRAILER}}


def framed_size(size: int) -> int:
    """Number of bytes of `_framed` for a body of `size` bytes."""
    return len(_frame_head(size)) + size + len(_end(size, 0))


def _framed(body: Upload) -> Iterator[Buffer]:
    """The body as `aws-chunked`: one frame with all bytes, an empty frame, and the trailer.

    The AWS SDK for Go also sends a body of known length as one frame. The header of each further frame would be a
    separate packet, which costs as much as copying 256 KiB."""
    if body.size:
        yield _frame_head(body.size)
    given = 0
    for piece in body.open():
        given += len(piece)
        if given > body.size:
            break
        yield piece
    if given != body.size:
        raise ChecksumRefused(f"the source gave {given} bytes, but {body.size} were announced")
    yield _end(body.size, body.checksum())


def _frame_head(size: int) -> bytes:
    return b"%x\r\n" % size if size else b""


def _end(size: int, checksum: int) -> bytes:
    return (b"\r\n0\r\n" if size else b"0\r\n") + f"{_TRAILER}:{encoded_crc32c(checksum)}\r\n\r\n".encode()


class _Source:
    """An upload's pieces, cut at part borders."""

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def take(self, size: int) -> Iterator[memoryview]:
        while size:
            if not self._left:
                self._left = memoryview(next(self._pieces, b""))
                if not self._left:
                    return
            piece, self._left = self._left[:size], self._left[size:]
            size -= len(piece)
            yield piece

    def ended(self) -> bool:
        """Whether the source has ended. This requests the next piece."""
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        return not self._left


def put_object(
    client: Any,
    target: dict[str, str],
    key: str,
    body: Upload,
    extra: dict[str, str],
    expired: Callable[[], bool],
    part_bytes: int = PART_BYTES,
    condition: dict[str, str] | None = None,
) -> ObjectInfo:
    """Store `body` under `target` (Bucket, Key). `condition`: a condition on the existing object. Raises botocore's
    errors, those of `coldstore.object_store`, or those of the source."""
    condition = condition or {}
    try:
        if body.size <= part_bytes * SINGLE_PARTS:
            return _stored(_put_whole(client, body, expired, **target, **extra, **condition), key, body)
        return _put_parts(client, target, key, body, extra, expired, part_bytes, condition)
    except Exception as failure:
        _free_frames(failure)
        raise


def _free_frames(failure: BaseException | None) -> None:
    """Free the memory and files that a failure's traceback holds. botocore's errors form cycles with their tracebacks,
    so without this every attempt in an outage would hold them until Python's garbage collector runs."""
    while failure is not None:
        clear_frames(failure.__traceback__)
        failure = failure.__cause__ or failure.__context__


def encoded_crc32c(checksum: int) -> str:
    """The checksum as in S3's headers: base64 of four big-endian bytes."""
    return base64.b64encode(struct.pack(">I", checksum)).decode()


def decoded_crc32c(header: str | None) -> int | None:
    """The checksum of the complete object; None if the header has none. A composite checksum (`…-3`) is not that of the
    complete object.
    """
    if header is None or len(header) != 8:
        return None
    try:
        return int(struct.unpack(">I", base64.b64decode(header, validate=True))[0])
    except (ValueError, struct.error):
        return None


def _required(answer: dict[str, Any], name: str, key: str) -> str:
    """A field that every successful answer of a store has. Raises StoreUnavailable without it: the answer may not come
    from the store."""
    if not answer.get(name):
        raise StoreUnavailable(
            f"PUT {key}: the store reported success without an {name}; it is unknown whether the object was stored"
        )
    return str(answer[name])


def _stored(answer: dict[str, Any], key: str, body: Upload) -> ObjectInfo:
    etag, stored = _required(answer, "ETag", key), decoded_crc32c(answer.get("ChecksumCRC32C"))
    if stored is not None and stored != (sent := body.checksum()):
        raise ChecksumRefused(f"PUT {key}: stored with CRC32C {stored:08x}, sent with {sent:08x}")
    return ObjectInfo(key, body.size, etag, stored)


def _put_whole(client: Any, body: Upload, expired: Callable[[], bool], **parameters: Any) -> dict[str, Any]:
    if body.crc32c is None:
        framed = framed_size(body.size)
        return _send(client.put_object, TrailedBody(body, expired), ContentLength=framed, **parameters)
    checksum = encoded_crc32c(body.crc32c)
    source = SegmentBody(body.open, body.size, expired)
    return _send(client.put_object, source, ContentLength=body.size, ChecksumCRC32C=checksum, **parameters)


def _send(operation: Callable[..., dict[str, Any]], body: SegmentBody, **parameters: Any) -> dict[str, Any]:
    try:
        return operation(Body=body, **parameters)
    except (BotoCoreError, ClientError):
        if body.failure is not None:
            raise body.failure from None
        raise


def _put_parts(
    client: Any,
    target: dict[str, str],
    key: str,
    body: Upload,
    extra: dict[str, str],
    expired: Callable[[], bool],
    part_bytes: int,
    condition: dict[str, str],
) -> ObjectInfo:
    sizes = [min(part_bytes, body.size - at) for at in range(0, body.size, part_bytes)]
    if len(sizes) > PARTS_MAX:
        raise InvalidRequest(f"{target['Key']}: {body.size} bytes need more than {PARTS_MAX} parts")
    checksums, whole = _part_checksums(body, sizes)
    begun = client.create_multipart_upload(ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT", **target, **extra)
    upload = {**target, "UploadId": _required(begun, "UploadId", key)}
    try:
        source = _Source(body.open())
        parts = []
        for number, (size, checksum) in enumerate(zip(sizes, checksums, strict=True), start=1):
            part = SegmentBody(partial(iter, source.take(size)), size, expired)
            said = {"PartNumber": number, "ChecksumCRC32C": encoded_crc32c(checksum)}
            answer = _send(client.upload_part, part, ContentLength=size, **said, **upload)
            parts.append({**said, "ETag": _required(answer, "ETag", key)})
        answer = client.complete_multipart_upload(
            MultipartUpload={"Parts": parts},
            ChecksumCRC32C=encoded_crc32c(whole),
            ChecksumType="FULL_OBJECT",
            **condition,
            **upload,
        )
        return _stored(answer, key, body)
    except BaseException:
        # After a lost answer to Complete the object may exist. The abort then has no effect, and gc finds the object.
        # The bucket's lifecycle rule removes an upload that cannot be aborted now.
        with contextlib.suppress(BotoCoreError, ClientError):
            client.abort_multipart_upload(**upload)
        raise


def _part_checksums(body: Upload, sizes: list[int]) -> tuple[list[int], int]:
    """The checksum of each part, and that of the complete object."""
    source, checksums, whole = _Source(body.open()), [], 0
    for size in sizes:
        checksum = 0
        for piece in source.take(size):
            checksum = crc32c(piece, checksum)
            whole = crc32c(piece, whole)
        checksums.append(checksum)
    if not source.ended():
        raise ChecksumRefused(f"the source gave more than the {body.size} bytes that were announced")
    if whole != (announced := body.checksum()):
        raise ChecksumRefused(f"the source has CRC32C {whole:08x}, but {announced:08x} was announced; read it again")
    return checksums, whole
