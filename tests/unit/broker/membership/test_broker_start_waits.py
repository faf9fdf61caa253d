"""A start that cannot listen touches nothing; one that waits says for what, and how long that may take."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.membership.lease_watch import Lease, LeaseWatch
from broker.membership.session import Refused
from tests.support.brokers.broker_kit import Life, Place
from tests.support.fast_loop import HOUR_S, run_fast


async def refused(place: Place, life: Life, port: int) -> None:
    """The start of `life` ends because somebody else has its port."""
    place.net.listeners["127.0.0.1", port] = object()  # type: ignore[assignment]
    with pytest.raises(Refused, match=r"cannot listen: .* choose another with --listen"):
        await life.start()
    del place.net.listeners["127.0.0.1", port]


async def test_a_start_that_cannot_listen_leaves_disk_and_bucket_as_they_were() -> None:
    """It formatted both, took the clean-shutdown marker away, and kept a lease that the next start waited for."""
    place = Place()
    await refused(place, place.make(port=9500), 9500)
    assert place.disk.list_dir("/") == [] and not place.memory.objects
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"x")
    await life.stop()
    objects = dict(place.memory.objects)
    await refused(place, place.make(port=9500), 9500)
    assert place.memory.objects == objects
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None
    life = await place.start()
    assert await life.read_all("log") == [(0, b"x")]
    await life.stop()


@pytest.mark.not_fast
@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_serve_on_a_taken_port_makes_no_directory(tmp_path: Path, flag: str) -> None:
    """The same with real sockets: exit 3, one line with what to do, and nothing on disk."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {"--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", flag: address}
        command = [sys.executable, "-m", "thermocline", "serve", "--data-dir", str(tmp_path / "data")]
        command += ["--bucket", f"file://{tmp_path}/bucket", *(part for pair in flags.items() for part in pair)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "cannot listen: [Errno 98]" in done.stderr and f"choose another with {flag}" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "stop what uses the address, or choose another with --listen"),
        (errno.EADDRNOTAVAIL, "not an address of this machine"),
        (errno.EACCES, "choose a higher one with --listen"),
        (-2, "choose another address with --listen"),  # getaddrinfo: a name that nobody knows
    ],
)
async def test_what_to_do_depends_on_why_it_cannot_listen(number: int, advice: str) -> None:
    """Until 2026-11-22 whoever gave another machine's address was told to stop what used it."""
    place = Place()
    life = place.make(port=9500)
    failed = OSError(number, "no")

    async def bind(*_: object) -> None:
        raise failed

    place.net.bind = bind  # type: ignore[method-assign, assignment]
    with pytest.raises(Refused) as refused:
        await life.start()
    said = str(refused.value)
    assert advice in said and ("stop what uses" in said) == (number == errno.EADDRINUSE)


async def test_a_port_that_is_bound_and_not_served_yet_refuses_connections() -> None:
    """Clients of a broker that still waits for its bucket go to another bootstrap address at once."""
    place = Place()
    place.store.down = True
    life = place.make(port=9500)
    coming = asyncio.get_running_loop().create_task(life.start())
    await asyncio.sleep(5)
    with pytest.raises(ConnectionRefusedError):
        await place.net.connect("127.0.0.1", 9500, asyncio.Protocol(), 5.0)
    place.store.down = False
    await coming
    await place.net.connect("127.0.0.1", 9500, asyncio.Protocol(), 5.0)
    await life.crash()


def test_waiting_for_a_lease_counts_down(caplog: pytest.LogCaptureFixture) -> None:
    """How long it may still take, in the log and on /readyz, less from line to line."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.crash()
        place.lose_disk()
        life = place.make(directory="b")
        coming = asyncio.get_running_loop().create_task(life.start())
        await asyncio.sleep(2)
        assert re.search(r"takes over in \d+ s if the lease is not renewed", life.broker.views.not_ready())
        await coming
        await life.stop()

    with caplog.at_level(logging.INFO):
        run_fast(scenario(), timeout_s=HOUR_S)
    said = [record.getMessage() for record in caplog.records if "takes over in" in record.getMessage()]
    left = [int(re.findall(r"takes over in (\d+) s", line)[0]) for line in said]
    assert len(left) >= 3
    assert left == sorted(set(left), reverse=True), said


def test_what_is_left_follows_the_lease() -> None:
    """A beat begins the whole lease anew, but not the time after which it counts as another broker's."""
    watch = LeaseWatch(10.0)
    watch.polled(Lease(1, "a", 1), 100.0)
    assert watch.left_s() == (10.0, 20.0)
    watch.polled(Lease(1, "a", 1), 104.0)
    assert watch.left_s() == (6.0, 16.0)
    watch.polled(Lease(1, "a", 2), 108.0)
    assert watch.left_s() == (10.0, 12.0)
    watch.polled(Lease(1, "a", 3, lease_ms=30_000), 109.0)
    assert watch.left_s() == (30.0, 51.0), "the holder's lease is longer than ours"


def test_opening_many_logs_counts(caplog: pytest.LogCaptureFixture) -> None:
    """On a store that takes its time: partitions that are open, of all."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.create("log", 8)
        await life.create("gol", 8)
        await life.crash()
        place.lose_disk()
        place.store.plan = type(place.store.plan)(latency_s=(5.0, 6.0))
        life = place.make(take_over=True)
        await life.start()
        place.store.calm()
        await life.crash()

    with caplog.at_level(logging.INFO):
        run_fast(scenario(), timeout_s=HOUR_S)
    said = [line for record in caplog.records if (line := record.getMessage()).startswith("opening logs: ")]
    assert len(said) >= 2
    assert all(re.fullmatch(r"opening logs: \d+ of 16 partitions", line) for line in said), said
