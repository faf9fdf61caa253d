"""`cluster.json` is gone: made anew from the manifests, by real brokers' directories or by the bucket alone; and
buckets as brokers of each format left them, restored by other brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from broker.metadata.producer_ids import PER_EPOCH
from broker.metadata.rebuilt import EPOCHS_ABOVE, UNKNOWN_REPLICA
from tests.integration.restore.test_cluster_restore import SETTINGS, restore, some, started
from tests.integration.store.test_golden_buckets import BUCKETS, extracted
from tests.support.clients.stock_clients import (
    commit_offset,
    committed_offset,
    delete_topic,
    digest,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.processes.site import QUICK, Site, init_producer_id, json_lines
from tests.support.processes.three_brokers import NODES, three
from tests.support.store.buckets import DirectoryBucket, roots
from tests.support.waiting import wait_until
from thermocline.cli.terminal.outcome import Exit

TOPIC, GROUP = "ledger", "readers"
SEALED, LATER = 20, 5


def rebuild(site: Site, *words: str) -> tuple[int, list[dict], str]:
    done = site.cli("cluster", "rebuild", "--bucket", site.bucket.url, "--json", *words)
    return done.returncode, json_lines(done.stdout), done.stderr


def deletable(site: Site) -> set[str]:
    return {key for key in site.bucket.listing() if key.startswith("topics/")}


def test_a_cluster_whose_root_is_gone_is_rebuilt_from_manifests_and_directories(tmp_path: Path) -> None:
    """Refused while it can be read or a broker renews the lease; every record of brokers that stopped cleanly is there
    again, also what the bucket does not hold; epochs lie far above; nothing is deleted before the operator's word."""
    site = Site(tmp_path, DirectoryBucket(tmp_path / "bucket"), dict(SETTINGS))
    with three(site) as cluster:
        everywhere = cluster.everywhere
        cluster.create(TOPIC, 2, min_insync_replicas=2, local_retention_bytes=1)
        for index in range(2):
            write_confluent(everywhere, TOPIC, index, some("sealed", SEALED), "none", True)
        assert site.cli("tier", "seal", "--wait", "-b", everywhere, "--topic", TOPIC).returncode == 0
        for index in range(2):
            write_confluent(everywhere, TOPIC, index, some("later", LATER), "none", True)
        commit_offset(everywhere, GROUP, TOPIC, 0, SEALED)
        before = read_confluent(everywhere, TOPIC, {0: SEALED + LATER, 1: SEALED + LATER})
        producer_id = init_producer_id(cluster.brokers[1].kafka)
        code, _, said = rebuild(site, "--yes")
        assert (code, "can be read" in said) == (Exit.REFUSED, True), said
        (tmp_path / "bucket" / "cluster.json").rename(tmp_path / "aside.json")
        code, _, said = rebuild(site, "--yes")
        assert (code, "still renews" in said) == (Exit.REFUSED, True), said
        (tmp_path / "aside.json").rename(tmp_path / "bucket" / "cluster.json")
        for node_id in NODES:
            assert cluster.stop(node_id) == 0
        root = tmp_path / "bucket" / "cluster.json"
        root.write_bytes(root.read_bytes()[:-30])  # damaged, this time
        highest = max(manifest["leader_epoch"] for manifest in roots(site.bucket).values())

        code, rows, said = rebuild(site)
        assert code == Exit.DONE and "nothing was changed" in said
        assert [row["topic"] for row in rows if row["kind"] == "topic"].count(TOPIC) == 1
        assert rows[0]["is_new_id"] is False, "lease.json says whose bucket it is"
        assert restore(site)[0] == Exit.FAILED, "nothing was written"
        code, rows, said = rebuild(site, "--yes")
        assert code == Exit.DONE, said
        kept = deletable(site)
        gone = {key for key in kept if manifest_topic(site, key) == TOPIC}
        for later in [cluster.start(node_id, wait_ready=False) for node_id in NODES]:
            later.await_ready()
        assert all(row.leader == -1 and UNKNOWN_REPLICA in row.replicas for row in cluster.rows(TOPIC))
        code, rows, said = restore(site, "--yes")
        assert code == Exit.DONE, said
        assert all(row["serves"] for row in rows if row["kind"] == "result")
        ends = end_offsets(everywhere, TOPIC, 2)
        assert digest(read_confluent(everywhere, TOPIC, ends)) == digest(before)
        assert all(row.leader_epoch > highest + EPOCHS_ABOVE for row in cluster.rows(TOPIC))
        assert init_producer_id(cluster.brokers[1].kafka) >= max(producer_id, EPOCHS_ABOVE * PER_EPOCH)
        assert committed_offset(everywhere, GROUP, TOPIC, 0) == SEALED
        assert kept <= deletable(site)
        delete_topic(everywhere, TOPIC)
        assert "nothing is deleted" in site.cli("cluster", "status", "-b", everywhere).stdout
        assert kept <= deletable(site)
        code, _, said = rebuild(site, "--done")
        assert code == Exit.DONE, said
        wait_until(lambda: not gone & deletable(site), "what was deleted meanwhile is gone", 60)
        assert rebuild(site, "--done")[0] == Exit.DONE


def manifest_topic(site: Site, key: str) -> str:
    """The topic below whose id a key lies."""
    for prefix, manifest in roots(site.bucket).items():
        if key.startswith(prefix):
            return str(manifest["topic"])
    return ""


def check_golden(brokers: dict, topics: int) -> None:
    """What the golden bucket holds: 30 of 35 records of each partition of `events`; of `plain` all that was copied."""
    everywhere = ",".join(broker.kafka for broker in brokers.values())
    ends = end_offsets(everywhere, "events", 3)
    found = read_confluent(everywhere, "events", ends)
    assert sorted((r.partition, r.offset) for r in found) == [(n, at) for n in range(3) for at in range(30)]
    assert next(r.value for r in found if (r.partition, r.offset) == (0, 0)) == b"first-0-0-" + b"x" * 300
    assert all(end >= 35 for end in ends.values()), "offsets that were given are given to nothing else"
    admin = AdminClient({"bootstrap.servers": everywhere})
    assert len(admin.list_topics(timeout=20).topics) == topics
    write_confluent(everywhere, "events", 0, some("new", 3), "none", True)
    assert end_offsets(everywhere, "events", 3)[0] == ends[0] + 3


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bucket_v1" else pytest.mark.slow) for name in BUCKETS]
)
@pytest.mark.parametrize("way", ["restore", pytest.param("rebuild", marks=pytest.mark.slow)])
def test_a_bucket_of_each_format_is_restored_by_other_brokers(name: str, way: str, tmp_path: Path) -> None:
    """Two brokers that never saw it; with `rebuild` its `cluster.json` is gone too."""
    place = extracted(name, tmp_path)
    settings = {**QUICK, "broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 300}
    site = Site(tmp_path / "brokers", DirectoryBucket(place / "bucket"), settings)
    site.directory.mkdir()
    if way == "rebuild":
        (place / "bucket" / "cluster.json").unlink()
        code, rows, said = rebuild(site)
        assert code == Exit.DONE and rows[0]["is_new_id"] is True, said
        assert rebuild(site, "--yes")[0] == Exit.DONE
    with started(site, 11, 12) as brokers:
        code, _, said = restore(site, "--yes")
        assert code == Exit.DONE, said
        check_golden(brokers, 143 if "page" in name else 3)
    root = json.loads((place / "bucket" / "cluster.json").read_text())
    assert root["format_version"] == 2
