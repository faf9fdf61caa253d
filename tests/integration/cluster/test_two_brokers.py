"""Two brokers on one bucket (design 1 "Who may serve a bucket", C1, C2, C19, C31; guarantee G8).

`old` served first. A pause is SIGSTOP, so the old broker neither knows that it slept nor what happened meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from broker.wire import codec, framing
from broker.wire.apis import ApiKey
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic
from tests.support.clients.steady_load import SteadyLoad, assert_kept
from tests.support.clients.stock_clients import (
    Written,
    create_topic,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.processes.broker_process import BrokerProcess, await_ready
from tests.support.processes.site import Site, json_lines, seal, status
from tests.support.store.bucket_books import by_names, orphans
from tests.support.store.buckets import manifest_of
from tests.support.store.s3_servers import Fault
from tests.support.waiting import wait_until

TOPIC = "events"
REFUSED = 3
HELD_BACK_S = 12.0
GONE_S = 10.0  # cli.md: a superseded broker is gone within 10 s while the store answers


def some(mark: str, count: int = 40) -> list[Written]:
    return [Written(None, f"{mark} {n} ".encode() + bytes(700)) for n in range(count)]


def start_old(broker: BrokerProcess) -> None:
    """A topic in both tiers."""
    create_topic(broker.kafka, TOPIC, internal_segment_bytes=40_000, local_retention_bytes=1)
    write_confluent(broker.kafka, TOPIC, 0, some("first"), "none", True)
    seal(broker)


def test_design_c31_the_second_broker_is_refused(directory_site: Site) -> None:
    """Another data directory, the same bucket, a lease that moves: exit 3 with the reason; the first serves on."""
    site = directory_site
    with site.broker("old") as old:
        start_old(old)
        with site.broker("new", wait_ready=False) as new:
            assert new.wait() == REFUSED
            assert "another broker serves this bucket" in new.log()
            assert new.process.stdout is not None
            assert new.process.stdout.read() == "", "no ready line"
        write_confluent(old.kafka, TOPIC, 0, some("more", 3), "none", True)
        assert len(read_confluent(old.kafka, TOPIC, {0: 43})) == 43
        assert old.stop() == 0


def test_the_same_data_directory_twice_is_refused(directory_site: Site) -> None:
    """The lock: a second broker on one data directory ends with exit 3 at once."""
    with directory_site.broker(), directory_site.broker(wait_ready=False) as second:
        assert second.wait() == REFUSED


def test_a_bucket_of_another_cluster_is_refused(directory_site: Site) -> None:
    """A data directory with logs and a bucket that is not theirs, empty or another cluster's."""
    site = directory_site
    with site.broker("old") as old:
        start_old(old)
        old.stop()
    site.bucket.move_aside()
    with site.broker("old", wait_ready=False) as lost:
        assert lost.wait() == REFUSED
        assert "no cluster.json" in lost.log()
    with site.broker("new") as new:
        new.stop()
    with site.broker("old", wait_ready=False) as foreign:
        assert foreign.wait() == REFUSED
        assert "belongs to cluster" in foreign.log()


def test_take_over_ends_a_broker_that_still_lives(site: Site) -> None:
    """`--take-over` is the operator's word; where it was wrong, the old one notices, answers nothing more, exits 3, and
    is refused when it is started again, with `--take-over` as well."""
    with site.broker("old") as old:
        start_old(old)
        with site.broker("new", "--take-over") as new:
            assert old.wait(GONE_S) == REFUSED
            assert "superseded" in old.log()
            end = end_offsets(new.kafka, TOPIC, 1)[0]
            assert len(read_confluent(new.kafka, TOPIC, {0: end})) == 40
            for flags in ((), ("--take-over",)):
                with site.broker("old", *flags, wait_ready=False) as again:
                    assert again.wait() == REFUSED
                    assert "has replaced this data directory" in again.log()
            write_confluent(new.kafka, TOPIC, 0, some("new", 3), "none", True)
            assert end_offsets(new.kafka, TOPIC, 1)[0] == end + 3
            assert new.stop() == 0


class Listener:
    """A connection to the old broker that was open before the pause, with requests sent during it."""

    def __init__(self, broker: BrokerProcess) -> None:
        host, _, port = broker.kafka.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self.ask()
        answers = self._socket.makefile("rb")
        size = int.from_bytes(answers.read(4), "big")
        assert len(answers.read(size)) == size, "answered before the pause"
        self._answers = answers

    def ask(self) -> None:
        partition = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
        topic = FetchRequestTopic(topic=TOPIC, partitions=[partition])
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=100_000, topics=[topic])
        body = codec.encode_request(ApiKey.FETCH, 11, request)
        for part in framing.request_frame(ApiKey.FETCH, 11, 7, "listener", body):
            self._socket.sendall(part)

    def heard(self) -> bytes:
        """What came until the connection ended."""
        try:
            return self._answers.read()
        except ConnectionError:
            return b""


def test_a_broker_paused_past_its_lease_changes_nothing_when_it_comes_back(site: Site) -> None:
    """SIGSTOP under load; another takes over when the lease stood still; SIGCONT: the old one answers nothing, its late
    uploads are garbage, its commits are refused, it exits 3. What it acknowledged before is in the bucket or declared
    lost; what the new one acknowledged is all there."""
    with site.broker("old") as old:
        start_old(old)
        listener = Listener(old)
        with SteadyLoad(old.kafka, (TOPIC,)) as load:
            wait_until(lambda: load.acked_count >= 200, "copies under way")
            _pause(old, site)
            load.stop(0)
        listener.ask()
        with site.broker("new") as new:
            before = manifest_of(site.bucket, TOPIC)[1]
            with SteadyLoad(new.kafka, (TOPIC,)) as newer:
                wait_until(lambda: newer.acked_count >= 50, "the new broker takes writes")
                os.kill(old.pid, signal.SIGCONT)
                assert old.wait(GONE_S) == REFUSED, old.log()
                newer.stop(30)
            assert listener.heard() == b"", "the old broker answered after the new one took over"
            assert "superseded" in old.log()
            _check_new(site, new, newer.acked[TOPIC], before)
            with site.broker("old", wait_ready=False) as again:
                assert again.wait() == REFUSED
            assert new.stop() == 0
    verified = site.cli("bucket", "verify", site.bucket.url, "--deep")
    assert verified.returncode == 0, verified.stdout
    listed = site.cli("bucket", "gc", site.bucket.url, "--json")
    assert by_names(json_lines(listed.stdout)) == orphans(site.bucket)


def _pause(broker: BrokerProcess, site: Site) -> None:
    """SIGSTOP, but not while it holds the lock of a root in a directory bucket: flock(2) cannot be broken from
    outside, so there a stopped process keeps its successor waiting until it goes on or is killed."""
    stripes = site.directory.glob("bucket/.thermocline/locks/*")
    inodes = {str(stripe.stat().st_ino) for stripe in stripes}

    def stopped_outside_a_commit() -> bool:
        os.kill(broker.pid, signal.SIGSTOP)
        locks = Path("/proc/locks").read_text().split()
        if not inodes & {word.rpartition(":")[2] for word in locks}:
            return True
        os.kill(broker.pid, signal.SIGCONT)
        return False

    wait_until(stopped_outside_a_commit, "a moment outside a commit")


def _check_new(site: Site, new: BrokerProcess, acked: dict[int, bytes], before: dict) -> None:
    """The new broker's log: its own records, above everything the old one may have given; only its own objects."""
    assert min(acked) >= before["reserved_end_offset"] - 2000
    seal(new)
    end = end_offsets(new.kafka, TOPIC, 1)[0]
    found = read_confluent(new.kafka, TOPIC, {0: end})
    loaded = [record for record in found if (record.value or b"").startswith(TOPIC.encode())]
    assert_kept(acked, loaded)
    _, manifest = manifest_of(site.bucket, TOPIC)
    epoch = manifest["leader_epoch"]
    late = [s for s in manifest["tail"] if s["base_offset"] >= before["remote_end_offset"]]
    assert late, "nothing was copied by the new broker"
    assert {s["leader_epoch"] for s in late} == {epoch}, "an object of the old epoch was added after the take-over"


def _create_in_vain(broker: BrokerProcess) -> None:
    with contextlib.suppress(KafkaException):
        create_topic(broker.kafka, "in-vain")


@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
@pytest.mark.parametrize("what", ["segments/", "manifest.json", "cluster.json", "lease.json"])
def test_writes_that_land_after_the_take_over_change_nothing(site: Site, what: str) -> None:
    """Uploads, commits and reservations of the old broker that the network held back reach the store long after the new
    one took over (fault O5): roots refuse them, objects stay unnamed."""
    proxy = site.bucket.proxy
    assert proxy is not None
    with site.broker("old") as old:
        start_old(old)
        proxy.forget()
        proxy.faults(Fault("late", method="PUT", match=what, seconds=HELD_BACK_S, times=3))
        if what == "cluster.json":
            threading.Thread(target=_create_in_vain, args=(old,), daemon=True).start()
        with SteadyLoad(old.kafka, (TOPIC,)) as load:
            wait_until(lambda: proxy.hits()[0] > 0, f"a PUT of {what} held back")
            old.kill()
            load.stop(0)
        proxy.faults()
        with site.broker("new", "--take-over") as new:
            assert not [r for r in proxy.requests() if r.method == "LATE"], "a slow machine: HELD_BACK_S is too short"
            with SteadyLoad(new.kafka, (TOPIC,)) as newer:
                wait_until(lambda: [r for r in proxy.requests() if r.method == "LATE"], "the held-back write arrives")
                wait_until(lambda: newer.acked_count >= 30, "the new broker takes writes")
                newer.stop(30)
            late = [r for r in proxy.requests() if r.method == "LATE"]
            if what != "segments/":
                assert {r.status for r in late} <= {412, 409}, late
            seal(new)
            end = end_offsets(new.kafka, TOPIC, 1)[0]
            found = read_confluent(new.kafka, TOPIC, {0: end})
            assert_kept(newer.acked[TOPIC], [r for r in found if (r.value or b"").startswith(TOPIC.encode())])
            assert status(new, TOPIC)[0]["blocked_by"] is None
            assert new.stop() == 0
    assert site.cli("bucket", "verify", site.bucket.url, "--deep").returncode == 0


def test_a_pause_with_nobody_else_about_is_no_reason_to_go(directory_site: Site) -> None:
    """SIGSTOP and SIGCONT with nobody else about: after a poll that found it in session it serves on."""
    with directory_site.broker() as broker:
        start_old(broker)
        os.kill(broker.pid, signal.SIGSTOP)
        lease_s = float(str(directory_site.settings["thermocline.lease.ms"])) / 1000
        over = time.monotonic() + 1.5 * lease_s  # a stopped process shows nothing: the time itself is the condition
        wait_until(lambda: time.monotonic() > over, "longer than a lease")
        os.kill(broker.pid, signal.SIGCONT)
        write_confluent(broker.kafka, TOPIC, 0, some("after", 3), "none", True)
        assert len(read_confluent(broker.kafka, TOPIC, {0: 43})) == 43
        assert "still in session" in broker.log()
        assert broker.stop() == 0


def test_the_http_port_of_a_waiting_broker_is_silent(directory_site: Site) -> None:
    """A broker that waits for a lease is not ready: no ready line, no port that says otherwise."""
    site = directory_site
    with site.broker("old") as old:
        start_old(old)
        old.kill()  # the lease is not released: the replacement waits until it stood still
    with site.broker("new", wait_ready=False) as new:
        await_ready(new)
        host, _, port = new.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        assert "did not renew its lease" in new.log()
