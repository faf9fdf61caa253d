"""The catalog a user named: what its errors say."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from logformat.errors import InvalidRequest
from tests.support.pipeline.archive_kit import json_topic, run
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.compaction.compact import compact
from thermocline.pipeline.jobs.iceberg_catalog import (
    CatalogUnavailable,
    catalog_config,
    catalog_errors,
    open_catalog,
    open_existing_catalog,
)


def test_a_rest_catalog_that_does_not_answer_is_named_with_the_reason(tmp_path: Path) -> None:
    """One line: where, why, what to do; no user info, nothing of the HTTP client's own words."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=1, records=1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, and nobody listens
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        catalog = catalog_config(f"http://me:word@{address}/iceberg")
        with pytest.raises(CatalogUnavailable) as told:
            archive(None, bucket.url, "js", "ns.js", catalog=catalog)
    said = str(told.value)
    assert said.startswith(f"catalog http://{address}/iceberg: Connection refused; ")
    assert "Pool" not in said and "word" not in said and "\n" not in said


def test_a_sql_catalog_that_does_not_answer_is_not_taken_for_one_that_is_not_there(tmp_path: Path) -> None:
    """All was to be archived then, or to be archived first; a run ended with SQLAlchemy's stack trace."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=1, records=1)
    file = tmp_path / "catalog.db"
    catalog = catalog_config(f"sqlite:///{file}?timeout=0.01", f"file://{tmp_path}/lake")
    run(bucket, catalog, "js", "ns.js")
    opened = open_existing_catalog(catalog)
    assert opened is not None
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for of in (catalog, opened):
            for job in ("dry run", "archive", "compact"):
                with pytest.raises(CatalogUnavailable) as told:
                    if job == "compact":
                        compact(None, bucket.url, "js", "ns.js", catalog=of, dry_run=True)
                    else:
                        archive(None, bucket.url, "js", "ns.js", catalog=of, dry_run=job == "dry run")
                assert str(told.value).startswith(f"catalog sqlite:///{file}: database is locked; ")
    assert run(bucket, catalog, "js", "ns.js", dry_run=True).row()["offsets"] == 0


def test_a_database_that_is_down_is_named_with_the_reason(tmp_path: Path) -> None:
    """Its first line, without the statement; no user, no password."""
    catalog = catalog_config("postgresql+psycopg2://me:word@db.example:5432/lake")
    down = OSError("connection to server failed: Connection refused\n\tIs the server running?")
    with pytest.raises(CatalogUnavailable) as told, catalog_errors(catalog):
        raise OperationalError("SELECT 1", {}, down)
    said = str(told.value)
    assert said.startswith("catalog postgresql+psycopg2://db.example:5432/lake: connection to server failed: ")
    assert "word" not in said and "SELECT" not in said and "\n" not in said


def test_a_catalog_in_memory_is_one_that_has_nothing_yet(tmp_path: Path) -> None:
    """Its name alone said no `uri`, and a look at it ended with `no such table: iceberg_tables`."""
    bucket = HistoryBucket(tmp_path)
    json_topic(bucket, "js", segments=1, records=1)
    catalog = catalog_config("memory", f"file://{tmp_path}/lake")
    assert open_existing_catalog(catalog) is None
    assert run(bucket, catalog, "js", "ns.js", dry_run=True).row()["offsets"] == 4
    assert run(bucket, catalog, "js", "ns.js").row()["offsets"] == 4


def test_a_name_that_is_not_configured_is_told_in_our_words() -> None:
    """pyiceberg's own message names a flag that our commands do not have."""
    with pytest.raises(InvalidRequest, match=r"^catalog nosuch: pyiceberg's configuration .* glue") as told:
        open_catalog(catalog_config("nosuch"))
    assert "--uri" not in str(told.value)


@pytest.mark.parametrize(
    ("warehouse", "said"),
    [
        ("s3:/b/lake", "warehouse: two slashes"),
        ("/srv/lake", "warehouse: it has no scheme"),
        ("s3://lake?sse=AES256", "warehouse: storage_class, sse"),
    ],
)
def test_a_wrong_warehouse_is_called_a_warehouse(warehouse: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        catalog_config("memory", warehouse)
