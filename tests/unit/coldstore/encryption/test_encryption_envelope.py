"""The format of encrypted objects: sizes, ranges, and that no changed byte is taken for what was written."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstore.encryption.envelope import (
    CHUNK_BYTES,
    STORED_CHUNK_BYTES,
    describe,
    plain_size,
    read_trailer,
    rewrapped,
    stored_range,
    stored_size,
    stored_tail,
)
from coldstore.encryption.keys import KeyRing, WrappingKey
from coldstore.encryption.marker import TRAILER_BYTES, KeyRefused, is_encrypted
from coldstore.encryption.sealed_body import SealedBody
from coldstore.object_store import ChecksumRefused, Upload
from logformat.errors import Corrupt, InvalidRequest
from logformat.values import NewerFormat
from tests.support.store.keys import ring_of, secret_of
from tests.support.store.memory_store import trailed, upload_of

RING = ring_of("a")
NAME = "topics/t/0/segments/s.log"
_SIZES = (0, 1, 15, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 17)


def plain_of(size: int, seed: int = 1) -> bytes:
    return (bytes((i * 31 + seed) % 251 for i in range(min(size, 10_007))) * (size // 10_007 + 1))[:size]


def sealed(plain: bytes, name: str = NAME, key: bytes = b"k" * 32, ring: KeyRing = RING) -> bytes:
    assert ring.active is not None
    body = SealedBody(name, upload_of(plain), key, ring.active, b"n" * 12)
    return b"".join(map(bytes, body.upload().open()))


def opened(stored: bytes, name: str = NAME, ring: KeyRing = RING) -> bytes:
    found = read_trailer(name, stored, len(stored), ring)
    plain = bytes(found.key.open(0, stored[:-TRAILER_BYTES], found.size, name))
    assert crc32c(plain) == found.crc32c and crc32c(stored[:-TRAILER_BYTES]) == found.body_crc32c
    return plain


@pytest.mark.parametrize("size", _SIZES)
def test_what_was_sealed_is_opened(size: int) -> None:
    """Any size, borders of chunks included; the size in the store follows from it, and the other way round."""
    stored = sealed(plain_of(size))
    assert opened(stored) == plain_of(size)
    assert (len(stored), plain_size(len(stored))) == (stored_size(size), size)
    assert is_encrypted(stored) and not is_encrypted(plain_of(500))


@given(st.integers(0, 1 << 40))
def test_sizes_follow_from_one_another(size: int) -> None:
    """Both ways, and a size that no object has is none."""
    assert plain_size(stored_size(size)) == size
    found = plain_size(size)
    assert found is None or stored_size(found) == size


@settings(max_examples=200)
@given(st.integers(1, 4 * CHUNK_BYTES), st.data())
def test_every_range_lies_in_its_chunks(size: int, data: st.DataObject) -> None:
    """The stored range is whole chunks that cover the plaintext asked for; so does the stored tail."""
    start = data.draw(st.integers(0, size - 1))
    length = data.draw(st.integers(1, size - start))
    first, position, stored = stored_range(start, length, size)
    end, body = position + stored, stored_size(size) - TRAILER_BYTES
    assert position == first * STORED_CHUNK_BYTES and first * CHUNK_BYTES <= start
    assert end == body or (end % STORED_CHUNK_BYTES == 0 and end // STORED_CHUNK_BYTES * CHUNK_BYTES >= start + length)
    tail_at = stored_range(size - length, length, size)[1]
    assert stored_tail(length) >= stored_size(size) - tail_at


@settings(max_examples=300)
@given(st.sampled_from(_SIZES), st.booleans(), st.data())
def test_any_flipped_bit_is_refused(size: int, near_end: bool, data: st.DataObject) -> None:
    """Wherever it lies, in chunks, tags or trailer, it is damage: no other key, no newer format, no plain object."""
    stored = bytearray(sealed(plain_of(size)))
    at = data.draw(st.integers(len(stored) - TRAILER_BYTES if near_end else 0, len(stored) - 1))
    stored[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corrupt):
        opened(bytes(stored))
    if at >= len(stored) - TRAILER_BYTES:
        with pytest.raises(Corrupt):
            describe(NAME, bytes(stored), len(stored), ring_of("a", "b", accepts_plain=True))


@settings(max_examples=200)
@given(st.sampled_from(_SIZES[1:]), st.data())
def test_any_cut_is_refused(size: int, data: st.DataObject) -> None:
    """A piece left out anywhere: at the end, before the trailer, whole chunks."""
    stored = sealed(plain_of(size))
    start = data.draw(st.integers(0, len(stored) - 1))
    end = data.draw(st.integers(start + 1, len(stored)))
    with pytest.raises(Corrupt):
        opened(stored[:start] + stored[end:])


def test_whole_chunks_are_not_cut_swapped_or_repeated() -> None:
    """Each of them has a right tag, only not at that place."""
    stored = sealed(plain_of(3 * CHUNK_BYTES))
    trailer = stored[-TRAILER_BYTES:]
    one, two, three = (stored[n * STORED_CHUNK_BYTES : (n + 1) * STORED_CHUNK_BYTES] for n in range(3))
    for chunks in ((two, one, three), (one, one, three), (one, two), (one, two, three, three), (one, three, two)):
        with pytest.raises(Corrupt):
            opened(b"".join(chunks) + trailer)
    found = read_trailer(NAME, stored, len(stored), RING)
    with pytest.raises(Corrupt):  # the second chunk as the last one
        found.key.open(0, one + two, 2 * CHUNK_BYTES, NAME)


def test_another_objects_bytes_are_refused() -> None:
    """Its chunks have another key, its trailer another name: also if sizes and the key that wrapped them are equal."""
    mine, other = sealed(plain_of(100), key=b"1" * 32), sealed(plain_of(100, 7), "topics/t/0/segments/o.log", b"2" * 32)
    body, trailer = slice(None, -TRAILER_BYTES), slice(-TRAILER_BYTES, None)
    for forged in (other, other[body] + mine[trailer], mine[body] + other[trailer]):
        with pytest.raises(Corrupt):
            opened(forged)


def test_a_missing_key_is_named_and_a_wrong_one_told_from_damage() -> None:
    """The message has the key's id; nothing printed has its bytes."""
    stored = sealed(plain_of(100))
    with pytest.raises(KeyRefused, match="under key 'a', which is not in"):
        opened(stored, ring=ring_of("b"))
    wrong = KeyRing([WrappingKey("a", secret_of("another"))], "a")
    with pytest.raises(KeyRefused, match=r"under a key with the id 'a', but .* another key under that id"):
        opened(stored, ring=wrong)
    assert repr(RING.active) == "WrappingKey(a)"


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program never guesses."""
    with monkeypatch.context() as newer:
        newer.setattr("coldstore.encryption.envelope.VERSION", 2)
        stored = sealed(plain_of(100))
    with pytest.raises(NewerFormat):
        opened(stored)


@pytest.mark.parametrize("size", _SIZES)
def test_a_rewrapped_object_keeps_its_body(size: int) -> None:
    """Only the trailer changes, and the new key alone opens it."""
    stored, both = sealed(plain_of(size)), ring_of("b", "a")
    assert both.active is not None
    anew = stored[:-TRAILER_BYTES] + rewrapped(NAME, stored, len(stored), both, both.active, b"m" * 12)
    assert opened(anew, ring=ring_of("b")) == plain_of(size)
    with pytest.raises(KeyRefused):
        opened(anew)


@settings(max_examples=50)
@given(st.integers(0, 3 * CHUNK_BYTES), st.integers(1, 2 * CHUNK_BYTES))
def test_pieces_of_any_size_make_the_same_object(size: int, piece: int) -> None:
    """Sources give pieces that end anywhere, in one buffer."""
    assert RING.active is not None
    body = SealedBody(NAME, trailed(plain_of(size), piece=piece), b"k" * 32, RING.active, b"n" * 12)
    upload = body.upload()
    stored = b"".join(map(bytes, upload.open()))
    assert stored == sealed(plain_of(size)) and upload.checksum() == crc32c(stored) and upload.size == len(stored)
    assert (body.sealed.size, body.sealed.crc32c) == (size, crc32c(plain_of(size)))


def test_a_source_that_changed_is_refused_before_its_bytes_are_sent() -> None:
    """A nonce is used for one plaintext only: the second pass stops at the first chunk that differs."""
    assert RING.active is not None
    passes = iter((plain_of(20 * CHUNK_BYTES), plain_of(20 * CHUNK_BYTES, 3)))
    body = Upload(20 * CHUNK_BYTES, crc32c(plain_of(20 * CHUNK_BYTES)), lambda: iter((next(passes),)))
    upload = SealedBody(NAME, body, b"k" * 32, RING.active, b"n" * 12).checked_upload()
    with pytest.raises(ChecksumRefused, match="changed while it was sent"):
        next(upload.open())


def test_a_ring_that_contradicts_itself_is_refused() -> None:
    """An active key that is not there, a key twice, none active where plain objects are refused, a bad id or length."""
    with pytest.raises(InvalidRequest, match="active key 'b' is not among"):
        ring_of("a", active="b")
    with pytest.raises(InvalidRequest, match="twice"):
        ring_of("a", "a")
    with pytest.raises(InvalidRequest, match="new objects are not encrypted"):
        ring_of("a", active=None)
    assert ring_of("a", active=None, accepts_plain=True).active is None
    for key_id in ("", "ü", "a b", "x" * 33, "-a"):
        with pytest.raises(InvalidRequest):
            WrappingKey(key_id, bytes(32))
    with pytest.raises(InvalidRequest):
        WrappingKey("a", bytes(16))


def test_the_trailer_is_as_its_page_says() -> None:
    """128 bytes; the fields in their places (docs/formats/encryption.md)."""
    stored = sealed(plain_of(100))
    trailer = stored[-TRAILER_BYTES:]
    assert len(trailer) == 128 and trailer[:4] == bytes((1, 16, 0, 0))
    assert trailer[4:12] == WrappingKey("a", secret_of("a")).check
    assert trailer[12:44] == b"a".ljust(32, b"\0") and int.from_bytes(trailer[44:52], "big") == 100
    assert int.from_bytes(trailer[52:56], "big") == crc32c(stored[:-TRAILER_BYTES])
    assert trailer[56:68] == b"n" * 12 and trailer[-8:] == b"THERMENC"
