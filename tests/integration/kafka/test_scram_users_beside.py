"""`kafka-configs.sh` says the same of SCRAM users on this broker as on Kafka 4.3.1; and Java's clients log in here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kafka.kafka_console import KafkaConsole, kafka_console
from tests.support.kafka.kafka_peer import kafka_peer
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_process import running_broker
from tests.support.processes.sasl_site import BROKER, PASSWORD, command_config, write_properties

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

CONFIGS = "kafka.admin.ConfigCommand"
USERS = ("--entity-type", "users")
ALICE = (*USERS, "--entity-name", "alice")


class Beside(NamedTuple):
    console: KafkaConsole
    kafka: str
    ours: str

    def same(self, *arguments: str) -> str:
        """Run on both; AssertionError unless they said the same. What both said."""
        said = []
        for address in (self.kafka, self.ours):
            found = self.console.run(CONFIGS, "--bootstrap-server", address, *arguments)
            errors = [
                line
                for line in found.err.replace(address, "ADDRESS").splitlines()
                if not line.lstrip().startswith(("at ", "\tat "))
            ]
            said.append((found.code, sorted(map(_in_order, found.out.splitlines())), errors))
        assert said[0] == said[1], arguments
        return "\n".join((*said[1][1], *said[1][2]))


def _in_order(line: str) -> str:
    """Its mechanisms sorted: Kafka has them in an order of each start's own (a map of hashes of enum values)."""
    before, are, mechanisms = line.partition(" are ")
    return before + are + ", ".join(sorted(mechanisms.split(", ")))


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    require_kafka()
    directory = tmp_path_factory.mktemp("scram")
    with (
        kafka_peer(directory / "kafka") as kafka,
        running_broker(directory / "ours") as ours,
        kafka_console(directory) as console,
    ):
        yield Beside(console, kafka, ours.kafka)


def test_users_are_set_described_and_deleted_alike(beside: Beside) -> None:
    """One user with both mechanisms, another one; deletions; what there is not, and what is refused."""
    one, other = "SCRAM-SHA-256=[iterations=8192,password=alice-secret]", "SCRAM-SHA-512=[password=alice-secret]"
    assert "altered twice" in beside.same("--alter", "--add-config", f"{one},{other}", *ALICE)
    for each in (one, other):
        assert "Completed updating config for user alice" in beside.same("--alter", "--add-config", each, *ALICE)
    assert "SCRAM-SHA-256=iterations=8192" in beside.same("--describe", *ALICE)
    beside.same("--alter", "--add-config", "SCRAM-SHA-512=[password=x]", *USERS, "--entity-name", "bob,eve=1")
    assert "bob,eve=1" in beside.same("--describe", *USERS)
    beside.same("--alter", "--delete-config", "SCRAM-SHA-256", *ALICE)
    assert "SCRAM-SHA-512=iterations=4096" in beside.same("--describe", *ALICE)
    assert "does not exist" in beside.same("--alter", "--delete-config", "SCRAM-SHA-256", *ALICE)
    beside.same("--alter", "--delete-config", "SCRAM-SHA-512", *ALICE)
    beside.same("--describe", *ALICE)
    beside.same("--describe", *USERS)
    for iterations in ("4095", "16385"):
        beside.same("--alter", "--add-config", f"SCRAM-SHA-256=[iterations={iterations},password=x]", *ALICE)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_javas_tools_log_in(tmp_path: Path, mechanism: str) -> None:
    """The admin client, with the file that our own command takes; and not with a wrong password."""
    require_kafka()
    user = "alice" if mechanism == "PLAIN" else BROKER
    right = command_config(tmp_path, mechanism, user)
    (tmp_path / "other").mkdir()
    wrong = command_config(tmp_path / "other", mechanism, user, "wrong")
    config = write_properties(tmp_path)
    with (
        running_broker(tmp_path / "ours", None, "--config", str(config), listen=None) as ours,
        kafka_console(tmp_path) as console,
    ):
        topics = ("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", ours.kafka)
        made = console.run(*topics, "--create", "--topic", "t", "--command-config", str(right))
        assert made.code == 0 and "Created topic t" in made.out, made
        refused = console.run(*topics, "--list", "--command-config", str(wrong))
        assert refused.code != 0 and "Authentication failed" in refused.out + refused.err
        assert PASSWORD not in ours.log()
