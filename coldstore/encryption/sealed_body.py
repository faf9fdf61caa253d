"""The encrypted body of an upload.

The thread that sends the source's pieces encrypts them. Before the trailer is sent, the plaintext's size and CRC32C are
checked, as a store would check them. A source may be read again (for a multipart upload or a redirect). Then every
chunk must have the same tag as before. A changed source is refused before bytes under a used nonce leave the process.
The memory is one piece of 1 MiB. All calls block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from coldstore.encryption.envelope import (
    CHUNK_BYTES,
    STORED_CHUNK_BYTES,
    DataKey,
    Sealed,
    chunk_count,
    make_trailer,
    stored_size,
)
from coldstore.encryption.keys import TAG_BYTES, WrappingKey
from coldstore.object_store import ChecksumRefused, Upload
from seams.files.disk import Buffer

_CHUNKS_AT_ONCE: Final = 16


class SealedBody:
    """`body`, encrypted for the object `name` under `data_key`. `wrapping` wraps the data key with `nonce`. Data key
    and nonce must not be used again."""

    def __init__(self, name: str, body: Upload, data_key: bytes, wrapping: WrappingKey, nonce: bytes) -> None:
        self._name = name
        self._body = body
        self._secret = data_key
        self._key = DataKey(data_key)
        self._wrapping = wrapping
        self._nonce = nonce
        self._tags: list[bytes] = []
        self._stored_crc: int | None = None
        self._sealed: Sealed | None = None

    def upload(self) -> Upload:
        """The upload. Its checksum is known after the last byte."""
        return Upload(stored_size(self._body.size), None, self._pieces, self._checksum)

    def checked_upload(self) -> Upload:
        """The upload, with its checksum known before the first byte. To compute the checksum, the source is read and
        encrypted once more."""
        for _ in self._pieces():
            pass
        return Upload(stored_size(self._body.size), self._checksum(), self._pieces)

    @property
    def sealed(self) -> Sealed:
        """The object's trailer. It is known after the last byte of the upload was read."""
        assert self._sealed is not None, "asked before the last byte"
        return self._sealed

    def _checksum(self) -> int:
        assert self._stored_crc is not None, "asked before the last byte"
        return self._stored_crc

    def _pieces(self) -> Iterator[Buffer]:
        """The encrypted pieces. Raises ChecksumRefused if the source differs from its announced size or checksum, or
        from its first read. Also raises errors of the source.
        """
        size, last = self._body.size, chunk_count(self._body.size) - 1
        out = memoryview(bytearray(min(_CHUNKS_AT_ONCE, last + 1) * STORED_CHUNK_BYTES))
        filled = plain_crc = stored_crc = 0
        for index, chunk in enumerate(self._chunks()):
            plain_crc = crc32c(chunk, plain_crc)
            filled += self._key.seal(index, chunk, out[filled:], last=index == last)
            self._check_tag(index, bytes(out[filled - TAG_BYTES : filled]))
            if filled + STORED_CHUNK_BYTES > len(out):
                stored_crc = crc32c(out[:filled], stored_crc)
                yield out[:filled]
                filled = 0
        if filled:
            stored_crc = crc32c(out[:filled], stored_crc)
            yield out[:filled]
        if plain_crc != (announced := self._body.checksum()):
            raise ChecksumRefused(
                f"PUT {self._name}: the bytes sent have CRC32C {plain_crc:08x}, the source announced "
                f"{announced:08x}; read it again"
            )
        trailer = make_trailer(self._name, self._secret, self._wrapping, self._nonce, size, stored_crc, plain_crc)
        self._stored_crc = crc32c(trailer, stored_crc)
        self._sealed = Sealed(self._key, self._wrapping.key_id, size, stored_crc, plain_crc, trailer)
        yield trailer

    def _check_tag(self, index: int, tag: bytes) -> None:
        if index == len(self._tags):
            self._tags.append(tag)
        elif self._tags[index] != tag:
            raise ChecksumRefused(f"PUT {self._name}: the source changed while it was sent; read it again")

    def _chunks(self) -> Iterator[Buffer]:
        """The source in chunks of exactly `CHUNK_BYTES`; only the last chunk may be shorter. An empty source gives one
        empty chunk."""
        size, left = self._body.size, self._body.size
        carry = bytearray()
        for piece in self._body.open():
            view = memoryview(piece)
            left -= len(view)
            if left < 0:
                break
            if carry:
                taken = min(CHUNK_BYTES - len(carry), len(view))
                carry += view[:taken]
                view = view[taken:]
                if len(carry) == CHUNK_BYTES:
                    yield carry
                    carry = bytearray()
            whole = len(view) - len(view) % CHUNK_BYTES
            for at in range(0, whole, CHUNK_BYTES):
                yield view[at : at + CHUNK_BYTES]
            carry += view[whole:]
        if left:
            raise ChecksumRefused(f"PUT {self._name}: the source gave {size - left} of {size} bytes")
        if carry or not size:
            yield carry
