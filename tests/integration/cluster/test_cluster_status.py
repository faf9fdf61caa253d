"""`thermocline cluster status` with three real brokers: from any of them, at the worst of times, with one address.

The controller is killed, a follower stopped, the bucket taken away. What the command says is what an operator has then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.clients.writing import Writing
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.operations_kit import metrics_of
from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.processes.three_brokers import Three, three
from tests.support.repository import ROOT
from thermocline.cli.clients.wire_client import WireClient

TOPIC = "ledger"


@dataclass
class Look:
    """One look from one address."""

    code: int
    lines: list[dict]

    def of(self, kind: str) -> list[dict]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def cluster(self) -> dict:
        (found,) = self.of("cluster")
        return found

    @property
    def names(self) -> set[str]:
        return {finding["name"] for finding in self.of("finding")}

    def broker(self, node_id: int) -> dict:
        return next(line for line in self.of("broker") if line["node"] == node_id)

    def partition(self) -> dict:
        return next(line for line in self.of("partition") if line["topic"] == TOPIC)


def look(broker: BrokerProcess) -> Look:
    """As an operator types it, with the address of one broker."""
    done = thermocline("cluster", "status", "--json", "-b", broker.kafka)
    assert done.returncode in (0, 5), done.stderr
    return Look(done.returncode, json_lines(done.stdout))


def until(cluster: Three, broker: BrokerProcess, holds: Callable[[Look], bool], what: str) -> Look:
    seen: list[Look] = []

    def happened() -> bool:
        seen.append(look(broker))
        return holds(seen[-1])

    try:
        cluster.wait(happened, what)
    except AssertionError as never:
        raise AssertionError(f"{seen[-1].lines}\n{never}") from None
    return seen[-1]


def check_printed(logs: str) -> None:
    """docs/operations.md, what the log says: each line is there, and no event is told again and again."""
    page = (ROOT / "docs/operations.md").read_text()
    (quoted,) = re.findall(r"<!-- printed:.*?-->\n```text\n(.*?)```", page, re.S)
    for line in quoted.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))).replace(r"\ ", " +"))
        told = [one for one in logs.splitlines() if pattern.search(one)]
        assert 1 <= len(told) <= 9, f"{line}: {len(told)} times\n{logs}"


def test_from_any_broker_and_while_the_controller_is_dead(directory_site: Site) -> None:
    """The same picture at one version; whoever died is named, at once and when its session is over; the figures of
    /metrics agree with it, each partition counted by one broker."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2)
        looks = [until(cluster, one, lambda it: it.code == 0, "all is well") for one in cluster.brokers.values()]
        assert len({(it.cluster["version"], it.cluster["controller"]) for it in looks}) == 1
        for broker in cluster.brokers.values():
            host, _, port = broker.kafka.rpartition(":")
            with WireClient(host, int(port)) as client:
                assert (TOPIC, 0) in client.log_sizes(), "DescribeLogDirs left out what is copied"
        assert all(it.names == set() and it.cluster["brokers_active"] == 3 for it in looks)
        assert [note["what"] for note in looks[0].of("note")] == [
            f"{TOPIC}-0: all replicas are on one machine, and are lost with it"
        ]
        controller = looks[0].cluster["controller"]
        cluster.kill(controller)
        first, second = left = [cluster.brokers[node] for node in sorted(cluster.alive())]
        at_once = look(first)
        assert at_once.code == 5 and {"broker_silent", "broker_away"} & at_once.names
        changed = until(cluster, second, lambda it: it.cluster["controller"] != controller, "another decides")
        away = until(cluster, first, lambda it: "broker_away" in it.names, "its session is over")
        assert "broker_silent" not in away.names and away.broker(controller)["active"] is False
        assert away.names >= {"under_replicated"} and away.partition()["leader"] in cluster.alive()
        assert away.cluster["controller_for_ms"] < looks[0].cluster["controller_for_ms"] + 60_000
        assert away.cluster["controller_epoch"] == changed.cluster["controller_epoch"]
        figures = [metrics_of(broker) for broker in left]
        summed = {name: sum(one[f"thermocline_{name}"] for one in figures) for name in (
            "is_controller", "sessions", "under_replicated_partitions", "leaderless_partitions", "leaders"
        )}  # fmt: skip
        assert summed == {
            "is_controller": 1,
            "sessions": 2,
            "under_replicated_partitions": 1,
            "leaderless_partitions": 0,
            "leaders": 1,
        }
        held = [one['thermocline_condition{name="broker_away"}'] for one in figures]
        assert sorted(held) == [0, 1], "told by the controller alone"
        cluster.start(controller)
        until(cluster, first, lambda it: it.code == 0, "it is back, and copied what it lacked")
        check_printed("".join(broker.log() for broker in [*left, cluster.brokers[controller]]))


def test_a_follower_that_is_stopped_is_late_and_then_away(directory_site: Site) -> None:
    """How many records it lacks, and since when, as its leader knows it; it is in the set until then."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC)
        seen = until(cluster, cluster.brokers[1], lambda it: it.code == 0, "all is well")
        leader = seen.partition()["leader"]
        stopped = next(node for node in cluster.brokers if node not in (leader, seen.cluster["controller"]))
        cluster.pause(stopped)
        try:
            writing = Writing(cluster.brokers[leader].kafka, TOPIC)
            writing.write("late", 500)
            late = until(cluster, cluster.brokers[leader], lambda it: bool(it.partition()["late"]), "it is late")
            (one,) = late.partition()["late"]
            assert one["node"] == stopped and one["bytes"] > 0 and 0 < one["records"] <= 500
            until(cluster, cluster.brokers[leader], lambda it: "broker_away" in it.names, "its session is over")
        finally:
            cluster.go_on(stopped)
        writing.flush()
        until(cluster, cluster.brokers[leader], lambda it: it.code == 0, "it caught up")


def test_while_the_bucket_is_away(directory_site: Site) -> None:
    """Brokers answer from what they know, and say what is missing; when it is back nothing is left of it."""
    with three(directory_site) as cluster:
        cluster.create(TOPIC, min_insync_replicas=2)
        until(cluster, cluster.brokers[1], lambda it: it.code == 0, "all is well")
        directory_site.bucket.move_aside()
        one = cluster.brokers[2]
        gone = until(cluster, one, lambda it: "store_unreachable" in it.names, "the bucket is missed")
        assert gone.partition()["leader"] in cluster.brokers
        assert not all(broker["store_reachable"] for broker in gone.of("broker"))
        directory_site.bucket.put_back()
        until(cluster, one, lambda it: it.code == 0, "all is well again")
