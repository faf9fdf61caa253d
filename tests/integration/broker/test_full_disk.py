"""A real broker on a file system that is really full: filled by somebody else, and at a machine restart."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from hotstore.host.ballast import BALLAST_FILE
from tests.support.processes import operations_kit as kit
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.waiting import wait_until
from tiering.opening.reservation import RESERVATION_FILE, decode_reservation, encode_reservation

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
RECORDS = 22


def local_bytes(broker: BrokerProcess) -> float:
    return kit.metrics_of(broker)[f'thermocline_local_bytes{{topic="{kit.TOPIC}"}}']


def read_all(broker: BrokerProcess) -> int:
    return len(kit.cli("consume", "-t", kit.TOPIC, "-b", broker.kafka, "-o", "beginning", "-e", "-f", "%o\n").split())


def of_an_earlier_machine_run(path: Path) -> None:
    """Write another boot id into a reservation, in place: as a machine restart makes it look."""
    found = decode_reservation(path.read_bytes())
    assert found is not None
    data = encode_reservation(replace(found, boot_id="00000000-0000-4000-8000-000000000000"))
    assert len(data) == path.stat().st_size
    with open(path, "r+b") as file:
        file.write(data)


def deleted_files_held(broker: BrokerProcess) -> list[str]:
    """Their disk space is taken until their descriptors are closed."""
    found = []
    for descriptor in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(descriptor))
    return [path for path in found if path.endswith(" (deleted)")]


def test_what_expired_is_free_at_once(tmp_path: Path) -> None:
    """Not when Python's collector of cycles comes by: it took ten minutes in the soak that found it."""
    with running_broker(tmp_path / "data", f"file://{tmp_path}/bucket", settings=kit.QUICK) as broker:
        kit.create(broker, "local.retention.ms=1")
        for _ in range(RECORDS):
            assert kit.produce(broker)[0] == 0
        wait_until(lambda: kit.metrics_of(broker)["thermocline_verified_segments_total"] >= 4, "sunk")
        wait_until(lambda: local_bytes(broker) < 2 * kit.SEGMENT, "expired")
        wait_until(lambda: not deleted_files_held(broker), "closed", 5)


@needs_root
@pytest.mark.parametrize("flush", ["sync", "os"])
def test_what_is_in_the_bucket_leaves_a_full_disk_and_a_restart_gets_through(tmp_path: Path, flush: str) -> None:
    """Copied segments go though no byte is free, and appends go on beside somebody else's files. Full again, without
    the ballast, a clean start after a machine restart is ready, serves every record, and takes appends with space."""
    settings = kit.QUICK | {"thermocline.flush": flush}
    bucket = f"file://{tmp_path}/bucket"
    with kit.small_disk(tmp_path / "data", 64 * kit.MIB) as disk:
        with running_broker(disk, bucket, settings=settings) as broker:
            kit.create(broker, "local.retention.ms=-1")
            for _ in range(RECORDS):
                assert kit.produce(broker)[0] == 0
            wait_until(lambda: kit.metrics_of(broker)["thermocline_verified_segments_total"] >= 5, "copied", 60)
            assert read_all(broker) == RECORDS, "makes the offsets topic, too"
            assert local_bytes(broker) > 5 * kit.SEGMENT * 0.8
            kit.fill(disk / "somebody-elses")
            wait_until(lambda: local_bytes(broker) < 2 * kit.SEGMENT, "given back", 60)
            kit.produce_until(broker, lambda code: code == 0, "goes on")
            assert "failed" not in broker.log()
            assert broker.stop() == 0
        of_an_earlier_machine_run(disk / f"{kit.TOPIC}-0" / RESERVATION_FILE)
        (disk / BALLAST_FILE).unlink()
        kit.fill(disk / "more")
        with running_broker(disk, bucket, settings=settings) as broker:
            assert read_all(broker) == RECORDS + 1
            acked = RECORDS + 1
            while kit.produce(broker)[0] == 0:  # it gave copied bytes back meanwhile
                acked += 1
                kit.fill(disk / f"more-{acked}")
                assert acked < RECORDS + 20, "never full"
            for file in disk.glob("more*"):
                file.unlink()
            kit.produce_until(broker, lambda code: code == 0, "goes on")
            assert read_all(broker) == acked + 1
            assert "failed" not in broker.log() and "Traceback" not in broker.log()
            assert broker.stop() == 0
