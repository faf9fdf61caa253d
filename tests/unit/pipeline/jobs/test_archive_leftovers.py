"""What an archive sweeps: its own leftovers, and never a file that any table names."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from pyiceberg.table.update import SetLocationUpdate

from tests.support.pipeline.archive_kit import data_files, json_topic, lake, named_files, places, rows, run
from tests.support.pipeline.history_bucket import HistoryBucket
from thermocline.pipeline.jobs import archive as archive_module
from thermocline.pipeline.jobs.iceberg_catalog import catalog_config, open_catalog

pytestmark = pytest.mark.not_fast

EVERY = [(0, offset) for offset in range(20)]


@pytest.fixture
def bucket(tmp_path: Path) -> HistoryBucket:
    made = HistoryBucket(tmp_path)
    json_topic(made, "js", partitions=1, segments=2, records=5)
    return made


def test_a_trial_in_another_catalog_deletes_nothing_of_the_table_of_that_name(
    bucket: HistoryBucket, tmp_path: Path
) -> None:
    """One warehouse, one table name, two catalogs: both tables begin at base 0."""
    production = lake(tmp_path)
    assert run(bucket, production, "js", "ns.js").rows == 20
    trial = run(bucket, open_catalog(catalog_config("memory", f"file://{tmp_path}/lake")), "js", "ns.js")
    assert (trial.rows, trial.leftovers_deleted) == (20, 0)
    assert places(rows(production, "ns.js")) == EVERY


def test_a_table_made_again_deletes_nothing_of_the_one_that_was_dropped(bucket: HistoryBucket, tmp_path: Path) -> None:
    """Dropped without a purge, its files stay, so that it can be registered again."""
    catalog = lake(tmp_path)
    run(bucket, catalog, "js", "ns.js")
    opened = open_catalog(catalog)
    metadata = opened.load_table("ns.js").metadata_location
    opened.drop_table("ns.js")
    again = run(bucket, catalog, "js", "ns.js")
    assert (again.rows, again.leftovers_deleted) == (20, 0)
    open_catalog(catalog).register_table("ns.old", metadata)
    assert places(rows(catalog, "ns.old")) == places(rows(catalog, "ns.js")) == EVERY


def test_a_location_spelled_otherwise_deletes_nothing_of_the_table(bucket: HistoryBucket, tmp_path: Path) -> None:
    catalog = lake(tmp_path)
    run(bucket, catalog, "js", "ns.js")
    opened = open_catalog(catalog)
    table = opened.load_table("ns.js")
    other = table.location().replace("file:///", "file:/")
    assert other != table.location()
    opened.commit_table(table, (), (SetLocationUpdate(location=other),))
    assert run(bucket, catalog, "js", "ns.js").leftovers_deleted == 0
    assert places(rows(catalog, "ns.js")) == EVERY


def test_leftovers_of_the_table_go_and_those_of_nobody_knows_whose_stay(
    bucket: HistoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files as a killed run leaves them, in the table's own folder, and in the one that earlier versions shared."""
    catalog = lake(tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(archive_module, "sweep", lambda table, commits: 0)
        run(bucket, catalog, "js", "ns.js")
    (named,) = named_files(catalog, "ns.js")
    name = f"{secrets.token_hex(6)}-0-{0:020d}-{20:020d}-{secrets.token_hex(4)}.parquet"
    left, base = Path(named).with_name(name), Path(named).parent.name
    left.write_bytes(b"PAR1")
    uuid = open_catalog(catalog).load_table("ns.js").metadata.table_uuid
    assert left.parts[-4:-2] == ("thermocline", str(uuid)) and base == "0"
    shared = left.parent.parent.parent / base / name
    shared.parent.mkdir()
    shared.write_bytes(b"PAR1")
    assert run(bucket, catalog, "js", "ns.js").leftovers_deleted == 1
    assert data_files(tmp_path) == {named, str(shared)}
    assert places(rows(catalog, "ns.js")) == EVERY
