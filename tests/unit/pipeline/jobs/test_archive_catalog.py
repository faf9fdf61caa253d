"""The catalog a user named: what its errors say."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from logformat.errors import InvalidRequest
from tests.support.archive_kit import json_topic
from tests.support.history_bucket import HistoryBucket
from thermocline.pipeline.jobs.archive import archive
from thermocline.pipeline.jobs.iceberg_catalog import CatalogUnavailable, catalog_config, open_catalog


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
