"""`thermocline group` against a running broker: what it shows, what it moves, what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer

from tests.support.clients.stock_clients import (
    Written,
    commit_offset,
    committed_offset,
    create_topic,
    end_offsets,
    write_confluent,
)
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, json_lines
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

TOPIC, HOUR_MS = "orders", 3_600_000
FIRST_MS = 1_700_000_000_000
LIST_FIELDS = ["group", "state", "simple"]
DESCRIBE_FIELDS = [
    "group",
    "state",
    "topic",
    "partition",
    "committed_offset",
    "log_end_offset",
    "lag",
    "member_id",
    "client_id",
    "host",
]
RESET_FIELDS = ["group", "topic", "partition", "committed_offset", "new_offset", "executed"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, BrokerProcess]]:
    """Two partitions of 10 records, an hour apart; the tests use groups of their own."""
    home = tmp_path_factory.mktemp("groups")
    site = Site(home, DirectoryBucket(home / "bucket"))
    with site.broker() as broker:
        create_topic(broker.kafka, TOPIC, 2, retention_ms=-1)
        for partition in (0, 1):
            records = [Written(None, b"%d" % n, FIRST_MS + n * HOUR_MS) for n in range(10)]
            write_confluent(broker.kafka, TOPIC, partition, records, "none", True)
        assert end_offsets(broker.kafka, TOPIC, 2) == {0: 10, 1: 10}
        yield site, broker


class Cli:
    """`thermocline group …` at this broker, in this process."""

    def __init__(self, site: Site, broker: BrokerProcess) -> None:
        self.broker = broker.kafka
        self._site = site

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._site.cli("group", *words, "-b", self.broker)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def reset(self, group: str, *words: str) -> dict[int, int]:
        """New offsets of `reset --json --execute`, checked against what the broker then says."""
        rows = json_lines(self("reset", group, *words, "--json", "--execute").stdout)
        assert [list(row) for row in rows] == [RESET_FIELDS] * len(rows)
        moved = {row["partition"]: row["new_offset"] for row in rows}
        assert {p: committed_offset(self.broker, group, TOPIC, p) for p in moved} == moved
        return moved


@pytest.fixture
def cli(served: tuple[Site, BrokerProcess]) -> Cli:
    return Cli(*served)


def test_list_and_describe_have_the_contracts_fields(cli: Cli) -> None:
    """Groups with and without members; lag by partition; members beside what they read."""
    commit_offset(cli.broker, "seen-still", TOPIC, 0, 4)
    reader = Consumer(
        {
            "bootstrap.servers": cli.broker,
            "group.id": "seen-busy",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([TOPIC])
    wait_until(lambda: reader.poll(0.1) and len(reader.assignment()) == 2, "the reader reads")
    try:
        rows = [row for row in json_lines(cli("list", "--json").stdout) if row["group"].startswith("seen-")]
        assert [list(row) for row in rows] == [LIST_FIELDS] * 2
        assert [tuple(row.values()) for row in rows] == [("seen-busy", "Stable", False), ("seen-still", "Empty", True)]
        stable = cli("list", "--state", "Stable").stdout
        assert "seen-busy" in stable and "seen-still" not in stable
        (row,) = json_lines(cli("describe", "seen-still", "--json").stdout)
        assert list(row) == DESCRIBE_FIELDS
        assert list(row.values()) == ["seen-still", "Empty", TOPIC, 0, 4, 10, 6, None, None, None]
        busy = json_lines(cli("describe", "seen-busy", "--json").stdout)
        assert [(r["partition"], r["committed_offset"], r["lag"]) for r in busy] == [(0, None, None), (1, None, None)]
        assert {(r["client_id"], r["host"]) for r in busy} == {("reader", "127.0.0.1")}
        shown = cli("describe", "seen-still").stdout.splitlines()
        assert shown[0] == "seen-still: Empty, 0 members" and shown[-1] == "lag 6 in 1 partition"
        refused = cli("reset", "seen-busy", "--to-latest", "--topic", TOPIC, "--execute", code=1)
        assert "stop them first" in refused.stderr
        refused = cli("delete", "seen-busy", code=1)
        assert "stop its members first" in refused.stderr
    finally:
        reader.close()


def test_watch_goes_on_until_it_is_stopped(cli: Cli) -> None:
    """And sees what changes: the second picture has the new position."""
    commit_offset(cli.broker, "watched", TOPIC, 0, 1)
    command = [sys.executable, "-m", "thermocline", "group", "describe", "watched", "--watch", "-b", cli.broker]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert watching.stdout is not None
    try:
        lines = iter(watching.stdout.readline, "")
        assert next(line for line in lines if line.startswith("lag")) == "lag 9 in 1 partition\n"
        commit_offset(cli.broker, "watched", TOPIC, 0, 7)
        assert next(line for line in lines if line.startswith("lag 3"))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    finally:
        watching.kill()


def test_reset_shows_first_and_moves_when_told(cli: Cli) -> None:
    """Every way to say where to."""
    for partition in (0, 1):
        commit_offset(cli.broker, "moved", TOPIC, partition, 4)
    planned = cli("reset", "moved", "--to-offset", "8")
    assert "add --execute" in planned.stderr and "+4" in planned.stdout
    assert [row["executed"] for row in json_lines(cli("reset", "moved", "--to-offset", "8", "--json").stdout)] == [
        False
    ] * 2
    assert committed_offset(cli.broker, "moved", TOPIC, 0) == 4
    assert cli.reset("moved", "--to-offset", "8") == {0: 8, 1: 8}
    assert cli.reset("moved", "--to-earliest", "--topic", f"{TOPIC}:1") == {1: 0}
    assert cli.reset("moved", "--to-latest") == {0: 10, 1: 10}
    assert cli.reset("moved", "--shift-by", "-3") == {0: 7, 1: 7}
    assert cli.reset("moved", "--shift-by", "-30") == {0: 0, 1: 0}
    assert cli.reset("moved", "--to-current") == {0: 0, 1: 0}
    between = datetime.fromtimestamp((FIRST_MS + 4 * HOUR_MS + 1) / 1000, UTC)
    assert cli.reset("moved", "--to-datetime", between.isoformat()) == {0: 5, 1: 5}
    assert cli.reset("moved", "--to-datetime", f"@{FIRST_MS + 9 * HOUR_MS}") == {0: 9, 1: 9}
    assert cli.reset("moved", "--to-datetime", f"@{FIRST_MS + 9 * HOUR_MS + 1}") == {0: 10, 1: 10}
    assert cli.reset("moved", "--by-duration", "100000d") == {0: 0, 1: 0}
    assert cli.reset("moved", "--by-duration", "1h") == {0: 10, 1: 10}
    far = cli("reset", "moved", "--to-offset", "99", "--execute")
    assert "the log ends here, not at 99" in far.stdout and "moved moved in 2 partitions" in far.stdout


def test_a_group_that_never_was_may_be_given_its_place(cli: Cli) -> None:
    """With topics named; without them there is nothing to go by."""
    assert cli.reset("unborn", "--to-offset", "3", "--topic", f"{TOPIC}:0") == {0: 3}
    assert "there is no group nobody" in cli("reset", "nobody", "--to-latest", code=1).stderr
    assert "there is no topic" in cli("reset", "unborn", "--to-latest", "--topic", "nowhere", code=1).stderr
    assert "has no partition 7" in cli("reset", "unborn", "--to-latest", "--topic", f"{TOPIC}:7", code=1).stderr
    assert "nothing to shift" in cli("reset", "unborn", "--shift-by", "1", "--topic", f"{TOPIC}:1", code=1).stderr


def test_deleted_groups_are_gone_and_the_others_said(cli: Cli) -> None:
    """All are tried; one that could not be deleted makes the exit code 1."""
    for group in ("gone-1", "gone-2"):
        commit_offset(cli.broker, group, TOPIC, 0, 4)
    done = cli("delete", "gone-1", "nobody", "gone-2", code=1)
    assert done.stdout.splitlines() == [
        f"deleted {group} and its committed positions" for group in ("gone-1", "gone-2")
    ]
    assert "deleting group nobody" in done.stderr and "thermocline group list" in done.stderr
    assert not any(row["group"].startswith("gone-") for row in json_lines(cli("list", "--json").stdout))
    assert "there is no group gone-1" in cli("describe", "gone-1", code=1).stderr
