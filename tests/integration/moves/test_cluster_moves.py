"""`thermocline cluster drain` and `cluster rebalance` on real brokers, under load, interrupted, taken back.

What the plan says moves is what is moved: rows are read from cluster.json itself, records by a stock client.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients.steady_load import SteadyLoad, assert_kept
from tests.support.clients.stock_clients import read_confluent
from tests.support.clients.writing import Writing
from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.processes.three_brokers import Three, three
from tests.support.repository import ROOT
from tests.support.store.buckets import Stores
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient
from thermocline.cli.cluster.client import alter, under_way
from thermocline.cli.cluster.reader import ClusterReader

USAGE, INTERRUPTED = 2, 130
FIELDS = ["topic", "partition", "from", "to", "hot_bytes", "cold_bytes"]


@pytest.fixture(params=["directory", pytest.param("versitygw", marks=pytest.mark.peer)])
def site(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Site]:
    with stores.bucket(request.param, tmp_path) as bucket:
        yield Site(tmp_path, bucket)


def run(cluster: Three, *words: str) -> subprocess.CompletedProcess[str]:
    """`thermocline cluster …`, as an operator types it."""
    return thermocline("cluster", *words, "-b", cluster.everywhere, timeout_s=100)


def held(cluster: Three) -> Counter[int]:
    """Replicas of each broker, and those that are to come."""
    rows = [row for topic in cluster.image().topics.values() for row in topic.rows]
    return Counter(node for row in rows for node in {*row.replicas, *row.target})


def said_active(cluster: Three) -> set[int]:
    """Brokers with a session, as those that answer say: when the controller itself stops, its last word lies in the
    bucket up to a second before anybody has read it."""
    return {broker.node for broker in ClusterReader(cluster.everywhere).read().brokers if broker.active}


def test_a_broker_is_drained_under_load_and_leaves(site: Site) -> None:
    """The plan has the bytes of both tiers, and what it calls cold is not copied; nothing acknowledged is lost; nobody
    assigns it anything any more; it is stopped, and the same command takes it out."""
    topics = ("a", "b", "c")
    with three(site) as cluster:
        for topic in topics:
            cluster.create(topic, replicas=2)
        writing = Writing(cluster.everywhere, "a")
        writing.write("cold", 500)
        writing.flush()
        assert run_tier_seal(cluster) == 0
        with SteadyLoad(cluster.everywhere, topics[1:]) as load:
            wait_until(lambda: load.acked_count > 200, "the load is acknowledged")
            before = {topic: cluster.rows(topic)[0].replicas for topic in topics}
            node = before["a"][0]
            asked = run(cluster, "drain", str(node), "--json")
            assert asked.returncode == USAGE and "--yes" in asked.stderr, asked.stderr
            assert held(cluster)[node] > 0, "nobody agreed"
            done = run(cluster, "drain", str(node), "--json", "--yes")
            assert done.returncode == 0, done.stderr + cluster.logs()
            plan = json_lines(done.stdout)
            assert {move["topic"] for move in plan} == {topic for topic in topics if node in before[topic]}
            assert all(list(move) == FIELDS and node not in move["to"] for move in plan)
            (of_a,) = (move for move in plan if move["topic"] == "a")
            assert of_a["cold_bytes"] > 5_000 and of_a["hot_bytes"] == 0
            assert all(move["hot_bytes"] > 0 for move in plan if move["topic"] != "a")
            (joined,) = set(cluster.rows("a")[0].replicas) - set(before["a"])
            copied = site.local_log_files("a", str(joined))
            assert all(int(file.stem) >= 500 for file in copied), "it begins where the bucket ends"
            assert held(cluster)[node] == 0
            assert f"broker {node} holds nothing: stop it" in done.stderr
            moved = load.acked_count
            wait_until(lambda: load.acked_count > moved + 200, "the load goes on")
            assert cluster.stop(node) == 0
            wait_until(lambda: node not in said_active(cluster), "its session is over, and the others have seen it")
            left = run(cluster, "drain", str(node), "--yes")
            assert left.returncode == 0 and f"broker {node} held nothing and has left the cluster" in left.stderr
            assert node not in cluster.image().nodes
            load.stop(20)
        for topic, acked in load.acked.items():
            assert_kept(acked, read_confluent(cluster.everywhere, topic, {0: max(acked) + 1}))
        assert len(read_confluent(cluster.everywhere, "a", {0: 500})) == 500
        assert "is not in the cluster" in run(cluster, "drain", str(node), "--yes").stderr


def run_tier_seal(cluster: Three) -> int:
    return thermocline("tier", "seal", "--wait", "-b", cluster.everywhere).returncode


def test_a_broker_joins_gets_its_share_and_is_drained_in_two_sittings(site: Site) -> None:
    """A dry run changes nothing; the share moves, leaders with it; a second time there is nothing to do. ^C in a drain
    leaves one partition moving and says how to go on; typed again, it goes on."""
    with three(site) as cluster:
        cluster.create("even", partitions=12, replicas=2)
        with cluster.beside("4", 4) as fourth:
            fourth.await_ready()
            cluster.wait_active(1, 2, 3, 4)
            dry = run(cluster, "rebalance", "--dry-run", "--json")
            assert dry.returncode == 0 and held(cluster)[4] == 0
            done = run(cluster, "rebalance", "--yes", "--json")
            assert done.returncode == 0, done.stderr + cluster.logs()
            assert json_lines(done.stdout) == json_lines(dry.stdout)
            assert held(cluster) == {1: 6, 2: 6, 3: 6, 4: 6}
            rows = cluster.rows("even")
            assert Counter(row.replicas[0] for row in rows) == {1: 3, 2: 3, 3: 3, 4: 3}
            assert all(row.leader == row.replicas[0] for row in rows)
            again = run(cluster, "rebalance")
            assert (again.returncode, again.stdout) == (0, "") and "nothing moves" in again.stderr
            interrupted(cluster)
            done = run(cluster, "drain", "4", "--yes")
            assert done.returncode == 0, done.stderr + cluster.logs()
            assert held(cluster)[4] == 0 and held(cluster).total() == 24


def interrupted(cluster: Three) -> None:
    """`drain 4`, one partition at a time, until the first is gone."""
    words = ["cluster", "drain", "4", "--yes", "--at-once", "1", "-b", cluster.everywhere]
    process = subprocess.Popen(
        [sys.executable, "-m", "thermocline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ,
    )
    try:
        wait_until(lambda: held(cluster)[4] < 6, "the first has moved")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == INTERRUPTED, said
    assert "`thermocline cluster drain 4` resumes" in said and "Traceback" not in said
    assert held(cluster)[4] >= 4, "no more than one moves at a time"


def test_what_cannot_be_is_refused_and_what_moves_is_taken_back(directory_site: Site) -> None:
    """As many replicas as brokers: nothing begins. A move to a broker that stands still is taken back by --cancel."""
    with three(directory_site) as cluster:
        cluster.create("wide", replicas=3)
        *before, outside = cluster.controller(), *sorted({1, 2, 3} - {cluster.controller()})
        admin = AdminClient({"bootstrap.servers": cluster.everywhere, "log_level": 0})
        admin.create_topics([NewTopic("pair", 1, replica_assignment=[before])])["pair"].result(30)
        refused = run(cluster, "drain", "2", "--yes")
        assert refused.returncode == 1 and held(cluster)[2] > 0
        assert "wide-0: it has 3 replicas, and 2 other brokers have a session" in refused.stderr
        assert "start another broker on the bucket first" in refused.stderr
        cluster.pause(outside)
        try:
            host, _, port = cluster.brokers[before[0]].kafka.rpartition(":")
            with WireClient(host, int(port)) as client:
                assert alter(client, {("pair", 0): (before[0], outside)}) == {}
                assert under_way(client)["pair", 0].target == (before[0], outside)
            back = run(cluster, "drain", str(before[1]), "--cancel")
            assert back.returncode == 0 and "cancelled: 1 partition" in back.stderr, back.stderr
            row = cluster.rows("pair")[0]
            assert (row.replicas, row.target) == (tuple(before), ())
        finally:
            cluster.go_on(outside)
