"""Three real brokers that lost what they had: the partition serves again, and no offset shows two records (R20)."""

from __future__ import annotations

import shutil

from broker.metadata.records import NO_LEADER
from tests.support.clients.stock_clients import Written, end_offsets, read_confluent, write_confluent
from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.processes.three_brokers import NODES, Three, three

TOPIC = "ledger"
USAGE, FAILED = 2, 1


def some(mark: str, count: int = 20) -> list[Written]:
    return [Written(None, f"{mark} {n}".encode()) for n in range(count)]


def records(cluster: Three, end: int) -> dict[int, bytes | None]:
    found = read_confluent(cluster.everywhere, TOPIC, {0: end})
    return {record.offset: record.value for record in found}


def test_cluster_d50_two_directories_are_lost_and_the_third_is_given_up(directory_site: Site) -> None:
    """While the third is only off it is waited for; the plan names what it empties; its old directory returns, and
    follows."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2)
        write_confluent(cluster.everywhere, TOPIC, 0, some("before"), "none", True)
        shown = records(cluster, end_offsets(cluster.everywhere, TOPIC, 1)[0])
        assert len(shown) == 20
        for node_id in NODES:
            cluster.kill(node_id)
        for node_id in (1, 2):
            shutil.rmtree(directory_site.data_dir(str(node_id)))
            cluster.start(node_id)
        cluster.wait_active(1, 2)
        assert cluster.rows(TOPIC)[0].leader == NO_LEADER and cluster.rows(TOPIC)[0].in_sync == (3,)
        bootstrap = cluster.brokers[1].kafka
        alive = thermocline("cluster", "forget", "2", "--yes", "-b", bootstrap)
        assert alive.returncode == FAILED and "broker 2 has a session" in alive.stderr
        unsaid = thermocline("cluster", "forget", "3", "-b", bootstrap)
        assert unsaid.returncode == USAGE and "add --yes" in unsaid.stderr, unsaid.stderr
        assert "begins without the records that only it may hold" in unsaid.stdout
        assert cluster.rows(TOPIC)[0].in_sync == (3,)
        done = thermocline("cluster", "forget", "3", "--yes", "--json", "-b", cluster.brokers[2].kafka)
        assert done.returncode == 0, done.stderr
        (line,) = [row for row in json_lines(done.stdout) if row["topic"] == TOPIC]
        assert (line["kind"], line["partition"], line["is_emptied"], line["left"]) == ("partition", 0, True, [])
        cluster.wait(lambda: cluster.rows(TOPIC)[0].in_sync == (1, 2) and cluster.rows(TOPIC)[0].clean, "it serves")
        write_confluent(cluster.everywhere, TOPIC, 0, some("after"), "none", True)
        end = end_offsets(cluster.everywhere, TOPIC, 1)[0]
        after = records(cluster, end)
        assert len(after) == 20 and not shown.keys() & after.keys()
        cluster.start(3)
        cluster.wait(cluster.is_whole, "all three are in sync")
        assert records(cluster, end) == after


def test_all_three_directories_are_lost_and_the_bucket_goes_on(directory_site: Site) -> None:
    """Nobody need be given up, as all are back and say that they hold nothing: what was sealed to the bucket is read,
    what came after it is a declared gap, and its offsets are given to nothing else."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2, remote_storage_enable="true")
        write_confluent(cluster.everywhere, TOPIC, 0, some("sealed"), "none", True)
        bootstrap = cluster.brokers[1].kafka
        assert thermocline("tier", "seal", "--wait", "-b", bootstrap).returncode == 0
        write_confluent(cluster.everywhere, TOPIC, 0, some("lost"), "none", True)
        shown = records(cluster, end_offsets(cluster.everywhere, TOPIC, 1)[0])
        sealed = {offset: value for offset, value in shown.items() if value is not None and value.startswith(b"sealed")}
        assert (len(shown), len(sealed)) == (40, 20)
        for node_id in NODES:
            cluster.kill(node_id)
            shutil.rmtree(directory_site.data_dir(str(node_id)))
        for later in [cluster.start(node_id, wait_ready=False) for node_id in NODES]:
            later.await_ready()
        cluster.wait(cluster.is_whole, "all three are in sync")
        assert cluster.rows(TOPIC)[0].unclean_epoch > 0
        write_confluent(cluster.everywhere, TOPIC, 0, some("after"), "none", True)
        found = records(cluster, end_offsets(cluster.everywhere, TOPIC, 1)[0])
        after = {offset: value for offset, value in found.items() if value is not None and value.startswith(b"after")}
        assert found == sealed | after and len(after) == 20
        assert not shown.keys() & after.keys()
