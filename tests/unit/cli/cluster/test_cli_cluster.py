"""`thermocline cluster status`: what is said of one look at a cluster, for people and for programs."""

from __future__ import annotations

import json

from msgspec.structs import replace

from broker.observe.cluster_status import BrokerRow, PartitionRow
from broker.observe.standing import InCluster, LateReplica, ShownCondition
from thermocline.cli.cluster.findings import findings, notes
from thermocline.cli.cluster.forget import plan
from thermocline.cli.cluster.status import Cluster, ClusterState, json_lines, picture

CLUSTER = Cluster("c", 1, 4, 65_000, 12)
BROKERS = tuple(
    BrokerRow(node, "127.0.0.1", 9091 + node, None, True, node + 10, 1, 1, f"10.0.0.{node}:7000", f"boot {node}")
    for node in (1, 2, 3)
)
WELL = InCluster(12, 1, 4, 65_000, 900)
LOG = PartitionRow("log", 0, 1, 2, (1, 2, 3), (1, 2, 3), (), False, False, False, False)
OFFLINE = replace(LOG, leader=None, under_replicated=True, below_min=True, offline=True)


def away(*nodes: int) -> list[BrokerRow]:
    return [replace(one, active=one.node not in nodes) for one in BROKERS]


def test_all_well_is_said_and_nothing_found() -> None:
    """Since when the controller decides is only a least value where it did not answer itself."""
    seen = ClusterState(CLUSTER, BROKERS, [LOG], standings={1: WELL})
    assert findings(seen) == [] and notes(seen) == []
    lines = picture(seen, [], [])
    assert lines[0] == "cluster c; controller: broker 1 (epoch 4, for 1m5s); version 12; 1 partition"
    assert lines[-1] == "nothing is wrong"
    assert "log" not in "\n".join(lines[1:]), "a partition that lacks nothing is no row"
    assert "for 1m5s at least)" in picture(ClusterState(CLUSTER, BROKERS, [LOG], standings={2: WELL}), [], [])[0]


def test_each_thing_that_is_wrong_has_a_name_a_sentence_and_a_cure() -> None:
    """Worst first: nobody leads, begun uncleanly, acks=all refused, who is away, fewer replicas."""
    partitions = [
        replace(OFFLINE, partition=1, in_sync=(3,)),
        replace(LOG, partition=2, in_sync=(1, 3), under_replicated=True, below_min=True),
        replace(LOG, partition=3, in_sync=(1, 2), under_replicated=True),
        replace(LOG, partition=4, starting=True),
    ]
    seen = ClusterState(CLUSTER, away(3), partitions)
    found = findings(seen)
    assert [one.name for one in found] == ["no_leader", "recovering", "below_min", "under_replicated", "broker_away"]
    assert found[0].what == (
        "log-1: no leader, so neither written nor read: only broker 3 holds all acknowledged records, and it is away"
    )
    assert found[0].do == "start broker 3 again, on the same data directory"
    assert found[2].what.startswith("log-2: fewer in-sync replicas than min.insync.replicas")
    assert found[3].do.startswith("start broker 3 again, on the same data directory")
    assert found[4].what == "broker 3 (127.0.0.1:9094) has no session"
    shown = "\n".join(picture(seen, found, []))
    assert "away" in shown and "offline, below min, under-replicated" in shown and "  -> start broker 3 again" in shown


def test_nobody_leads_for_different_reasons() -> None:
    """All who hold everything are away; nobody holds everything any more; those who do are there and cannot lead."""
    partitions = [
        replace(OFFLINE, partition=0, in_sync=(2, 3)),
        replace(OFFLINE, partition=1, in_sync=(2, 3)),
        replace(OFFLINE, partition=2, in_sync=()),
        replace(OFFLINE, partition=3, in_sync=(1,)),
    ]
    first, *others = [one for one in findings(ClusterState(CLUSTER, away(2, 3), partitions)) if one.name == "no_leader"]
    assert first.what.startswith("log-0, log-1: ") and first.what.endswith(
        "only brokers 2, 3 hold all acknowledged records, and 2, 3 are away"
    )
    assert first.do == "start one of brokers 2, 3 again, on the same data directory"
    lost, stuck = others
    assert "lost its log" in lost.what
    assert lost.do.startswith("start brokers 2, 3 again: when all replicas have reported")
    assert stuck.what.endswith("broker 1 holds all acknowledged records, and cannot lead")
    many = [replace(OFFLINE, partition=index, in_sync=(index,), replicas=(index,)) for index in range(10, 40)]
    found = [one for one in findings(ClusterState(CLUSTER, BROKERS, many)) if one.name == "no_leader"]
    assert len(found) == 5 and "and 23 more" in found[-1].what, "as many sentences as a screen has room for"


def test_a_replica_that_lags_on_a_broker_that_is_there_is_waited_for() -> None:
    """How much it lacks, and for how long, stands in the row."""
    late = LateReplica("log", 0, 3, 1200, 5 << 20, 61_000)
    standing = replace(WELL, late=[late, replace(late, node=2, ms=400)])
    seen = ClusterState(
        CLUSTER, BROKERS, [replace(LOG, in_sync=(1, 2), under_replicated=True)], standings={1: standing}
    )
    (found,) = findings(seen)
    assert found.do.startswith("wait until the replicas that lag have caught up")
    row = next(line for line in "\n".join(picture(seen, [found], [])).splitlines() if line.startswith("log "))
    assert row.endswith("under-replicated  3: 1200 records, 5.0 MiB, for 1m1s"), "half a second is no lag"
    silent = replace(WELL, late=[replace(late, records=None, bytes=None)])
    shown = picture(ClusterState(CLUSTER, BROKERS, [LOG], standings={1: silent}), [], [])
    assert any("3: no fetch for 1m1s" in line for line in shown), "late in a partition that lacks nothing else"


def test_many_partitions_are_named_by_three_and_shown_by_twenty() -> None:
    lacking = [replace(LOG, partition=index, under_replicated=True, in_sync=(1,)) for index in range(25)]
    seen = ClusterState(CLUSTER, away(2), lacking)
    assert findings(seen)[0].what.startswith("log-0, log-1, log-2 and 22 more: ")
    assert "and 5 more (--json has all)" in picture(seen, [], [])


def test_who_decides_and_who_does_not_answer() -> None:
    """A controller without a session; brokers in session that are stopped; what a broker says of itself."""
    held = ShownCondition("store_unreachable", "the bucket does not answer")
    seen = ClusterState(CLUSTER, away(1), [], {2: "no answer from 127.0.0.1:9093"}, conditions={3: (held,)})
    found = findings(seen)
    assert [one.name for one in found] == ["no_controller", "broker_away", "broker_silent", "store_unreachable"]
    assert found[0].what.startswith("the controller, broker 1, has no session")
    assert found[2].what == "broker 2 has a session and does not answer here: no answer from 127.0.0.1:9093"
    assert found[3].what == "broker 3: store_unreachable: the bucket does not answer"
    assert findings(ClusterState(Cluster("c", None), BROKERS, []))[0].what.startswith("no broker is the controller")
    assert "another takes over" in findings(ClusterState(CLUSTER, BROKERS, [], {1: "no answer"}))[0].do


def test_a_broker_that_was_given_up_is_not_waited_for() -> None:
    """`cluster forget` named it: its directory counts for nothing, so none is asked for."""
    gone = [replace(one, given_up=not one.active) for one in away(2)]
    seen = ClusterState(CLUSTER, gone, [LOG])
    (found,) = findings(seen)
    assert "was given up" in found.what and "on any directory" in found.do
    assert any(" given up " in line for line in "\n".join(picture(seen, [], [])).splitlines())
    (found,) = findings(ClusterState(CLUSTER, away(2), [LOG]))
    assert found.do.endswith("thermocline cluster forget 2")


def test_what_all_brokers_say_is_one_finding() -> None:
    """The bucket is away from everybody: three sentences said the same. What must not be done now is said too."""
    held = {
        node: (ShownCondition("store_unreachable", f"the bucket does not answer; {node} tries"),) for node in (1, 2, 3)
    }
    (found,) = findings(ClusterState(CLUSTER, BROKERS, [LOG], conditions=held))
    assert found.what == "broker 1 (and 2, 3): store_unreachable: the bucket does not answer; 1 tries"
    assert found.do.endswith("restart no broker meanwhile")
    (alone,) = findings(ClusterState(CLUSTER, BROKERS[:1], [], conditions={1: held[1]}))
    assert alone.do == "see store_unreachable in docs/operations.md"


def test_nothing_is_said_twice() -> None:
    """A broker whose session ended is away, though the one that was asked first still lists it; and a condition that
    the image shows is the image's."""
    held = ShownCondition("under_replicated", "log-0: fewer in-sync replicas")
    seen = ClusterState(CLUSTER, away(2), [], {2: "no answer"}, conditions={1: (held,)})
    assert [one.name for one in findings(seen)] == ["broker_away"]


def test_a_broker_that_stays_behind_is_told() -> None:
    """It obeys an older version than another and hears no controller: cut off, most likely. One that was asked a moment
    before a commit is not."""
    seen = ClusterState(CLUSTER, BROKERS, [], standings={1: WELL, 2: replace(WELL, version=9, heartbeat_age_ms=44_000)})
    (found,) = findings(seen)
    assert found.name == "behind_cluster" and found.what == "broker 2 has applied version 9, but the newest is 12"
    assert any("44s ago" in line for line in "\n".join(picture(seen, [], [])).splitlines())
    assert findings(ClusterState(CLUSTER, BROKERS, [], standings={1: WELL, 2: replace(WELL, version=5)})) == []


def test_brokers_of_several_machines_must_not_reach_each_other_by_loopback() -> None:
    """The default address of the brokers' listener is for brokers of one machine."""
    local = [replace(one, machine="one boot", brokers_at=f"127.0.0.1:700{one.node}") for one in BROKERS[:2]]
    (found,) = findings(ClusterState(CLUSTER, [*local, BROKERS[2]], []))
    assert found.what.startswith("brokers 1, 2 can be reached by brokers of the same machine only, but the cluster has")
    assert "--internal" in found.do
    assert findings(ClusterState(CLUSTER, local, [])) == []


def test_what_is_not_wrong_and_should_be_known_is_noted() -> None:
    """Replicas that share a machine or a rack, strays, HTTP ports that cannot be reached; and no exit code comes of
    it."""
    together = [replace(one, machine="boot") for one in BROKERS]
    alone = replace(LOG, topic="alone", replicas=(1,), in_sync=(1,))
    assert notes(ClusterState(CLUSTER, together, [LOG, alone])) == [
        "log-0: all replicas are on one machine, and are lost with it"
    ]
    racks = [replace(one, rack="a" if one.node < 3 else "b") for one in together]
    assert notes(ClusterState(CLUSTER, racks, [LOG])) == []
    (note,) = notes(ClusterState(CLUSTER, racks, [replace(LOG, replicas=(1, 2))]))
    assert note == "log-0: all replicas are on rack a, and are lost with it"
    (note,) = notes(ClusterState(CLUSTER, racks, [replace(LOG, leader=2), LOG]))
    assert note.startswith("log-0: not led by the first replica, which could lead; ")
    assert notes(ClusterState(CLUSTER, away(1), [replace(LOG, leader=2)])) == [], "it could not"
    held = replace(WELL, throttled="a rate for all brokers, replicas of a", throttled_idle_ms=3_599_000)
    assert notes(ClusterState(CLUSTER, BROKERS, [LOG], standings={1: held})) == []
    longest = replace(held, throttled_idle_ms=3_900_000)
    (note,) = notes(ClusterState(CLUSTER, BROKERS, [LOG], standings={1: held, 2: longest}))
    assert note.startswith("replication is throttled (a rate for all brokers, replicas of a), and nothing has moved")
    assert " for 1h5m: " in note
    strays = replace(WELL, strays=["log-0.1-stray", "log-1.2-stray"])
    (note,) = notes(ClusterState(CLUSTER, BROKERS, [LOG], standings={2: strays}))
    assert note.startswith("broker 2: log-0.1-stray and 1 more on its disk")
    (note,) = notes(ClusterState(CLUSTER, BROKERS, [LOG], without_http=frozenset((1, 3))))
    assert note.startswith("the HTTP port of broker 1, 3 cannot be reached from here")
    seen = ClusterState(CLUSTER, together, [LOG])
    assert picture(seen, [], notes(seen))[-3:] == ["nothing is wrong", "", f"note: {notes(seen)[0]}"]


def test_a_broker_whose_http_port_refused_the_token_is_not_well() -> None:
    """Its columns were `-`, `conditions` was empty as if it had none, and the command said that nothing is wrong."""
    seen = ClusterState(CLUSTER, BROKERS, [LOG], token_refused=frozenset((1, 2)), conditions={3: ()})
    said = (
        "conditions of brokers 1, 2 are not known: their HTTP ports refused the token (`thermocline.http.token` of "
        "--command-config)"
    )
    assert findings(seen) == [] and notes(seen) == [said]
    shown = picture(seen, [], notes(seen))
    assert shown[-1] == f"note: {said}" and "nothing is wrong" not in "\n".join(shown)
    held = [row for row in map(json.loads, json_lines(seen, [], notes(seen))) if row["kind"] == "broker"]
    assert [(row["conditions"], row["answers"]) for row in held] == [(None, None), (None, None), ([], True)]
    away = ClusterState(CLUSTER, BROKERS, [LOG], without_http=frozenset((1,)))
    assert "nothing is wrong in what could be read" in picture(away, [], notes(away))


def test_json_is_an_object_a_line_with_the_names_of_the_contract() -> None:
    late = [LateReplica("log", 0, 2, 3, 400, 2500)]
    seen = ClusterState(
        CLUSTER, away(3), [replace(LOG, under_replicated=True)], standings={1: replace(WELL, late=late)}
    )
    found = [json.loads(line) for line in json_lines(seen, findings(seen), ["a note"])]
    by_kind = {line["kind"]: [name for name in line if name != "kind"] for line in found}
    broker = ["node", "host", "port", "rack", "active", "broker_epoch", "store_reachable", "leaders", "replicas"]
    partition = ["topic", "partition", "leader", "leader_epoch", "replicas", "in_sync", "target"]
    assert by_kind == {
        "cluster": ["cluster_id", "controller", "controller_epoch", "controller_for_ms", "version", "brokers_active"],
        "broker": [*broker, "answers", "version", "heartbeat_age_ms", "conditions"],
        "partition": [*partition, "under_replicated", "below_min", "offline", "starting", "late", "copies"],
        "finding": ["name", "what", "do"],
        "note": ["what"],
    }
    assert found[0]["brokers_active"] == 2
    (row,) = [line for line in found if line["kind"] == "partition"]
    assert row["late"] == [{"node": 2, "records": 3, "bytes": 400, "ms": 2500}]
    unknown = [json.loads(line) for line in json_lines(ClusterState(CLUSTER, BROKERS, [LOG]), [], [])]
    assert next(line for line in unknown if line["kind"] == "partition")["late"] is None


def test_who_is_given_up_and_what_each_partition_is_without_it() -> None:
    """Those that nobody else has all of come first: they begin without what it alone may hold."""
    partitions = [
        LOG,
        replace(OFFLINE, topic="orders", in_sync=(3,)),
        replace(OFFLINE, topic="orders", partition=1, in_sync=()),
        replace(LOG, topic="elsewhere", replicas=(1, 2), in_sync=(1, 2)),
    ]
    losses = plan(ClusterState(CLUSTER, away(3), partitions), 3)
    assert [(loss.topic, loss.partition, loss.is_emptied, loss.left) for loss in losses] == [
        ("orders", 0, True, ()),
        ("orders", 1, True, ()),
        ("log", 0, False, (1, 2)),
    ]
