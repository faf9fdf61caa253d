"""Segments of keyed batches on any disk, and a whole pass of a cleaner's engine over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotstore.cleaning.engine import CleanedSegment, CleanerEngine
from hotstore.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from logformat.compaction.rules import CleanRules
from logformat.record_batch import Codec, walk
from logformat.records import Record, encode_batch, iter_records
from seams.files.disk import Disk, File

RULES = CleanRules(now_ms=1_000_000, delete_retention_ms=60_000)
BUFFER_BYTES = 1 << 20
INTERVAL_BYTES = 512


def keyed_batch(
    base_offset: int, keys: Sequence[bytes], *, size: int = 50, codec: Codec = Codec.NONE, leader_epoch: int = 0
) -> bytes:
    """A stored batch with one record a key, timestamps as offsets."""
    records = [Record(at, at, key, b"v%d" % at + b"x" * size) for at, key in enumerate(keys, base_offset)]
    return encode_batch(records, codec=codec, leader_epoch=leader_epoch)


def keyed_batches(count: int, *, base_offset: int = 0, keys: int = 7, records: int = 5, size: int = 50) -> list[bytes]:
    """`count` batches of `records` whose keys come round after `keys` records; every fourth is lz4."""
    made = []
    for number in range(count):
        first = base_offset + number * records
        names = [b"key-%d" % (offset % keys) for offset in range(first, first + records)]
        made.append(keyed_batch(first, names, size=size, codec=Codec.LZ4 if number % 4 == 3 else Codec.NONE))
    return made


def put_segment(disk: Disk, path: str, batches: Sequence[bytes]) -> File:
    file = disk.open(path, write=True, create=True)
    file.write_at(0, batches)
    return file


def open_targets(disk: Disk, directory: str, base_offset: int) -> tuple[File, File, File]:
    """Fresh files of a cleaned segment: log, offset index, time index."""
    first, second, third = (
        disk.open(f"{directory}/{offset_file(base_offset, suffix)}.cleaned", write=True, create=True)
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)
    )
    return first, second, third


def content(file: File) -> bytes:
    return file.read_at(0, file.size())


@dataclass(frozen=True)
class Cleaned:
    """What a pass wrote: results, and the bytes of the three files, a segment each."""

    segments: tuple[CleanedSegment, ...]
    files: tuple[tuple[bytes, bytes, bytes], ...]
    mapped_end: int

    @property
    def log(self) -> bytes:
        return b"".join(files[0] for files in self.files)


def map_all(engine: CleanerEngine, sources: Sequence[File], chunk: int) -> int:
    """Map until the end or until the map is full; the end offset."""
    end_offset = 0
    for source in sources:
        position, size = 0, source.size()
        while position < size:
            mapped = engine.map(source, position, min(chunk, size - position))
            position, end_offset = position + mapped.taken_bytes, mapped.end_offset
            if mapped.is_full:
                return end_offset
    return end_offset


def clean_all(engine: CleanerEngine, sources: Sequence[File], chunk: int) -> None:
    for source in sources:
        position, size = 0, source.size()
        while position < size:
            position += engine.clean(source, position, min(chunk, size - position))


def whole_pass(
    engine: CleanerEngine,
    disk: Disk,
    directory: str,
    groups: Sequence[tuple[int, Sequence[File]]],
    *,
    chunk: int = 1000,
    buffer_bytes: int = BUFFER_BYTES,
    rules: CleanRules = RULES,
    on_step: Callable[[str], None] = lambda _: None,
) -> Cleaned:
    """Clean groups of segments, (base offset, files), each into one. `on_step` is called before each kind of step."""
    on_step("begin")
    engine.begin(buffer_bytes, rules)
    on_step("map")
    mapped_end = map_all(engine, [file for _, files in groups for file in files], chunk)
    segments, written = [], []
    for base_offset, sources in groups:
        log, offset_index, time_index = open_targets(disk, directory, base_offset)
        on_step("begin_segment")
        engine.begin_segment(base_offset, INTERVAL_BYTES, log, offset_index, time_index)
        on_step("clean")
        clean_all(engine, sources, chunk)
        on_step("finish_segment")
        segments.append(engine.finish_segment())
        written.append((content(log), content(offset_index), content(time_index)))
    on_step("end")
    engine.end()
    return Cleaned(tuple(segments), tuple(written), mapped_end)


def values_of(log: bytes) -> dict[bytes, bytes | None]:
    """The last value of each key, as a reader from the start sees it."""
    found: dict[bytes, bytes | None] = {}
    for at, header in walk(log):
        if not header.is_control:
            found.update((record.key, record.value) for record in iter_records(log, at) if record.key is not None)
    return found
