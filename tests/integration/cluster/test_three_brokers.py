"""Three brokers agree through one directory bucket and nothing else: who belongs, who decides, what is led where.

Broker 1 comes first, so it decides. Every process is a real one; the image is read from `cluster.json` itself.
"""

from __future__ import annotations

import shutil

from broker.error_codes import ErrorCode
from broker.metadata.records import NO_LEADER
from broker.wire import messages
from broker.wire.apis import APIS, BROKERS_ONLY, ApiKey
from broker.wire.messages import FetchRequest, FetchRequestReplicaState, FetchResponse
from tests.support.clients.stock_clients import Written, read_confluent, write_confluent
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient

TOPIC = "events"
REFUSED = 3


def some(mark: str, count: int = 10) -> list[Written]:
    return [Written(None, f"{mark} {n}".encode()) for n in range(count)]


def test_three_brokers_register_and_leave(directory_site: Site) -> None:
    """Each has a session of its own; who is told to stop ends it in a commit, the controller last of all."""
    with three(directory_site) as cluster:
        image, controller = cluster.root()
        assert {n: node.active for n, node in image.nodes.items()} == {1: True, 2: True, 3: True}
        assert (controller.node_id, len({node.broker_epoch for node in image.nodes.values()})) == (1, 3)
        assert cluster.brokers[3].stop() == 0, cluster.logs()
        assert cluster.active().keys() == {1, 2}, "it left with its last word"
        assert cluster.brokers[1].stop() == 0
        wait_until(lambda: cluster.root()[1].node_id == 2, "the lease was released: another one decides")
        assert cluster.active().keys() == {2}
        assert cluster.brokers[2].stop() == 0


def test_cluster_d64_a_controller_that_is_killed_is_replaced_within_its_lease(cluster: Three) -> None:
    """kill -9: another claims, its session ends in that commit, and the third is heard by the new one."""
    before = cluster.root()[1]
    killed = before.node_id
    cluster.kill(killed)
    lease_s = float(str(cluster.site.settings["thermocline.lease.ms"])) / 1000
    wait_until(lambda: cluster.root()[1].epoch > before.epoch, "another controller", lease_s + 2)
    image, controller = cluster.root()
    assert controller.node_id != killed and not image.nodes[killed].active, cluster.logs()
    sessions = cluster.active()
    assert sessions.keys() == {1, 2, 3} - {killed}
    cluster.start(killed)
    cluster.wait_active(1, 2, 3)
    assert {n: cluster.active()[n] for n in sessions} == sessions, "nobody else lost his session"
    assert cluster.root()[1] == controller


def test_a_killed_brokers_partitions_wait_for_it(cluster: Three) -> None:
    """At replication factor 1: NO_LEADER when its session ended, led again by it when it is back, nothing lost."""
    cluster.create(TOPIC, 6, replicas=1)
    led = {index: row.leader for index, row in enumerate(cluster.rows(TOPIC))}
    assert set(led.values()) == {1, 2, 3}, "spread over brokers"
    for index in led:
        write_confluent(cluster.everywhere, TOPIC, index, some(f"p{index}"), "none", True)
    cluster.kill(3)
    cluster.wait_active(1, 2)
    for index, row in enumerate(cluster.rows(TOPIC)):
        assert row.leader == (NO_LEADER if led[index] == 3 else led[index])
        assert row.in_sync == (led[index],)
    cluster.start(3)
    cluster.wait_active(1, 2, 3)
    assert {index: row.leader for index, row in enumerate(cluster.rows(TOPIC))} == led
    found = read_confluent(cluster.everywhere, TOPIC, dict.fromkeys(led, 10))
    assert sorted(r.value or b"" for r in found) == sorted(w.value or b"" for i in led for w in some(f"p{i}"))


def test_cluster_d40_a_second_process_of_a_node_is_refused_while_the_first_lives(cluster: Three) -> None:
    """Another directory with the node id of a broker that is heard, the controller perhaps, and a copy of its
    directory: exit 3; the first serves on."""
    sessions = cluster.active()
    site = cluster.site
    shutil.copytree(site.data_dir("2"), site.data_dir("copied"))
    with (
        cluster.beside("another", 2) as another,
        cluster.beside("copied", 2) as copied,
    ):
        for second in (another, copied):
            assert second.wait(60) == REFUSED, second.log()
            assert "--take-over only if you know that it is dead" in second.log(), second.log()
    assert cluster.active() == sessions


def test_cluster_d57_a_client_is_not_answered_as_a_broker_is(cluster: Three) -> None:
    """CVE-2018-1288: on the port of clients, a live broker's id and epoch do not help; the sessions stand."""
    sessions = cluster.active()
    cluster.create("private", replicas=3)
    leader = cluster.rows("private")[0].leader
    follower = next(n for n in sessions if n != leader)
    host, _, port = cluster.brokers[leader].kafka.rpartition(":")
    as_replica = FetchRequestReplicaState(replica_id=follower, replica_epoch=sessions[follower])
    with WireClient(host, int(port)) as client:
        fetched = client.call(ApiKey.FETCH, FetchRequest(replica_state=as_replica, max_bytes=1000), FetchResponse)
        assert fetched.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for key in BROKERS_ONLY:
            assert client.version(ApiKey(key)) < 0, "not advertised to clients"
            request = getattr(messages, f"{APIS[ApiKey(key)].name}Request")()
            response = getattr(messages, f"{APIS[ApiKey(key)].name}Response")
            version = APIS[ApiKey(key)].version_max
            asked = client._exchange(ApiKey(key), version, request, response)  # a client that knows better
            assert asked.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ApiKey(key).name
    assert cluster.active() == sessions


def test_a_paused_broker_has_a_session_again_when_it_goes_on(cluster: Three) -> None:
    """SIGSTOP for longer than a session: it ends, and the same process begins another when it reads so."""
    before = cluster.active()
    cluster.pause(3)
    cluster.wait_active(1, 2)
    cluster.go_on(3)
    cluster.wait_active(1, 2, 3)
    assert cluster.active()[3] > max(before.values())
    assert cluster.stop(3) == 0
