"""`thermocline serve --brokers N` with real processes: what the supervisor promises, each broker ended by its pid."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.stock_clients import Written, create_topic, read_confluent, write_confluent
from tests.support.processes.broker_process import BrokerProcess, running_broker, start_broker
from tests.support.processes.operations_kit import cli, lines_with
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)


def pids(broker: BrokerProcess, node_id: int) -> list[int]:
    """Every process that was this broker, the last one last."""
    return [int(pid) for pid in re.findall(rf"broker {node_id} is process (\d+)", broker.log())]


def lives(pid: int) -> bool:
    """It runs: not a process that ended and waits for its parent to hear of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def of_one(tmp_path: Path) -> Path:
    """A directory that holds broker 1 of several."""
    home = tmp_path / "data"
    with running_broker(home / "broker-1", f"file://{tmp_path}/bucket") as broker:
        cli("topic", "create", "events", "-p", "1", "-b", broker.kafka)
        assert broker.stop() == 0
    return home


def test_cluster_d58_a_port_that_is_taken_is_named_before_anything_starts(tmp_path: Path) -> None:
    """The third broker's: exit 3, and neither a directory nor a bucket was made."""
    with contextlib.ExitStack() as held:
        first, others = ports_in_a_row(3)
        taken = held.enter_context(socket.create_server(("127.0.0.1", others[-1])))
        broker = start_broker(tmp_path / "data", None, "--brokers", "3", wait_ready=False, listen=f"127.0.0.1:{first}")
        assert broker.wait() == 3
        assert f"broker 3 cannot listen on 127.0.0.1:{taken.getsockname()[1]} (--listen)" in broker.log()
    assert not (tmp_path / "data").exists() and not (tmp_path / "data-bucket").exists()


def ports_in_a_row(count: int) -> tuple[int, list[int]]:
    """The first of so many ports that are free, and the others."""
    while True:
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                others = [
                    held.enter_context(socket.create_server(("127.0.0.1", first + index))).getsockname()[1]
                    for index in range(1, count)
                ]
            except (OSError, OverflowError):
                continue
            return first, others


def test_a_broker_that_is_killed_comes_back_where_it_was(tmp_path: Path) -> None:
    """On the ports it had picked; a clean stop ends it and its supervisor; its lines say whose they are."""
    home = of_one(tmp_path)
    with running_broker(home, f"file://{tmp_path}/bucket", "--brokers", "1") as broker:
        assert (broker.ready["node"], broker.ready["data"]) == ("1", str(home))
        (first,) = pids(broker, 1)
        assert first != broker.pid
        os.kill(first, signal.SIGKILL)
        serves = f"broker 1 serves: kafka={broker.kafka} http={broker.http}"
        wait_until(lambda: broker.log().count(serves) == 2, "serving again")
        assert "events" in cli("topic", "list", "-b", broker.kafka)
        second = pids(broker, 1)[-1]
        assert second != first and not lives(first)
        assert broker.stop() == 0
        assert not lives(second)
    assert lines_with(broker.log(), f"broker 1 (process {first}) ended by signal 9 (Killed)")
    starts = lines_with(broker.log(), f"thermocline.serve: thermocline 0.1.0, pid {second}")
    assert starts[0].startswith("broker-1 2")
    assert (home / "broker-1" / ".kafka_cleanshutdown").exists()


def test_no_broker_outlives_its_supervisor(tmp_path: Path) -> None:
    """kill -9 of the supervisor: its broker stops by itself, in order."""
    home = of_one(tmp_path)
    with running_broker(home, f"file://{tmp_path}/bucket", "--brokers", "1") as broker:
        (child,) = pids(broker, 1)
        broker.kill()
        wait_until(lambda: not lives(child), "gone")
    assert lines_with(broker.log(), "stopping: the supervisor asked for it, or has ended")
    assert (home / "broker-1" / ".kafka_cleanshutdown").exists()


def test_a_broker_that_is_refused_ends_all_with_its_code(tmp_path: Path) -> None:
    """Logs without their bucket: nobody tries again."""
    home = of_one(tmp_path)
    broker = start_broker(home, f"file://{tmp_path}/another", "--brokers", "1", wait_ready=False)
    assert broker.wait() == 3
    assert lines_with(broker.log(), "refused to serve") and lines_with(broker.log(), "ended with exit code 3")
    assert len(pids(broker, 1)) == 1


def test_a_terminal_reaches_the_supervisor_alone_and_its_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """^C goes to a group of processes, and would be the brokers' second word. One that does not obey is killed."""
    home = of_one(tmp_path)
    with running_broker(home, f"file://{tmp_path}/bucket", "--brokers", "1") as broker:
        (child,) = pids(broker, 1)
        assert os.getpgid(child) != os.getpgid(broker.pid)
        os.kill(child, signal.SIGSTOP)
        broker.process.send_signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: stopping 1 broker" in broker.log(), "told to stop")
        broker.process.send_signal(signal.SIGTERM)
        assert broker.wait() == 1
        assert not lives(child)
    assert lines_with(broker.log(), "second SIGTERM: stopping at once")


def test_brokers_that_were_started_together_are_not_one(tmp_path: Path) -> None:
    """Without --brokers, exit 2: a lone broker there would replace the first by an empty one."""
    home = of_one(tmp_path)
    broker = start_broker(home, f"file://{tmp_path}/bucket", wait_ready=False)
    assert broker.wait() == 2
    assert "holds brokers 1, started by --brokers" in broker.log()
    alone = start_broker(home / "broker-1", f"file://{tmp_path}/bucket", "--brokers", "2", wait_ready=False)
    assert alone.wait() == 2
    assert "holds the log of one broker" in alone.log()
    with running_broker(home, f"file://{tmp_path}/bucket", "--brokers", "auto") as again:
        assert again.ready["node"] == "1"
        assert again.stop() == 0


# -- three of them -----------------------------------------------------------------------------------------------------


def status(broker: BrokerProcess, *flags: str) -> tuple[int, str]:
    """Exit code and output of `cluster status`."""
    command = [sys.executable, "-m", "thermocline", "cluster", "status", "-b", broker.kafka, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def seen(broker: BrokerProcess, kind: str) -> list[dict[str, Any]]:
    """Lines of one kind of `cluster status --json`."""
    found = [json.loads(line) for line in status(broker, "--json")[1].splitlines()]
    return [line for line in found if line["kind"] == kind]


def test_three_brokers_by_one_command(tmp_path: Path) -> None:
    """One ready line; partitions are led by all three; what one of them holds is there again when it is; a clean stop
    ends them all, and the same command starts them on what they hold."""
    home, bucket = tmp_path / "data", f"file://{tmp_path}/bucket"
    with running_broker(home, bucket, "--brokers", "3") as broker:
        assert broker.ready["node"] == "1-3"
        addresses = [broker.ready[name].split(",") for name in ("kafka", "http")]
        assert [len(set(each)) for each in addresses] == [3, 3]
        assert sorted(path.name for path in home.iterdir()) == ["broker-1", "broker-2", "broker-3"]
        assert status(broker)[0] == 0, status(broker)
        assert [line["active"] for line in seen(broker, "broker")] == [True] * 3
        create_topic(broker.kafka, "events", 6)
        led = {line["partition"]: line["leader"] for line in seen(broker, "partition") if line["topic"] == "events"}
        assert set(led.values()) == {1, 2, 3}, "leaders are spread over processes"
        sent = {index: [Written(None, f"{index}-{n}".encode()) for n in range(20)] for index in led}
        for index, records in sent.items():
            write_confluent(broker.kafka, "events", index, records, "none", True)

        first = pids(broker, 2)[-1]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: broker.log().count("broker 2 serves") == 2, "broker 2 again")
        wait_until(lambda: status(broker)[0] == 0, "all of it again")
        assert read(broker, led) == {index: [each.value for each in records] for index, records in sent.items()}
        cli("tier", "seal", "--wait", "-b", broker.kafka)
        rows = [json.loads(line) for line in cli("tier", "status", "--json", "-b", broker.kafka).splitlines()]
        assert [(row["remote_end_offset"], row["high_watermark"]) for row in rows] == [(20, 20)] * 6, "of every broker"
        children = [pids(broker, node_id)[-1] for node_id in (1, 2, 3)]
        assert broker.stop() == 0
        assert not any(lives(child) for child in children)
    with running_broker(home, bucket, "--brokers", "auto") as again:
        assert again.ready["node"] == "1-3"
        assert read(again, led) == {index: [each.value for each in records] for index, records in sent.items()}
        assert again.stop() == 0


def read(broker: BrokerProcess, led: Mapping[int, int]) -> dict[int, list[bytes | None]]:
    found = read_confluent(broker.kafka, "events", dict.fromkeys(led, 20))
    return {index: [each.value for each in found if each.partition == index] for index in led}


def test_a_broker_that_is_stopped_is_named_with_what_to_do(tmp_path: Path) -> None:
    """`cluster status` while one of three does not answer: exit 5, from any of the others; 0 when it goes on."""
    with running_broker(tmp_path / "data", f"file://{tmp_path}/bucket", "--brokers", "3") as broker:
        (child,) = pids(broker, 3)
        os.kill(child, signal.SIGSTOP)
        code, said = status(broker)
        assert code == 5 and "broker 3 has a session and does not answer here" in said
        os.kill(child, signal.SIGCONT)
        wait_until(lambda: status(broker)[0] == 0, "nothing is wrong")
        assert broker.stop() == 0
