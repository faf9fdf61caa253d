"""What `thermocline archive` says before it starts Spark, and what a dry run leaves behind: nothing.

Each command names a Spark master that cannot be: whatever is told instead of that was told first.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from tests.support.pipeline.archive_kit import JSON, json_topic, lake, run
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit


@pytest.fixture
def bucket(tmp_path: Path) -> HistoryBucket:
    made = HistoryBucket(tmp_path)
    json_topic(made, "js", segments=1, records=10)
    json_topic(made, "other", segments=1, records=10)
    return made


def everything(place: Path) -> dict[str, tuple[int, int]]:
    """Every name below, with size and time of change."""
    found = {}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            status = os.stat(os.path.join(folder, name))
            found[os.path.relpath(os.path.join(folder, name), place)] = (status.st_size, status.st_mtime_ns)
    return found


def command(bucket: HistoryBucket, place: Path, **changed: str) -> list[str]:
    given = {
        "bucket": bucket.url,
        "table": "ns.js",
        "warehouse": f"file://{place}/lake",
        "master": "nonsense",
        **changed,
    }
    return ["archive", given.pop("topic", "js"), *(f"--{name}={value}" for name, value in given.items())]


@pytest.mark.parametrize("found", ["nothing", "a lake", "an empty catalog"])
def test_a_dry_run_writes_nothing(
    bucket: HistoryBucket, tmp_path: Path, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It left a catalog in the warehouse, and the warehouse."""
    if found == "a lake":
        run(bucket, lake(tmp_path), "js", "ns.js", values=JSON, bytes_max=1, commits_max=1)
    elif found == "an empty catalog":
        (tmp_path / "lake").mkdir()
        (tmp_path / "lake/catalog.db").touch()
    before = everything(tmp_path)
    assert main([*command(bucket, tmp_path), "--dry-run", "--json"]) == Exit.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] is True and told["offsets"] == (20 if found == "a lake" else 40)
    assert everything(tmp_path) == before


def test_the_catalog_is_named(bucket: HistoryBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A SQLite catalog keeps tables under its own name: under another one nobody finds them."""
    from pyiceberg.catalog import load_catalog

    summary = run(bucket, lake(tmp_path), "js", "ns.js")
    assert f"catalog     thermocline (sqlite:///{tmp_path}/lake/catalog.db)" in str(summary)
    assert main([*command(bucket, tmp_path), "--dry-run"]) == Exit.DONE
    assert f"thermocline (sqlite:///{tmp_path}/lake/catalog.db)" in capsys.readouterr().out
    uri = f"sqlite:///{tmp_path}/lake/catalog.db"
    assert load_catalog("thermocline", type="sql", uri=uri).table_exists("ns.js")
    assert not load_catalog("default", type="sql", uri=uri).table_exists("ns.js")
    named = run(bucket, lake(tmp_path), "js", "ns.js").row()["catalog"]
    assert isinstance(named, str) and named.startswith("thermocline (")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"table": "js"}, "write namespace.table"),
        ({"topic": "jss"}, "did you mean 'js'"),
        ({"topic": "other"}, "table ns.js is the archive of topic js "),
        ({"value": "jsn"}, "did you mean 'json'"),
        ({"value": "json", "columns": "user strin"}, "type 'strin' of user is not known"),
        ({"value": "json", "columns": "offset bigint"}, "the table has columns of that name"),
        ({"value": "raw"}, "keeps values as json"),
        ({"warehouse": "file:///{place}/bucket/cluster.json", "table": "ns.new"}, "cluster.json is not a directory"),
        ({"warehouse": "file:///{place}/bucket/cluster.json/x", "table": "ns.new"}, "cluster.json is not a directory"),
        ({"catalog": "http://127.0.0.1:{port}/x", "warehouse": "s3://lake"}, "Connection refused"),
    ],
)
def test_a_mistake_is_told_before_spark_starts(
    bucket: HistoryBucket, tmp_path: Path, changed: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves nothing: the master that cannot be was never asked."""
    run(bucket, lake(tmp_path), "js", "ns.js", values=JSON)
    before = everything(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, and nobody listens
        port = str(nobody.getsockname()[1])
        named = {
            key: value.replace("{place}", str(tmp_path)[1:]).replace("{port}", port) for key, value in changed.items()
        }
        assert main(command(bucket, tmp_path, **named)) in (Exit.USAGE, Exit.FAILED)
    said = capsys.readouterr().err
    assert says in said and "Spark" not in said
    assert everything(tmp_path) == before


def test_a_sqlite_catalog_needs_a_warehouse_for_a_new_table(
    bucket: HistoryBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["archive", "js", "--bucket", bucket.url, "--table", "ns.js", "--master", "nonsense"]
    assert main([*words, "--catalog", f"sqlite:///{tmp_path}/own/catalog.db"]) == Exit.USAGE
    assert "give --warehouse" in capsys.readouterr().err and not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    "flag",
    [
        *("--value=json", "--columns=user string", "--keep-value", "--by-day"),
        *("--max-bytes=1MiB", "--max-commits=1", "--file-bytes=1MiB", "--allow-data-loss"),
    ],
)
def test_a_compaction_refuses_what_it_would_ignore(
    bucket: HistoryBucket, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that only --dry-run goes with it, and took --file-bytes and --allow-data-loss without a word."""
    run(bucket, lake(tmp_path), "js", "ns.js", values=JSON)
    assert main([*command(bucket, tmp_path), "--compact", "--dry-run", flag]) == Exit.USAGE
    assert f"only --dry-run can be combined with it, not {flag.partition('=')[0]}" in capsys.readouterr().err
