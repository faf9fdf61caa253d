"""What can go wrong in a cluster (D…), with three real brokers, stock clients and real files; one cluster for all.

Every case ends with what was acknowledged read again, and with each replica's files against the others'. Nobody joins a
group: __consumer_offsets would have a minimum of one, and a lost disk may have held it alone.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.records import NO_LEADER
from tests.campaign.aftermath import differences
from tests.support.clients.stock_clients import Written, read_kafka_python, write_confluent
from tests.support.clients.writing import Writing
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import NODES, Three, three
from tests.support.store.s3_servers import Fault
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

AWAY_S = 60.0
STOPS_S = 25.0  # 5 s each for handing over, ending the session, releasing the lease; and a busy machine


def folder(cluster: Three, node_id: int) -> Path:
    return cluster.site.data_dir(str(node_id))


def assert_equal(cluster: Three, place: str) -> None:
    """The replicas hold the same batches, as soon as the last ones were copied."""
    homes = [folder(cluster, node_id) for node_id in NODES]
    found = wait_until(lambda: (d := differences(homes, place)) and not d[1] and d, f"equal replicas of {place}")
    assert found[0] > 0, "nothing was compared"


def test_what_was_acknowledged_outlives_a_killed_leader_and_the_next(cluster: Three) -> None:
    """RF 3, min 2, acks=all: the leader is killed while records are on their way, comes back, catches up; then the
    second leader is killed. Each record that was acknowledged is there once, in order."""
    topic = "ledger"
    cluster.create(topic, min_insync_replicas=2)
    writing = Writing(cluster.everywhere, topic)
    writing.write("a", 500)
    writing.flush()
    for mark in ("b", "c"):
        leader = cluster.rows(topic)[0].leader
        writing.write(mark, 300)
        cluster.kill(leader)
        writing.write(mark + mark, 300)
        writing.flush()
        cluster.wait(lambda leader=leader: cluster.rows(topic)[0].leader not in (-1, leader), "another leader")  # type: ignore[misc]
        cluster.start(leader)
        cluster.wait(cluster.is_whole, "all three in sync again")
    assert len(writing.acknowledged) == 1700
    found = read_kafka_python(cluster.everywhere, topic, {0: 1700})
    assert [record.value for record in found] == writing.acknowledged


def test_cluster_d13_a_stopped_controller_decides_nothing_when_it_goes_on(cluster: Three) -> None:
    """It is asked for a topic while it is stopped, and another one takes over: whatever the client is told is what the
    cluster shows, nobody's session is ended by the old one, and it follows."""
    before = cluster.root()[1]
    zombie = cluster.brokers[before.node_id]
    admin = AdminClient({"bootstrap.servers": zombie.kafka, "log_level": 0})
    admin.list_topics(timeout=10)  # it knows whom to ask
    cluster.pause(before.node_id)
    (created,) = admin.create_topics([NewTopic("by-whom", 1, 3)], request_timeout=20).values()
    cluster.wait(lambda: cluster.controller() != before.node_id, "another controller")
    others = {n: epoch for n, epoch in cluster.active().items() if n != before.node_id}
    cluster.go_on(before.node_id)
    told = True
    try:
        created.result(30)
    except KafkaException:
        told = False
    cluster.wait(cluster.is_whole, "the old controller follows")
    assert cluster.root()[1].epoch > before.epoch
    assert {n: cluster.active()[n] for n in others} == others, "nobody else lost his session"
    assert not told or cluster.image().topic_named("by-whom") is not None


def test_cluster_d18_a_leader_that_is_cut_off_acknowledges_nothing_more(cluster: Three) -> None:
    """No other broker hears it, clients do: what they send it meanwhile is acknowledged by the next leader, once; when
    the links heal it cuts what nobody else has, and leads with every record once the others are gone."""
    topic = "cut-off"
    cluster.create(topic, 3, min_insync_replicas=2)
    controller = cluster.controller()
    at, leader = next((p, row.leader) for p, row in enumerate(cluster.rows(topic)) if row.leader != controller)
    others = [node_id for node_id in NODES if node_id != leader]
    writing = Writing(cluster.everywhere, topic, at)
    writing.write("a", 300)
    writing.flush()
    assert cluster.links is not None
    cluster.links.cut_both(str(leader), map(str, others))
    writing.write("b", 200)
    cluster.wait(lambda: cluster.rows(topic)[at].leader not in (-1, leader), "another leader")
    writing.flush()
    cluster.links.heal()
    cluster.wait(cluster.is_whole, "the old leader follows")
    writing.write("c", 100)
    writing.flush()
    assert_equal(cluster, f"{topic}-{at}")
    for node_id in others:
        cluster.kill(node_id)
    cluster.wait(lambda: cluster.rows(topic)[at].leader == leader, "it leads, for it lacks nothing")
    assert set(cluster.rows(topic)[at].in_sync) > {leader}, "below the minimum nobody leaves the set"
    for node_id in others:
        cluster.start(node_id)
    cluster.wait(cluster.is_whole, "all again")
    found = read_kafka_python(cluster.everywhere, topic, {at: 600})
    assert [record.value for record in found] == writing.acknowledged


def moved_away(home: Path, place: str, _: Path) -> None:
    """An operator takes one damaged log out of the way."""
    (home / place).rename(home.with_name(f"{home.name} {place}"))


def of_yesterday(home: Path, _: str, yesterday: Path) -> None:
    """The volume is put back as it was when the broker last stopped."""
    shutil.rmtree(home)
    yesterday.rename(home)


def empty(home: Path, _: str, __: Path) -> None:
    """The machine was replaced."""
    shutil.rmtree(home)


@pytest.mark.parametrize(
    "disk",
    [
        pytest.param(moved_away, id="d70-log-moved-away"),
        pytest.param(of_yesterday, id="d75-yesterdays-copy", marks=pytest.mark.slow),
        pytest.param(empty, id="d41-empty-directory", marks=pytest.mark.slow),
    ],
)
def test_cluster_d41_d70_d75_a_directory_that_lacks_records_does_not_lead(
    cluster: Three, disk: Callable[[Path, str, Path], None], request: pytest.FixtureRequest
) -> None:
    """Two of three are in sync, both die, and the one whose disk is not what the others believe comes back alone: it
    leaves the set in the commit of its session, below the minimum too, and does not lead. Then
    it copies, and joins."""
    topic = request.node.callspec.id
    cluster.create(topic, 1, min_insync_replicas=2)
    node_id = cluster.rows(topic)[0].replicas[1]
    home = folder(cluster, node_id)
    writing = Writing(cluster.everywhere, topic)
    writing.write("a", 200)
    writing.flush()
    assert cluster.stop(node_id) == 0
    yesterday = home.with_name(f"yesterday of {topic}")
    shutil.copytree(home, yesterday)
    cluster.start(node_id)
    cluster.wait(cluster.is_whole, "back")
    leader = cluster.rows(topic)[0].leader
    assert leader != node_id
    third = next(n for n in NODES if n not in (leader, node_id))
    writing.write("b", 200)
    writing.flush()
    cluster.kill(third)
    cluster.wait(lambda: set(cluster.rows(topic)[0].in_sync) == {leader, node_id}, "two are in sync")
    writing.write("c", 200)
    writing.flush()
    for each in (node_id, leader):
        cluster.kill(each)
    disk(home, f"{topic}-0", yesterday)
    before = cluster.rows(topic)[0]
    cluster.start(node_id)
    row = cluster.rows(topic)[0]
    assert set(before.in_sync) == {leader, node_id}
    assert row.in_sync == (leader,) and row.leader in (leader, NO_LEADER), f"{row}\n{cluster.logs()}"
    for broker in [cluster.start(each, wait_ready=False) for each in (leader, third)]:
        broker.await_ready()
    cluster.wait(cluster.is_whole, "all three in sync")
    found = read_kafka_python(cluster.everywhere, topic, {0: 600})
    assert [record.value for record in found] == writing.acknowledged
    assert_equal(cluster, f"{topic}-0")


def test_cluster_d49_two_of_three_go_on_after_all_were_killed(cluster: Three) -> None:
    """The third is not waited for: it lacks nothing when it comes, and nothing that was acknowledged is missing."""
    topic = "all-killed"
    cluster.create(topic, 3, min_insync_replicas=2)
    writings = [Writing(cluster.everywhere, topic, at) for at in range(3)]
    for writing in writings:
        writing.write("a", 100)
        writing.flush()
    for broker in cluster.brokers.values():
        broker.process.kill()
    for node_id in NODES:
        cluster.kill(node_id)
    for broker in [cluster.start(node_id, wait_ready=False) for node_id in (2, 3)]:
        broker.await_ready()
    cluster.wait(lambda: all(row.leader in (2, 3) for row in cluster.rows(topic)), "leaders among the two")
    for writing in writings:
        writing.write("b", 100)
        writing.flush()
    cluster.start(1)
    cluster.wait(cluster.is_whole, "all three")
    found = read_kafka_python(cluster.everywhere, topic, dict.fromkeys(range(3), 200))
    for at, writing in enumerate(writings):
        assert [record.value for record in found if record.partition == at] == writing.acknowledged
        assert_equal(cluster, f"{topic}-{at}")


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
def test_cluster_d48_a_stop_does_not_wait_for_a_store_that_is_away(site: Site) -> None:
    """SIGTERM while the store answers nobody: the broker ends, cleanly, and what it held is there when it is back."""
    assert site.bucket.proxy is not None  # type: ignore[attr-defined]
    proxy = site.bucket.proxy  # type: ignore[attr-defined]
    site.settings["thermocline.store.timeout.ms"] = 2000
    with three(site) as cluster:
        cluster.create("kept", 1, min_insync_replicas=2)
        writing = Writing(cluster.everywhere, "kept")
        writing.write("a", 100)
        writing.flush()
        proxy.faults(Fault("stall", seconds=AWAY_S))
        node_id = cluster.rows("kept")[0].leader
        began = time.monotonic()
        assert cluster.stop(node_id) == 0, cluster.logs()
        assert time.monotonic() - began < STOPS_S
        proxy.faults()
        cluster.start(node_id)
        cluster.wait(cluster.is_whole, "all three")
        found = read_kafka_python(cluster.everywhere, "kept", {0: 100})
        assert [record.value for record in found] == writing.acknowledged


@pytest.mark.slow
def test_cluster_d77_an_older_root_put_back_deletes_nothing_by_absence(directory_site: Site) -> None:
    """Restored from a backup, cluster.json does not know the newest topic: its objects and its logs stay."""
    site = directory_site
    with three(site) as cluster:
        cluster.create("known", 1)
        backup = site.bucket.read("cluster.json")
        cluster.create("newer", 1, internal_segment_bytes=65_536)
        records = [Written(None, b"%d " % n + bytes(500)) for n in range(400)]
        write_confluent(cluster.everywhere, "newer", 0, records, "none", True)
        cold = cluster.image().topic_named("newer")
        assert cold is not None
        prefix = f"topics/{cold.topic_id}/"
        wait_until(lambda: _segments(site, prefix), "something is cold")
        for node_id in NODES:
            assert cluster.stop(node_id) == 0
        held = {node_id: _bytes(folder(cluster, node_id) / "newer-0") for node_id in NODES}
        objects = {key for key in site.bucket.listing() if key.startswith(prefix)}
        site.bucket.load({"cluster.json": backup})
        for broker in [cluster.start(node_id, wait_ready=False) for node_id in NODES]:
            broker.await_ready()
        for node_id in NODES:
            home = folder(cluster, node_id)
            cluster.wait(lambda home=home: bool(_moved_aside(home, "newer-0")), f"the log is out of the way in {home}")  # type: ignore[misc]
            assert _bytes(_moved_aside(home, "newer-0")[0]) == held[node_id]
        assert objects <= site.bucket.listing(), "an object of the newer topic is gone"


def _segments(site: Site, prefix: str) -> list[str]:
    return [key for key in site.bucket.listing() if key.startswith(prefix) and "/segments/" in key]


def _moved_aside(home: Path, place: str) -> list[Path]:
    """Directories of that log under another name."""
    return [path for path in home.glob(f"{place}.*") if path.is_dir()]


def _bytes(log: Path) -> dict[str, bytes]:
    """The segments of a log's directory."""
    return {path.name: path.read_bytes() for path in sorted(log.glob("*.log"))}
