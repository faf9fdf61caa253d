"""The data directory is gone, the bucket is not (design 6 "a lost tail", C7, C30; G2, G4; fault R1).

The old broker is killed, so that the tail above the last copied segment is really lost and its reservation was not
given back; the second test is the planned replacement, where nothing may be lost.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from tests.support.clients.stock_clients import (
    READS,
    Record,
    Written,
    commit_offset,
    committed_offset,
    create_topic,
    digest,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.processes.site import Site, init_producer_id, json_lines, status, wait_copied, wait_snapshot
from tests.support.store.buckets import manifest_of
from tests.support.waiting import wait_until

TOPIC = "events"
GROUP = "readers"
BLOCK = 1000  # thermocline.reservation.offsets of the site


def records(count: int, mark: str = "r") -> list[Written]:
    """`count` records of about 1 KB."""
    return [
        Written(b"%d" % n, f"{mark}-{n}-".encode() + bytes(1000), 1_700_000_000_000 + n, (("n", b"%d" % n),))
        for n in range(count)
    ]


def below(found: list[Record], end: int) -> list[Record]:
    return [record for record in found if record.offset < end]


def test_a_lost_disk_costs_the_tail_and_never_an_offset(site: Site) -> None:
    """Same digest below the remote end; the hole is named; no offset and no producer id is given twice; a group inside
    the hole goes on; every client of the matrix reaches the end with nothing produced since."""
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, internal_segment_bytes=65536)
        write_confluent(broker.kafka, TOPIC, 0, records(300), "none", True)
        before = read_confluent(broker.kafka, TOPIC, {0: 300})
        (at,) = wait_copied(broker, TOPIC)
        assert 0 < at["remote_end_offset"] < 300, "some of the log must be in the tail that gets lost"
        commit_offset(broker.kafka, GROUP, TOPIC, 0, 299)
        wait_snapshot(site.bucket, end_offsets(broker.kafka, "__consumer_offsets", 1)[0])
        producer_ids = [init_producer_id(broker.kafka) for _ in range(3)]
        broker.kill()
    site.lose_data_dir()
    remote_end = manifest_of(site.bucket, TOPIC)[1]["remote_end_offset"]
    given_end = manifest_of(site.bucket, TOPIC)[1]["reserved_end_offset"]
    assert given_end >= 300

    with site.broker() as broker:
        wait_until(lambda: status(broker, TOPIC)[0]["gaps"], "the gap in the bucket")
        shown = json_lines(site.cli("tier", "status", "-b", broker.kafka, "--topic", TOPIC, "--json").stdout)
        assert shown[0]["gaps"] == [[remote_end, given_end]]
        assert end_offsets(broker.kafka, TOPIC, 1) == {0: given_end}
        assert site.local_log_files(TOPIC)  # the gap itself; nothing below it
        assert all(int(file.stem) >= remote_end for file in site.local_log_files(TOPIC))
        for client, (read, _) in READS.items():
            again = read(broker.kafka, TOPIC, {0: given_end})
            assert digest(again) == digest(below(before, remote_end)), client
        assert committed_offset(broker.kafka, GROUP, TOPIC, 0) == 299
        assert init_producer_id(broker.kafka) > max(producer_ids)
        _the_group_goes_on(broker.kafka, given_end)
        # The hole is log like any other: sealed, copied, and still a declared gap for those who only have the bucket.
        assert site.cli("tier", "seal", "-b", broker.kafka, "--wait").returncode == 0
        assert manifest_of(site.bucket, TOPIC)[1]["gaps"] == [[remote_end, given_end]]
    verified = site.cli("bucket", "verify", site.bucket.url, "--deep")
    assert verified.returncode == 0, verified.stdout
    assert "declared gap" in verified.stdout.replace("_", " ")


def _the_group_goes_on(bootstrap: str, given_end: int) -> None:
    """A consumer of the group, whose committed offset lies in the hole, gets the next record and nothing else."""
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "error"}
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    try:
        write_confluent(bootstrap, TOPIC, 0, records(3, "after"), "none", True)
        found = []

        def read() -> bool:
            found.extend(consumer.consume(10, timeout=0.2))
            assert not [message.error() for message in found if message.error()]
            return len(found) >= 3

        wait_until(read, "the group reads what came after the hole")
    finally:
        consumer.close()
    assert [message.offset() for message in found] == [given_end, given_end + 1, given_end + 2]
    assert found[0].value() == records(1, "after")[0].value


def test_a_second_lost_disk_loses_nothing_that_was_copied(site: Site) -> None:
    """Offsets only grow over two losses, and each hole is named."""
    ends = []
    for life in range(3):
        with site.broker() as broker:
            if life == 0:
                create_topic(broker.kafka, TOPIC)
            write_confluent(broker.kafka, TOPIC, 0, records(20, f"life-{life}"), "none", True)
            if life < 2:
                assert site.cli("tier", "seal", "-b", broker.kafka, "--wait").returncode == 0
                write_confluent(broker.kafka, TOPIC, 0, records(5, "lost"), "none", True)
                ends.append(end_offsets(broker.kafka, TOPIC, 1)[0])
                broker.kill()
                site.lose_data_dir()
            else:
                end = end_offsets(broker.kafka, TOPIC, 1)[0]
                found = read_confluent(broker.kafka, TOPIC, {0: end})
                wait_until(lambda: len(status(broker, TOPIC)[0]["gaps"]) == 2, "both gaps in the bucket")
                (shown,) = status(broker, TOPIC)
    lives = [record.value.split(b"-")[1] for record in found]
    assert lives == [b"0"] * 20 + [b"1"] * 20 + [b"2"] * 20, "what was copied is there, what was not is not"
    assert [record.offset for record in found][:20] == list(range(20))
    assert found[20].offset > ends[0] - 1
    assert found[40].offset > ends[1] - 1
    assert shown["gaps"] == [[20, found[20].offset], [found[39].offset + 1, found[40].offset]]


def test_a_planned_replacement_loses_nothing_and_leaves_no_hole(site: Site) -> None:
    """`thermocline.seal.on.shutdown`, SIGTERM, rm -rf, a new broker on the bucket alone: the same log, no gap."""
    site.settings["thermocline.seal.on.shutdown"] = "true"
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, 2, internal_segment_bytes=65536)
        for partition in range(2):
            write_confluent(broker.kafka, TOPIC, partition, records(200), "zstd", True)
        before = read_confluent(broker.kafka, TOPIC, {0: 200, 1: 200})
        commit_offset(broker.kafka, GROUP, TOPIC, 1, 200)
        assert broker.stop() == 0, broker.log()
    site.lose_data_dir()
    with site.broker() as broker:
        assert end_offsets(broker.kafka, TOPIC, 2) == {0: 200, 1: 200}
        assert site.local_log_files(TOPIC) == []
        for client, (read, _) in READS.items():
            assert digest(read(broker.kafka, TOPIC, {0: 200, 1: 200})) == digest(before), client
        assert [partition["gaps"] for partition in status(broker, TOPIC)] == [[], []]
        assert committed_offset(broker.kafka, GROUP, TOPIC, 1) == 200
        write_confluent(broker.kafka, TOPIC, 0, records(1), "none", True)
        assert end_offsets(broker.kafka, TOPIC, 2) == {0: 201, 1: 200}


@pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL"])
def test_seal_then_a_lost_machine_is_a_planned_replacement_too(directory_site: Site, way: str) -> None:
    """`tier seal --wait`, then a clean stop or none: the reservation is given back, so no hole either. A producer
    between two seals is served as ever."""
    site = directory_site
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, 5)
        for number in (0, 1):
            write_confluent(broker.kafka, TOPIC, number, records(50), "none", True)
            assert site.cli("tier", "seal", "-b", broker.kafka, "--wait").returncode == 0
        write_confluent(broker.kafka, TOPIC, 0, records(1), "none", True)
        assert site.cli("tier", "seal", "-b", broker.kafka, "--wait").returncode == 0
        if way == "SIGTERM":
            assert broker.stop() == 0
        else:
            broker.kill()
    site.lose_data_dir()
    with site.broker() as broker:
        assert end_offsets(broker.kafka, TOPIC, 5) == {0: 51, 1: 50, 2: 0, 3: 0, 4: 0}
        assert [partition["gaps"] for partition in status(broker, TOPIC)] == [[]] * 5
        assert f"{TOPIC}: what" not in broker.log() and "clock jumped" not in broker.log()
