"""`bucket ls`, `bucket manifest`, `bucket dump`: print a bucket's content.

The JSON names of `ls` are a contract. `dump --log` writes only the log's bytes, and checks each chunk before it writes
it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import msgspec

from coldstore.inspection.bucket_inspection import PartitionView
from coldstore.keys import MetadataKey, RootKey, SegmentKey, SnapshotKey, parse_key
from coldstore.manifest.manifest import RemoteSegment
from coldstore.segments.segment_object import SegmentFooter
from coldstore.segments.segment_reader import chunk_ref, fetch_chunk, fetch_footer
from logformat.record_batch import whole_batches_end
from thermocline.cli.bucket.batch_lines import BatchLines
from thermocline.cli.bucket.reading import Bucket, with_bucket
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import Cell, json_line, note, table
from thermocline.units import show_size

_GET_BYTES = 4 << 20


def ls(url: str, topic: str | None, partition: int | None, *, as_json: bool) -> int:
    """One line for every segment in a manifest, in offset order."""

    async def read(bucket: Bucket) -> int:
        rows: list[tuple[str, ...]] = []
        async for view in bucket.views(topic, partition):
            for segment in view.live:
                cells = segment_cells(view, segment)
                if as_json:
                    print(json_line(cells))
                else:
                    rows.append(_row(cells))
        if not as_json:
            if not rows:
                if not await bucket.is_ours():
                    raise CommandFailed(
                        f"{bucket.store.url} holds no objects of Thermocline; check the bucket's name and the prefix"
                    )
                note(f"{bucket.store.url}: no manifest names a segment" + ("" if topic is None else f" of {topic}"))
            header = ("topic", "part", "base", "end", "records", "log", "key")
            print(table(header, rows, right=("part", "base", "end", "records", "log")))
        return Exit.DONE

    return with_bucket(url, read)


def segment_cells(view: PartitionView, segment: RemoteSegment) -> dict[str, Cell]:
    """The contract's fields, in order. `end_offset` is exclusive."""
    return {
        "topic": view.manifest.topic,
        "topic_id": str(view.manifest.topic_id),
        "partition": view.manifest.partition,
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "leader_epoch": segment.leader_epoch,
        "log_bytes": segment.log_bytes,
        "object_bytes": segment.object_bytes,
        "records": segment.records,
        "min_timestamp_ms": segment.min_timestamp_ms,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "crc32c": segment.crc32c,
        "key": str(view.key(segment)),
    }


def _row(cells: dict[str, Cell]) -> tuple[str, ...]:
    names = ("topic", "partition", "base_offset", "end_offset", "records")
    log_bytes = cells["log_bytes"]
    assert isinstance(log_bytes, int)
    return (*(str(cells[name]) for name in names), show_size(log_bytes), str(cells["key"]))


def manifest(url: str, topic: str, partition: int, *, as_json: bool) -> int:
    """Print the manifest: as stored if `as_json`, otherwise its values and segments."""

    async def read(bucket: Bucket) -> int:
        view = await bucket.one_view(topic, partition)
        found = view.manifest
        if as_json:
            print(msgspec.json.encode(found).decode())
            return Exit.DONE
        for name in (
            "topic", "topic_id", "partition", "leader_epoch", "log_start_offset", "deletion_cursor",
            "remote_end_offset", "reserved_end_offset",
        ):  # fmt: skip
            print(f"{name:20} {getattr(found, name)}")
        for side in ("added", "removed", "live"):
            totals = getattr(found, side)
            print(f"{side:20} {totals.segments} segments, {totals.records} records, {totals.log_bytes} log bytes")
        for name, value in sorted(found.configs.items()):
            print(f"{'config':20} {name}={value}")
        for first, end in found.gaps:
            print(f"{'gap':20} [{first}, {end})")
        if found.snapshot is not None:
            print(f"{'snapshot':20} up to {found.snapshot.end_offset}, {found.snapshot.length} bytes")
        print(f"{'pages':20} {len(view.page_sizes)}, {len(found.tail)} segments in the root itself")
        rows = [_row(segment_cells(view, segment))[2:] for segment in view.live]
        print(table(("base", "end", "records", "log", "key"), rows, right=("base", "end", "records", "log")))
        return Exit.DONE

    return with_bucket(url, read)


def dump(url: str, text: str, what: str) -> int:
    """Print one object: a segment in the requested form, a root or metadata page as JSON, a snapshot as batches."""
    key = parse_key(text)

    async def read(bucket: Bucket) -> int:
        if isinstance(key, RootKey | MetadataKey):
            got = await bucket.store.get(text)
            print(msgspec.json.format(got.data, indent=2).decode())
        elif isinstance(key, SegmentKey):
            await _dump_segment(bucket, key, what)
        elif isinstance(key, SnapshotKey) and what != "footer":
            await _dump_log(_object_bytes(bucket, text), what)
        else:
            raise CommandFailed(
                f"{text} is not an object that can be dumped{' with --' + what if key else ''}; give a key as "
                "`thermocline bucket ls` prints it",
                Exit.USAGE,
            )
        return Exit.DONE

    return with_bucket(url, read)


async def _dump_segment(bucket: Bucket, key: SegmentKey, what: str) -> None:
    size = (await bucket.store.head(str(key))).size
    footer = await fetch_footer(bucket.store, key, size)
    if what == "footer":
        _print_footer(footer)
    else:
        await _dump_log(_log_bytes(bucket, key, footer), what)


async def _log_bytes(bucket: Bucket, key: SegmentKey, footer: SegmentFooter) -> AsyncIterator[bytes]:
    for index in range(len(footer.chunk_crcs)):
        yield await fetch_chunk(bucket.store, chunk_ref(footer, key, index))


async def _object_bytes(bucket: Bucket, key: str) -> AsyncIterator[bytes]:
    size = (await bucket.store.head(key)).size
    for start in range(0, size, _GET_BYTES):
        yield (await bucket.store.get(key, start, min(_GET_BYTES, size - start))).data


async def _dump_log(pieces: AsyncIterator[bytes], what: str) -> None:
    if what == "log":
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    lines = BatchLines(records=what == "records", as_json=False)
    rest = b""
    async for piece in pieces:
        rest += piece
        end = whole_batches_end(rest)
        for line in lines.of(memoryview(rest)[:end]):
            print(line)
        rest = rest[end:]
    for line in lines.of(rest):  # raises CorruptBatch for a last batch that is cut short
        print(line)


def _print_footer(footer: SegmentFooter) -> None:
    statistics = footer.statistics
    for name in statistics.__struct_fields__:
        print(f"{name:20} {getattr(statistics, name)}")
    print(f"{'object_bytes':20} {footer.object_bytes}")
    print(f"{'crc32c':20} {footer.crc32c}")
    print(f"{'chunks':20} {len(footer.chunk_crcs)} of {footer.chunk_bytes} bytes")
    print(f"{'offset_index':20} {len(footer.offset_index)} entries")
    print(f"{'time_index':20} {len(footer.time_index)} entries")
    print(f"{'lineage':20} {' '.join(f'{epoch}@{start}' for epoch, start in footer.lineage.entries)}")
    print(f"{'producers':20} {len(footer.producer_state().producers)}")
    for transaction in footer.transactions:
        print(f"{'transaction':20} {transaction}")
