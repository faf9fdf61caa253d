"""A broker's place in the evidence tests: a data directory, a bucket, and small, quick settings.

Owns the settings that make a few MiB exercise both tiers. Everything it reports is observed from outside: the status
page, `ListOffsets`, files in the data directory.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.wire.apis import ApiKey
from broker.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.store.buckets import Bucket, manifest_of
from tests.support.waiting import wait_until
from thermocline.cli.clients.connection_properties import use
from thermocline.cli.clients.wire_client import WireClient
from thermocline.cli.main import main

# Short intervals, so that a test waits for events and not for clocks; leases long enough for a busy machine.
QUICK: Mapping[str, object] = {
    "thermocline.lease.ms": 1500,
    "thermocline.lease.interval.ms": 300,
    "thermocline.reservation.offsets": 1000,
    "thermocline.gc.grace.ms": 200,
    "thermocline.offsets.snapshot.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.retention.ms": -1,
    "remote.log.manager.task.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
}


@dataclass
class Site:
    """`directory`/broker-<n> are data directories; the bucket is shared by all brokers of the site.

    `environment`: of all its brokers, for settings that hold a secret.
    """

    directory: Path
    bucket: Bucket
    settings: dict[str, object] = field(default_factory=lambda: dict(QUICK))
    environment: dict[str, str] = field(default_factory=dict)

    def data_dir(self, name: str = "a") -> Path:
        return self.directory / f"broker-{name}"

    @contextlib.contextmanager
    def broker(
        self,
        name: str = "a",
        *flags: str,
        environment: Mapping[str, str] | None = None,
        wait_ready: bool = True,
        listen: str | None = "127.0.0.1:0",
        bucket_url: str | None = None,
    ) -> Iterator[BrokerProcess]:
        """A broker on data directory `name`, killed at the end unless it ended already.

        `listen` None: the settings say where. `bucket_url`: another way to the same bucket.
        """
        with running_broker(
            self.data_dir(name),
            bucket_url or self.bucket.url,
            *flags,
            listen=listen,
            settings=self.settings,
            environment={**self.bucket.environment, **self.environment, **(environment or {})},
            wait_ready=wait_ready,
        ) as broker:
            yield broker

    def lose_data_dir(self, name: str = "a") -> None:
        """rm -rf."""
        shutil.rmtree(self.data_dir(name))

    def local_log_files(self, topic: str, name: str = "a") -> list[Path]:
        """The `.log` files with bytes in them, of all partitions; the broker may delete some while we look."""
        return sorted(f for f in self.data_dir(name).glob(f"{topic}-*/*.log") if _bytes_in(f))

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`thermocline …` with the bucket's credentials, in this process: a start costs more than most commands."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.update(self.bucket.environment)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(arguments)
        finally:
            use(None, [])  # a process that runs one command keeps its client configuration
            os.environ.clear()
            os.environ.update(before)
        return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


def thermocline(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 60, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; its outcome as text."""
    return subprocess.run(
        [sys.executable, "-m", "thermocline", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def status(broker: BrokerProcess, topic: str) -> list[dict]:
    """The partitions of `topic` as /status shows them, by index."""
    with urllib.request.urlopen(f"http://{broker.http}/status", timeout=30) as answer:
        return sorted((p for p in json.load(answer) if p["topic"] == topic), key=lambda p: p["partition"])


def seal(broker: BrokerProcess) -> None:
    """As `tier seal --wait`: everything is in the bucket when this returns."""
    request = urllib.request.Request(
        f"http://{broker.http}/tier/seal",
        data=json.dumps({"wait": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=90).read()


def wait_copied(broker: BrokerProcess, topic: str) -> list[dict]:
    """Until every sealed segment is in the bucket; the status then."""

    def copied() -> list[dict]:
        found = status(broker, topic)
        return found if found and not any(p["copy_lag_bytes"] for p in found) else []

    return wait_until(copied, f"{topic} copied")


def wait_snapshot(bucket: Bucket, end: int) -> None:
    """Until the bucket holds a snapshot of the group offsets that covers `end` offsets of `__consumer_offsets`."""

    def covered() -> bool:
        snapshot = manifest_of(bucket, "__consumer_offsets")[1].get("snapshot")
        return snapshot is not None and snapshot["end_offset"] >= end

    wait_until(covered, "group offsets in the bucket")


def init_producer_id(bootstrap: str) -> int:
    """A new producer id, as an idempotent producer asks for one."""
    host, _, port = bootstrap.rpartition(":")
    with WireClient(host, int(port)) as client:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = client.call(ApiKey.INIT_PRODUCER_ID, request, InitProducerIdResponse)
    assert answer.error_code == 0
    return answer.producer_id


def _bytes_in(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
