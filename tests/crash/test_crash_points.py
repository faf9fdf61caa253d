"""SIGKILL between any two steps whose order matters, under load, in a real process (guarantees G1, G4, G7).

Each case arms one point of `thermocline debug crash-points`, drives the broker to it, and then looks at what is left:
with no broker, `bucket verify` finds no damage and `bucket gc` lists exactly what a listing minus the manifests says;
after a restart every acknowledged record is at its offset, and none is there twice.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from seams.crash_points import POINTS
from tests.support.clients.steady_load import SteadyLoad, assert_kept
from tests.support.clients.stock_clients import (
    alter_topic,
    commit_offset,
    create_topic,
    delete_topic,
    end_offsets,
    read_confluent,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import QUICK, Site, json_lines, seal, thermocline
from tests.support.store.bucket_books import by_names, orphans
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

KEPT, BRIEF, DOOMED, TABLE = "kept", "brief", "doomed", "table"
SETTINGS = {**QUICK, "thermocline.reservation.offsets": 200, "thermocline.seal.on.shutdown": "true"}
CLEANING = {"log.cleaner.backoff.ms": 100, "thermocline.cold.compaction.grace.ms": 500}
DEATH_S = 240.0
"""Alone, most points take 5 s and a page 40 s; on one core, shared with a busy process, 75 s and more. It only ends a
test whose point is never reached."""
PAUSE_S = 0.01
"""The rate of a table's load, not a wait: the cleaner's process has nice 10. A load that never rests left it 3 % of a
shared core, and its start took 176 s."""


@dataclass(frozen=True)
class Case:
    """How a point is reached. `at`: the how-manieth time kills. `also`: what happens beside the load."""

    at: int = 1
    also: Callable[[BrokerProcess], None] | None = None
    lose_disk: bool = False


def _commit(broker: BrokerProcess) -> None:
    for offset in range(1, 1000):
        commit_offset(broker.kafka, "group", KEPT, 0, offset)


def _create(broker: BrokerProcess) -> None:
    create_topic(broker.kafka, "new", 2)


def _delete(broker: BrokerProcess) -> None:
    delete_topic(broker.kafka, DOOMED)


def _delete_records(broker: BrokerProcess) -> None:
    for end in range(50, 100_000, 50):
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.delete_records([TopicPartition(BRIEF, 0, end)])[TopicPartition(BRIEF, 0)].result(20)


def _tiny_segments(broker: BrokerProcess) -> None:
    """About a segment a batch: hundreds of entries, more than the root holds."""
    alter_topic(broker.kafka, KEPT, internal_segment_bytes=3500)


def _terminate(broker: BrokerProcess) -> None:
    broker.process.send_signal(signal.SIGTERM)


def _switch_off(broker: BrokerProcess) -> None:
    """First expire what local retention had left to the bucket, then give up the rest."""
    alter_topic(broker.kafka, DOOMED, remote_storage_enable="false", remote_log_delete_on_disable="true")


def _fill_table(broker: BrokerProcess) -> None:
    """A compacted topic with few keys, whose cleaner always finds something."""
    config = {"cleanup.policy": "compact", "internal.segment.bytes": "8192", "min.cleanable.dirty.ratio": "0.01"}
    _fill(broker, config)


def _fill(broker: BrokerProcess, config: dict[str, str], records: int = 1_000_000) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(TABLE, 1, 1, config=config)])[TABLE].result(20)
    producer = Producer({"bootstrap.servers": broker.kafka, "acks": "all"})
    for number in range(records):
        producer.produce(TABLE, b"v%d" % number + b"x" * 100, b"k%d" % (number % 7))
        producer.poll(0)
        if number % 20 == 19:  # a batch is within a segment
            producer.flush(20)
            time.sleep(PAUSE_S)


def _fill_cold_table(broker: BrokerProcess) -> None:
    """The same, tiered: the bucket's cleaner finds something after each copy."""
    config = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "8192",
        "min.cleanable.dirty.ratio": "0.01",
        "remote.storage.enable": "true",
    }
    _fill(broker, config)


def _fold_then_compact(broker: BrokerProcess) -> None:
    """About 250 entries, a few more than the root holds, then what their page names is compacted."""
    config = {"internal.segment.bytes": "3500", "remote.storage.enable": "true"}
    _fill(broker, config, records=5_200)
    alter_topic(broker.kafka, TABLE, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")


def _check_table(broker: BrokerProcess) -> None:
    """A compacted log that was killed within a pass: offsets grow, keys agree with their values, none is missing."""
    records = read_confluent(broker.kafka, TABLE, end_offsets(broker.kafka, TABLE, 1))
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert {record.key for record in records} == {b"k%d" % number for number in range(7)}
    for record in records:
        assert record.key is not None and record.value is not None
        assert int(record.value.rstrip(b"x")[1:]) % 7 == int(record.key[1:])


TABLES = (_fill_table, _fill_cold_table, _fold_then_compact)
CASES: dict[str, Case] = {
    "append.written": Case(at=60),
    "flush.synced": Case(at=25),
    "roll.created": Case(at=4),
    "clean.written": Case(at=2, also=_fill_table),
    "clean.committed": Case(at=2, also=_fill_table),
    "clean.replaced": Case(at=2, also=_fill_table),
    "cold.read": Case(at=2, also=_fill_cold_table),
    "cold.written": Case(at=3, also=_fill_cold_table),
    "cold.uploaded": Case(at=3, also=_fill_cold_table),
    "cold.page_written": Case(also=_fold_then_compact),
    "cold.committed": Case(at=3, also=_fill_cold_table),
    "cold.replaced_deleted": Case(at=2, also=_fill_cold_table),
    "copy.checked": Case(at=3),
    "copy.uploaded": Case(at=3),
    "copy.page_written": Case(also=_tiny_segments),
    "copy.committed": Case(at=3),
    "copy.verified": Case(at=3),
    "expire.local_unlinked": Case(at=2),
    "expire.start_moved": Case(),
    "expire.object_deleted": Case(),
    "expire.withdrawn": Case(also=_switch_off),
    "expire.unnamed_deleted": Case(also=_switch_off),
    "reserve.committed": Case(at=2),
    "reserve.released": Case(also=_terminate),
    "claim.committed": Case(),
    "gap.appended": Case(lose_disk=True),
    "topic.committed": Case(also=_create),
    "topic.rooted": Case(also=_create),
    "topic.deleted": Case(also=_delete),
    "offsets.snapshot": Case(at=2, also=_commit),
    "shutdown.sealed": Case(also=_terminate),
    "shutdown.marked": Case(also=_terminate),
}


def test_every_listed_point_has_a_case() -> None:
    """`thermocline debug crash-points` lists one a line, and each is below."""
    listed = thermocline("debug", "crash-points")
    assert listed.returncode == 0
    assert listed.stdout.split() == list(POINTS)
    assert sorted(CASES) == sorted(POINTS)


def test_points_are_armed_in_testing_only(directory_site: Site) -> None:
    """Without `thermocline.testing=true` the variable does nothing, and says so."""
    with directory_site.broker(environment={"THERMOCLINE_CRASH_AT": "topic.committed"}) as broker:
        create_topic(broker.kafka, KEPT)
        assert broker.stop() == 0
        assert "THERMOCLINE_CRASH_AT is ignored" in broker.log()


@dataclass(frozen=True)
class Life:
    """A broker that ran, wrote to both tiers and was killed: its data directory, its objects, what it acknowledged."""

    data_dir: Path
    objects: dict[str, bytes]
    acked: dict[str, dict[int, bytes]]


@pytest.fixture(scope="session")
def life_before(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Lived once, copied for every case."""
    place = tmp_path_factory.mktemp("life")
    site = Site(place, DirectoryBucket(place / "bucket"), SETTINGS)
    with site.broker() as broker:
        small = {"internal_segment_bytes": 8192, "local_retention_bytes": 1}
        create_topic(broker.kafka, KEPT, **small)
        create_topic(broker.kafka, BRIEF, **small, retention_bytes=20_000)
        create_topic(broker.kafka, DOOMED, **small)
        commit_offset(broker.kafka, "group", KEPT, 0, 0)
        with SteadyLoad(broker.kafka, (KEPT, BRIEF, DOOMED)) as load:
            wait_until(lambda: load.acked_count >= 90, "the first records")
            load.stop(30)
        seal(broker)
        broker.kill()
    objects = {key: site.bucket.read(key) for key in site.bucket.listing()}
    return Life(site.data_dir(), objects, load.acked)


# On S3 `make test` dies beside an upload, a commit of each root and a deletion; the rest is for `make test-all`.
ON_S3 = {
    "claim.committed",
    "topic.committed",
    "reserve.committed",
    "copy.uploaded",
    "copy.committed",
    "expire.object_deleted",
}
# A page of a manifest takes hundreds of copies, each several requests of an S3 server that shares the cores.
PATIENT = pytest.mark.timeout(600)
MARKS = {"directory": (), "moto": (pytest.mark.slow, PATIENT), "versitygw": (pytest.mark.peer, PATIENT)}
CELLS = [
    pytest.param(kind, point, marks=() if kind == "moto" and point in ON_S3 else marks)
    for kind, marks in MARKS.items()
    for point in CASES
]


@pytest.mark.timeout(500)  # hundreds of copies and syncs, on a machine that does other work
@pytest.mark.parametrize(("bucket", "point"), CELLS, indirect=["bucket"])
def test_sigkill_at(point: str, site: Site, life_before: Life) -> None:
    """Nothing acknowledged under sync with acks=all is missing; what is left over is exactly what gc lists."""
    case = CASES[point]
    site.settings = SETTINGS | (CLEANING if case.also in TABLES else {})
    site.bucket.load(life_before.objects)
    shutil.copytree(life_before.data_dir, site.data_dir())
    if case.lose_disk:
        _lose_what_no_seal_gave_back(site)
    if site.bucket.proxy is not None and point == "copy.page_written":
        site.bucket.proxy.delay(0)  # hundreds of copies
    acked = {topic: dict(life_before.acked[topic]) for topic in (KEPT, BRIEF)}
    _die(site, point, case, acked)
    _check_bucket(site)
    with site.broker() as broker:
        _check_log(broker, acked)
        if case.also in TABLES:
            _check_table(broker)
        with SteadyLoad(broker.kafka, (KEPT,)) as load:
            wait_until(lambda: load.acked_count >= 20, "the broker takes writes again")
            load.stop(30)
        _merge(acked, load)
        seal(broker)
        _check_log(broker, acked)
        assert broker.stop() == 0, broker.log()
    _check_bucket(site)


def _lose_what_no_seal_gave_back(site: Site) -> None:
    """A broker with offsets to give is killed, and its disk is gone with what it appended: a gap has to be declared."""
    with site.broker() as broker:
        with SteadyLoad(broker.kafka, (KEPT,)) as load:
            wait_until(lambda: load.acked_count >= 1, "a record that the disk takes along")
            load.stop(30)
        broker.kill()
    shutil.rmtree(site.data_dir())


def _die(site: Site, point: str, case: Case, acked: dict[str, dict[int, bytes]]) -> None:
    """Start armed, load, do what leads to the point, and see the process killed by itself."""
    site.settings["thermocline.testing"] = "true"
    armed = {"THERMOCLINE_CRASH_AT": f"{point}:{case.at}"}
    with site.broker(environment=armed, wait_ready=False) as broker:
        if not _becomes_ready(broker):
            assert broker.wait() == -signal.SIGKILL, broker.log()
            return
        with SteadyLoad(broker.kafka, (KEPT, BRIEF)) as load:
            if case.also is not None:
                if case.also is _terminate:
                    wait_until(lambda: load.acked_count >= 50, "load before the stop")
                threading.Thread(target=_until_dead, args=(case.also, broker), daemon=True).start()
            try:
                assert broker.wait(DEATH_S) == -signal.SIGKILL, broker.log()
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{point} was not reached in {DEATH_S} s:\n{broker.log()[-6000:]}") from None
        _merge(acked, load)


def _becomes_ready(broker: BrokerProcess) -> bool:
    """The ready line, or False when the process ended before it."""
    assert broker.process.stdout is not None
    line = broker.process.stdout.readline()
    if not line:
        return False
    broker.ready = dict(part.split("=", 1) for part in line.split()[1:])
    return True


def _until_dead(action: Callable[[BrokerProcess], None], broker: BrokerProcess) -> None:
    with contextlib.suppress(KafkaException):
        action(broker)


def _merge(acked: dict[str, dict[int, bytes]], load: SteadyLoad) -> None:
    for topic, found in load.acked.items():
        both = acked[topic].keys() & found.keys()
        assert not both, f"offsets given twice: {sorted(both)[:5]}"
        acked[topic] |= found


def _check_bucket(site: Site) -> None:
    """With no broker running: nothing damaged, and gc finds what the books say, to the key."""
    verified = site.cli("bucket", "verify", site.bucket.url, "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    listed = site.cli("bucket", "gc", site.bucket.url, "--json")
    assert listed.returncode == 0, listed.stderr
    assert by_names(json_lines(listed.stdout)) == orphans(site.bucket)


def _check_log(broker: BrokerProcess, acked: dict[str, dict[int, bytes]]) -> None:
    """Every acknowledged record of the kept topic; of the brief one what its retention has left."""
    ends = end_offsets(broker.kafka, KEPT, 1)
    assert_kept(acked[KEPT], read_confluent(broker.kafka, KEPT, ends))
