"""The demo's Spark act: history from the bucket alone, then an Iceberg table that DuckDB reads.

Expected sums are computed while Spark starts. Without the [spark] extra the act is left out, and the table says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from thermocline.demo.payload import OFFSET_WEIGHT, RECORDS, TOPIC, VALUE_BYTES, Failed, Payload, Sums
from thermocline.demo.picture import Picture
from thermocline.extras import install_command, missing

TABLE = "demo.events"
Row = tuple[str, str]


def perform(root: Path, payload: Payload, picture: Picture) -> list[Row]:
    """Run the whole act; returns rows for the table. Needs only `root / "bucket"`. Raises Failed."""
    if absent := missing("pyspark", "numpy", "pyiceberg"):
        return [("replayed by Spark", f"left out: no {', '.join(absent)}; {install_command('spark')}")]
    picture.say(
        "starting Spark: Java, then its Python workers; on a new machine also kernels to compile, once (half a minute)"
    )
    arguments = [f"file://{root / 'bucket'}", TOPIC, f"file://{root / 'lake'}", TABLE, str(OFFSET_WEIGHT)]
    command = [sys.executable, "-m", "thermocline.demo.spark_replay", *arguments]
    with (root / "spark.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        expected = payload.sums()
        _started(process.stdout, picture)
        return [_replayed(process.stdout, expected, picture), *_archived(root, process, expected, picture)]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _started(output: IO[str], picture: Picture) -> None:
    """Wait for Spark's start. It is timed as two separate acts, so that it does not count as reading."""
    _read_result(output, "java")
    picture.act("Spark's first start: Java, once a session")
    _read_result(output, "workers")
    picture.act("Spark's first start: its Python workers, once a session")
    picture.say("Spark is up; reading the bucket, no broker anywhere")


def _replayed(output: IO[str], expected: list[Sums], picture: Picture) -> Row:
    replay = _read_result(output, "replay")
    wanted = [[partition, *sums[:4]] for partition, sums in enumerate(expected)]
    if replay["sums"] != wanted:
        raise Failed(f"Spark saw {replay['sums']}, produced were {wanted}")
    picture.act("replayed from the bucket by Spark, every byte in the sums")
    picture.say(f"Spark counted {RECORDS:,} rows; offsets and checksums as they were produced")
    return "replayed by Spark, no broker", _rate(float(replay["seconds"]))  # type: ignore[arg-type]


def _archived(root: Path, process: subprocess.Popen[str], expected: list[Sums], picture: Picture) -> list[Row]:
    assert process.stdout is not None
    archive = _read_result(process.stdout, "archive")
    rows = [("archived to an Iceberg table", _rate(float(archive["seconds"])))]  # type: ignore[arg-type]
    picture.act("archived by Spark to an Iceberg table")
    if archive["rows"] != RECORDS:
        raise Failed(f"the archive has {archive['rows']} rows, not {RECORDS}")
    if find_spec("duckdb") is None:
        return [*rows, ("the table read by DuckDB", "left out: no duckdb; pip install duckdb")]
    began = time.monotonic()
    found = query(root)
    wanted = [(partition, *sums[:3], sums.rows, sums.md5) for partition, sums in enumerate(expected)]
    if found != wanted:
        raise Failed(f"DuckDB saw {found} in the table, produced were {wanted}")
    picture.act("the table read and summed up by DuckDB")
    picture.say("DuckDB read the Iceberg table: the same rows, each once, the same bytes")
    return [*rows, ("the table read by DuckDB", _rate(time.monotonic() - began))]


def query(root: Path) -> list[tuple[int, ...]]:
    """Rows, first and last offset, distinct offsets and sum of md5 numbers of each partition, read by DuckDB."""
    import duckdb

    from thermocline.pipeline.jobs.iceberg_catalog import catalog_config, open_catalog

    table = open_catalog(catalog_config(warehouse=f"file://{root / 'lake'}")).load_table(TABLE)
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    with duckdb.connect() as connection:
        return connection.execute(
            'select partition, count(*), min("offset"), max("offset"), count(distinct "offset"), '
            "sum(md5_number_lower(value))::hugeint from read_parquet(?) group by partition order by partition",
            [files],
        ).fetchall()


def _read_result(output: IO[str], act: str) -> dict[str, object]:
    line = output.readline()
    if not line:
        raise Failed(f"Spark ended before the end of its {act}; see below")
    result: dict[str, object] = json.loads(line)
    assert result["act"] == act
    return result


def _rate(seconds: float) -> str:
    return f"{RECORDS * VALUE_BYTES / 1e6 / seconds:.0f} MB/s"
