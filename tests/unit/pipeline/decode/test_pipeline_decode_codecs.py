"""Fast decompression: the same bytes, the same refusals as `logformat.compression`, within the same bounds."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from logformat.compression import DecompressedTooLarge, compress, decompress
from logformat.record_batch import Codec, CorruptBatch
from thermocline.pipeline.decode import codecs
from thermocline.pipeline.decode.codecs import Decompressor

CAP = 128 << 20
View = Callable[[bytes], memoryview]
packed = [codec for codec in Codec if codec is not Codec.NONE]
texts = (
    st.binary(max_size=300) | st.integers(0, 300_000).map(bytes) | st.integers(1, 9000).map(lambda n: b"event %d" * n)
)
slowly = settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))


# A reader's bytes come as Arrow buffers, whose memoryviews hold *signed* bytes: what looks at one must not mind.
views = st.sampled_from([memoryview, lambda data: memoryview(pa.py_buffer(data))])


def outcome(call: object, *arguments: object) -> bytes | str:
    try:
        return bytes(memoryview(call(*arguments)))  # type: ignore[operator]
    except CorruptBatch as error:
        return str(error)


@slowly
@given(st.sampled_from(packed), st.lists(texts, min_size=1, max_size=4), views)
def test_what_was_compressed_comes_back(codec: Codec, pieces: list[bytes], view: View) -> None:
    """Batch after batch through one decompressor, whose guesses learn from the batches before."""
    decompressor = Decompressor()
    for piece in pieces:
        assert bytes(memoryview(decompressor.decompress(codec, view(compress(codec, piece)), CAP))) == piece
        assert decompress(codec, view(compress(codec, piece)), CAP) == piece


@slowly
@given(
    st.sampled_from(packed),
    texts,
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=3),
    st.integers(0, 2**20) | st.none(),
    st.binary(max_size=9),
    st.sampled_from([CAP, 100]),
    views,
)
@example(Codec.GZIP, b"event", [(2**20 - 1, 7)], None, b"", CAP, memoryview)
def test_damage_is_judged_alike(
    codec: Codec, text: bytes, edits: list[tuple[int, int]], cut: int | None, tail: bytes, cap: int, view: View
) -> None:
    """Flipped, cut, followed by other bytes, above the cap: the fast way and the careful one agree to the letter."""
    data = bytearray(compress(codec, text))
    for place, byte in edits:
        data[place % len(data)] = byte
    data = data[: cut % (len(data) + 1)] if cut is not None else data
    data += tail
    fast = outcome(Decompressor().decompress, codec, view(bytes(data)), cap)
    assert fast == outcome(decompress, codec, bytes(data), cap)
    assert fast == outcome(decompress, codec, view(bytes(data)), cap)


@pytest.mark.parametrize("codec", packed)
def test_the_fast_way_is_taken(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary batch never needs the careful one, nor does what other clients write: sizes, raw snappy."""
    monkeypatch.delattr(codecs, "decompress")
    text = b"".join(b"event %d, " % (n * 7919 % 100_003) for n in range(1000))
    others = {
        Codec.GZIP: gzip.compress(text),
        Codec.SNAPPY: bytes(cramjam.snappy.compress_raw(text)),
        Codec.LZ4: lz4.frame.compress(text, content_checksum=True, store_size=True),
        Codec.ZSTD: zstandard.ZstdCompressor().compress(text),
    }
    decompressor = Decompressor()
    for data in (compress(codec, text), others[codec]):
        for view in (memoryview(data), memoryview(pa.py_buffer(data))):
            assert bytes(memoryview(decompressor.decompress(codec, view, CAP))) == text


@pytest.mark.parametrize("codec", packed)
def test_frames_in_a_row_are_read_as_the_careful_way_reads_them(codec: Codec) -> None:
    """Concatenated members or frames, which some producers write."""
    data = compress(codec, b"one") + compress(codec, b"two")
    assert outcome(Decompressor().decompress, codec, memoryview(data), CAP) == outcome(decompress, codec, data, CAP)


@pytest.mark.parametrize("bit", [0x20, 0x40, 0x80])
def test_fuzz_a_gzip_member_with_a_reserved_flag_is_refused(bit: int) -> None:
    """Found by the fuzz target decompress: isal reads on where zlib, and so the broker, calls the batch corrupt."""
    data = bytearray(compress(Codec.GZIP, b"event"))
    data[3] |= bit
    with pytest.raises(CorruptBatch):
        Decompressor().decompress(Codec.GZIP, memoryview(data), CAP)


def test_a_snappy_block_of_an_arrow_buffer_is_not_allocated_as_it_claims() -> None:
    """A preamble's first byte is 128 or more where it goes on: read as a negative number it ended there, a claim of
    4 GiB was taken for one of 127 bytes, and the library then allocated what it read itself."""
    bomb = b"\xff\xff\xff\xff\x0f" + bytes(100)
    for call in (Decompressor().decompress, decompress):
        with pytest.raises(DecompressedTooLarge, match="claims 4294967295 bytes"):
            call(Codec.SNAPPY, memoryview(pa.py_buffer(bomb)), CAP)


@pytest.mark.parametrize("size", [150_000, 300_000, 1 << 20])
def test_zstd_blocks_of_an_arrow_buffer_are_stepped_over(size: int) -> None:
    """Frames of several blocks: of a signed view the bytes of a block's size made a step backwards, out of the data or
    for ever (ProducerPerformance with a payload file, batch.size 16 384; librdkafka with large batches)."""
    for seed in range(10):
        text = random.Random(seed).randbytes(size // 2 + 1237 * seed).hex().encode()
        frame = zstandard.ZstdCompressor(write_content_size=False).compress(text)
        assert bytes(Decompressor().decompress(Codec.ZSTD, memoryview(pa.py_buffer(frame)), CAP)) == text


def test_a_declared_size_is_not_allocated() -> None:
    """Frames of a few bytes that declare 100 GiB: refused, for a few MiB of memory."""
    lying = zstandard.ZstdCompressor(write_content_size=True).compressobj(size=100 << 30)
    zstd = lying.compress(b"x") + lying.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert zstandard.frame_content_size(zstd) == 100 << 30
    lz4_frame = bytearray(lz4.frame.compress(b"x" * 100, store_size=True))
    lz4_frame[6:14] = (100 << 30).to_bytes(8, "little")
    tracemalloc.start()
    for codec, data in ((Codec.ZSTD, zstd), (Codec.LZ4, bytes(lz4_frame))):
        with pytest.raises(CorruptBatch):
            Decompressor().decompress(codec, memoryview(data), 32 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
