"""`thermocline cluster status`: what is said of one look at a cluster, for people and for programs."""

from __future__ import annotations

import json

from msgspec.structs import replace

from thermocline.cli.cluster_findings import findings
from thermocline.cli.cluster_status import Broker, Cluster, Partition, Seen, json_lines, picture
from thermocline.cli.tier_status import Condition

CLUSTER = Cluster("c", 1, 4, 65_000, 12)
BROKERS = tuple(
    Broker(node, "127.0.0.1", 9091 + node, None, True, node + 10, True, 1, 1, f"127.0.0.1:{7000 + node}", "boot")
    for node in (1, 2, 3)
)
PARTITION_PLACE = ["topic", "partition", "leader", "leader_epoch", "replicas", "in_sync", "target"]
PARTITION_STATE = ["under_replicated", "below_min", "offline", "starting"]
LOG = Partition("log", 0, 1, 2, (1, 2, 3), (1, 2, 3), (), False, False, False, False)


def away(*nodes: int) -> list[Broker]:
    return [replace(one, active=one.node not in nodes) for one in BROKERS]


def test_all_well_is_said_and_nothing_found() -> None:
    seen = Seen(CLUSTER, BROKERS, [LOG])
    assert findings(seen) == []
    lines = picture(seen, [])
    assert lines[0] == "cluster c; controller: broker 1 (epoch 4, for 1m5s at least); version 12; 1 partition"
    assert lines[-1] == "nothing is wrong"
    assert "log" not in "\n".join(lines[1:]), "a partition that lacks nothing is no row"


def test_each_thing_that_is_wrong_has_a_sentence_and_a_cure() -> None:
    """Worst first: nobody leads, acks=all refused, fewer replicas, who is away."""
    partitions = [
        replace(LOG, partition=1, leader=None, in_sync=(3,), under_replicated=True, below_min=True, offline=True),
        replace(LOG, partition=2, in_sync=(1, 3), under_replicated=True, below_min=True),
        replace(LOG, partition=3, in_sync=(1, 2), under_replicated=True),
        replace(LOG, partition=4, starting=True),
    ]
    seen = Seen(CLUSTER, away(3), partitions)
    assert [(one.what, one.do.split(":")[0].split(",")[0]) for one in findings(seen)] == [
        ("log-1: no leader, so neither written nor read", "start broker 3 again"),
        ("log-4: begun by a leader that may lack acknowledged records, and not done yet", "wait; when it lasts"),
        ("log-2: below min.insync.replicas, so writes with acks=all are refused", "start broker 3 again"),
        ("log-3: fewer in-sync replicas than assigned ones", "start broker 3 again"),
        ("broker 3 (127.0.0.1:9094) has no session", "start it again on its data directory"),
    ]
    shown = "\n".join(picture(seen, findings(seen)))
    assert "away" in shown and "offline, below min, under-replicated" in shown and "  -> start broker 3 again" in shown


def test_a_replica_that_lags_on_a_broker_that_is_there_is_waited_for() -> None:
    (found,) = findings(Seen(CLUSTER, BROKERS, [replace(LOG, in_sync=(1, 2), under_replicated=True)]))
    assert found.do.startswith("wait until the replicas that lag have caught up")


def test_many_partitions_are_named_by_three_and_shown_by_twenty() -> None:
    lacking = [replace(LOG, partition=index, under_replicated=True, in_sync=(1,)) for index in range(25)]
    seen = Seen(CLUSTER, away(2), lacking)
    assert findings(seen)[0].what.startswith("log-0, log-1, log-2 and 22 more: ")
    assert "and 5 more (--json has all)" in picture(seen, [])


def test_who_decides_and_who_does_not_answer() -> None:
    """A controller without a session; a broker in session that is stopped; what a broker says of itself."""
    held = Condition("store_unreachable", "the bucket does not answer")
    seen = Seen(CLUSTER, away(1), [], {2: "no answer from 127.0.0.1:9093"}, {3: (held,)})
    found = [one.what for one in findings(seen)]
    assert found[0].startswith("broker 1, which has no session, is the controller")
    assert found[2] == "broker 2 has a session and does not answer here: no answer from 127.0.0.1:9093"
    assert found[3] == "broker 3: store_unreachable: the bucket does not answer"
    assert findings(Seen(Cluster("c", None), BROKERS, []))[0].what.startswith("nobody is the controller")


def test_brokers_of_several_machines_must_not_reach_each_other_by_loopback() -> None:
    """The default address of the brokers' listener is for brokers of one machine."""
    other = replace(BROKERS[2], machine="another boot", brokers_at="10.0.0.5:7003")
    (found,) = findings(Seen(CLUSTER, [*BROKERS[:2], other], []))
    assert found.what == "brokers 1, 2 can be reached by brokers of the same machine only, and there are others"
    assert "--internal" in found.do
    assert findings(Seen(CLUSTER, [*away(1, 2)[:2], other], []))[-1].what != found.what


def test_json_is_an_object_a_line_with_the_names_of_the_contract() -> None:
    seen = Seen(CLUSTER, away(3), [replace(LOG, under_replicated=True)])
    found = [json.loads(line) for line in json_lines(seen, findings(seen))]
    by_kind = {line["kind"]: [name for name in line if name != "kind"] for line in found}
    assert by_kind == {
        "cluster": ["cluster_id", "controller", "controller_epoch", "controller_for_ms", "version", "brokers_active"],
        "broker": ["node", "host", "port", "rack", "active", "broker_epoch", "store_reachable", "leaders", "replicas"],
        "partition": [*PARTITION_PLACE, *PARTITION_STATE],
        "finding": ["what", "do"],
    }
    assert found[0]["brokers_active"] == 2
