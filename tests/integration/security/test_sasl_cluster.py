"""Three brokers that log in to one another by SCRAM: a kill, a replacement, sessions that end; and a hunt for secrets
in all that they say."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.sasl_site import BROKER, PASSWORD, client, command_config, write_properties
from tests.support.processes.site import QUICK, json_lines, thermocline
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300)]


@contextlib.contextmanager
def node(directory: Path, config: Path, node_id: int, data: str | None = None) -> Iterator[BrokerProcess]:
    with running_broker(
        directory / (data or f"broker-{node_id}"),
        f"file://{directory}/bucket",
        *("--node-id", str(node_id), "--config", str(config)),
        listen=None,
        settings=QUICK,
    ) as found:
        yield found


def test_a_cluster_over_scram_survives_a_kill_and_a_replacement(tmp_path: Path) -> None:
    """With sessions of brokers' links that end every two seconds; everything acknowledged is read at the end."""
    (tmp_path / "bucket").mkdir()
    config = write_properties(
        tmp_path,
        "default.replication.factor=3",
        "min.insync.replicas=2",
        "offsets.topic.replication.factor=3",
        "listener.name.in.connections.max.reauth.ms=2000",
    )
    admin = command_config(tmp_path, "SCRAM-SHA-512", BROKER)
    with contextlib.ExitStack() as stack:
        brokers = {one: stack.enter_context(node(tmp_path, config, one)) for one in (1, 2, 3)}
        everywhere = ",".join(broker.kafka for broker in brokers.values())
        flags = ("--command-config", str(admin))
        made = thermocline("topic", "create", "t", "-p", "3", "-r", "3", "-b", everywhere, *flags)
        assert made.returncode == 0, made.stderr
        acknowledged: list[bytes] = []
        producer = Producer({"bootstrap.servers": everywhere, "acks": "all"} | client("SCRAM-SHA-512", BROKER))

        def produce(count: int) -> None:
            for _ in range(count):
                value = str(len(acknowledged)).encode()
                producer.produce("t", value, on_delivery=lambda e, m: None if e else acknowledged.append(m.value()))
                assert producer.flush(60) == 0

        produce(50)
        brokers[1].kill()
        produce(50)
        brokers[4] = stack.enter_context(node(tmp_path, config, 1, "replacement"))
        bootstrap = f"{brokers[2].kafka},{brokers[3].kafka},{brokers[4].kafka}"
        produce(50)

        def whole() -> bool:
            found = thermocline("cluster", "status", "--json", "-b", bootstrap, *flags)
            rows = [row for row in json_lines(found.stdout) if row["kind"] == "partition" and row["topic"] == "t"]
            return len(rows) == 3 and all(len(row["in_sync"]) == 3 for row in rows)

        wait_until(whole, "the replacement to be in sync", 120)
        read = thermocline("consume", "-t", "t", "-o", "beginning", "-e", "-b", bootstrap, *flags)
        assert {line.encode() for line in read.stdout.split()} >= set(acknowledged) and len(acknowledged) == 150
        brokers_logs = "".join(broker.log() for broker in brokers.values())
        assert "login failed" not in brokers_logs and "login-failed" not in brokers_logs, brokers_logs[-3000:]


def test_no_secret_is_in_anything_that_a_broker_or_a_command_says(tmp_path: Path) -> None:
    """S9: logs at debug, errors, every page of HTTP, DescribeConfigs, process arguments, the bucket, the data
    directory."""
    config = write_properties(tmp_path)
    admin = command_config(tmp_path, "SCRAM-SHA-512", BROKER)
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD + "\n")
    said: dict[str, str] = {}
    data = tmp_path / "place"
    with running_broker(
        data / "broker", None, "--config", str(config), "--log-level", "debug", listen=None, settings=QUICK
    ) as broker:
        here = ("-b", broker.kafka)
        flags = ("--command-config", str(admin))
        commands = [
            ("user", "add", "carol", "--password-file", str(password_file), *here, *flags),
            ("user", "list", "--json", *here, *flags),
            ("topic", "create", "t", *here, *flags),
            (
                "topic",
                "list",
                *here,
                "-X",
                "security.protocol=SASL_PLAINTEXT",
                "-X",
                "sasl.mechanism=PLAIN",
                "-X",
                "sasl.username=alice",
                "-X",
                f"sasl.password={PASSWORD}",
            ),
            ("topic", "list", *here, "-X", f"sasl.pasword={PASSWORD}"),
            ("topic", "list", *here, "-X", "sasl.username=nobody", "-X", f"sasl.password={PASSWORD}", *flags),
            ("cluster", "status", *here, *flags),
            (
                "serve",
                "--data-dir",
                str(tmp_path / "x"),
                "--config",
                str(config),
                "--set",
                f"sasl.jaas.config={PASSWORD}",
            ),
        ]
        for command in commands:
            done = thermocline(*command)
            said[" ".join(command[:2])] = done.stdout + done.stderr
        client_admin = AdminClient({"bootstrap.servers": broker.kafka} | client("PLAIN"))
        resource = ConfigResource(ResourceType.BROKER, "1")
        said["DescribeConfigs"] = repr(
            {
                name: entry.value
                for name, entry in client_admin.describe_configs([resource])[resource].result(30).items()
            }
        )
        for page in ("status", "broker", "cluster", "metrics", "readyz", "healthz"):
            with contextlib.suppress(OSError):
                said[page] = urllib.request.urlopen(f"http://{broker.http}/{page}", timeout=10).read().decode()
        said["arguments"] = Path(f"/proc/{broker.pid}/cmdline").read_text()
        said["log"] = broker.log()
        broker.stop()
        said["log at the end"] = broker.log()
    for folder, _, files in os.walk(data):
        for name in files:
            said[f"{folder}/{name}"] = Path(folder, name).read_bytes().decode("latin-1")
    assert len(said["log"]) > 1000 and "t-0" in "".join(said) and len(said) > 15
    leaks = [where for where, text in said.items() if re.search(re.escape(PASSWORD), text)]
    assert leaks == []
