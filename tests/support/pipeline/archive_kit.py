"""Archives for tests: topics of JSON in a bucket, tables in a SQLite catalog beside it, and what is in them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from logformat.records import Record, encode_batch
from tests.support.pipeline.history_bucket import T0, HistoryBucket
from thermocline.pipeline.jobs.archive import ArchiveSummary, archive
from thermocline.pipeline.jobs.iceberg_catalog import CatalogConfig, catalog_config, open_catalog
from thermocline.pipeline.jobs.values import ValueSpec

JSON = ValueSpec("json", "user string, amount double")


def json_batch(base: int, count: int, *, bad_every: int = 7) -> bytes:
    """Offsets that are 3 modulo `bad_every` hold no JSON."""
    return encode_batch(
        [
            Record(n, T0 + n, b"k%d" % n, b"oops" if n % bad_every == 3 else b'{"user":"u%d","amount":%d.5}' % (n, n))
            for n in range(base, base + count)
        ],
        base_offset=base,
        leader_epoch=1,
    )


def is_bad(offset: int, bad_every: int = 7) -> bool:
    return offset % bad_every == 3


def json_topic(bucket: HistoryBucket, name: str, partitions: int = 2, segments: int = 3, records: int = 50) -> None:
    """`segments` objects a partition, each of two batches of `records`."""
    bucket.topic(name, partitions)
    for partition in range(partitions):
        for number in range(segments):
            base = number * 2 * records
            made = [json_batch(base, records), json_batch(base + records, records)]
            bucket.append(name, partition, made)


def lake(place: Path) -> CatalogConfig:
    """A SQLite catalog in a warehouse directory."""
    return catalog_config(warehouse=f"file://{place}/lake")


def rows(catalog: CatalogConfig, table: str) -> pa.Table:
    """Everything in the table, by its own snapshot."""
    return open_catalog(catalog).load_table(table).scan().to_arrow()


def places(found: pa.Table) -> list[tuple[int, int]]:
    """(partition, offset) of every row, sorted, duplicates and all."""
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def data_files(place: Path) -> set[str]:
    """Parquet files below the warehouse, named by a table or not."""
    return {str(found) for found in (place / "lake").rglob("*.parquet")}


def named_files(catalog: CatalogConfig, *tables: str) -> set[str]:
    """Parquet files that the tables' current snapshots name."""
    opened = open_catalog(catalog)
    return {
        task.file.file_path.removeprefix("file://")
        for name in tables
        for task in opened.load_table(name).scan().plan_files()
    }


def run(bucket: HistoryBucket, catalog: object, topic: str, table: str, **options: object) -> ArchiveSummary:
    """An archive in this process."""
    return archive(None, bucket.url, topic, table, catalog=catalog, **options)  # type: ignore[arg-type]
