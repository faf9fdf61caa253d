"""What an idle partition and an idle connection cost a real broker, at a tenth of what bench/many.py measures."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from broker.wire.apis import ApiKey
from broker.wire.codec import encode_request
from broker.wire.framing import request_frame
from broker.wire.messages import ApiVersionsRequest
from tests.support.clients.stock_clients import create_topic
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site
from tests.support.waiting import wait_until

CONNECTIONS = 400
PARTITIONS = 500
KIB_PER_CONNECTION_MAX = 20.0
KIB_PER_PARTITION_MAX = 40.0
IDLE_CPU_MAX = 0.05


def private_kib(broker: BrokerProcess) -> int:
    """Memory that is the broker's alone."""
    text = Path(f"/proc/{broker.pid}/smaps_rollup").read_text()
    return sum(int(found) for found in re.findall(r"^Private_(?:Clean|Dirty): +(\d+) kB", text, re.MULTILINE))


def connected(broker: BrokerProcess) -> socket.socket:
    """A connection that asked something once."""
    host, port = broker.kafka.rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), 10)
    hello = ApiVersionsRequest(client_software_name="many", client_software_version="1")
    peer.sendall(
        b"".join(request_frame(ApiKey.API_VERSIONS, 3, 1, "many", encode_request(ApiKey.API_VERSIONS, 3, hello)))
    )
    size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
    assert len(peer.recv(size, socket.MSG_WAITALL)) == size
    return peer


def test_an_idle_connection_costs_little(directory_site: Site) -> None:
    """Its buffers come from a pool while a request is read, and go back."""
    with directory_site.broker() as broker:
        opened = [connected(broker) for _ in range(20)]  # what the first ones load, the others share
        before = private_kib(broker)
        opened += [connected(broker) for _ in range(CONNECTIONS)]
        each = (private_kib(broker) - before) / CONNECTIONS
        for peer in opened:
            peer.close()
        assert each <= KIB_PER_CONNECTION_MAX


def test_an_idle_partition_costs_little_memory_and_no_cpu(directory_site: Site) -> None:
    """Log, tier, indexes and jobs of each; and once they are made, nothing runs for them."""
    for interval in ("log.retention.check.interval.ms", "remote.log.manager.task.interval.ms"):
        directory_site.settings.pop(interval)  # the defaults
    with directory_site.broker() as broker:
        create_topic(broker.kafka, "warm", 20)
        before = private_kib(broker)
        create_topic(broker.kafka, "many", PARTITIONS)
        assert (private_kib(broker) - before) / PARTITIONS <= KIB_PER_PARTITION_MAX
        wait_until(lambda: idle_cpu(broker) <= IDLE_CPU_MAX, "idle", 60)


def idle_cpu(broker: BrokerProcess, seconds: float = 2.0) -> float:
    """Share of a core over a time in which nobody asks anything."""
    began, spent = time.monotonic(), _cpu_s(broker)
    wait_until(lambda: time.monotonic() - began >= seconds, "a while", seconds + 5)
    return (_cpu_s(broker) - spent) / (time.monotonic() - began)


def _cpu_s(broker: BrokerProcess) -> float:
    fields = Path(f"/proc/{broker.pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9
