"""What a command says when its login is refused, or when its user may not do what it needs: whose, which right, and not
that no broker answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.sasl_site import command_config, write_properties
from tests.support.processes.site import QUICK, json_lines, thermocline
from thermocline.cli.terminal.outcome import Exit

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("words")
    config = write_properties(
        directory,
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:broker",
    )
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(
            running_broker(directory / "broker", None, "--config", str(config), listen=None, settings=QUICK)
        )
        made = run(found, directory, "SCRAM-SHA-512", "broker", "topic", "create", "t")
        assert made[0] == Exit.DONE, made
        allow = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "t")
        assert run(found, directory, "SCRAM-SHA-512", "broker", "acl", "add", *allow)[0] == Exit.DONE
        yield found


def run(
    broker: BrokerProcess, directory: Path, mechanism: str, user: str, *words: str, password: str | None = None
) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    file = command_config(directory, mechanism, user, *([] if password is None else [password]))
    done = thermocline(*words, "-b", broker.kafka, "--command-config", str(file), stdin="x\n")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("produce", "-t", "t"), ("cluster", "status"), ("user", "list")])
@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", "alice"), ("SCRAM-SHA-512", "broker")])
def test_a_refused_login_is_told_with_its_user(
    broker: BrokerProcess, tmp_path: Path, words: tuple[str, ...], mechanism: str, user: str
) -> None:
    """It said "is the broker running, and is -b its address?", and produce "Broker transport failure"."""
    code, _, said = run(broker, tmp_path, mechanism, user, *words, password="wrong-as-can-be")
    assert code == Exit.FAILED and f"refused the login of user {user}: login by {mechanism}" in said, said
    assert "is the broker running" not in said and "wrong-as-can-be" not in said


def test_a_seal_without_the_right_names_it(broker: BrokerProcess, tmp_path: Path) -> None:
    """It said that the broker names no HTTP port."""
    code, _, said = run(broker, tmp_path, "PLAIN", "alice", "tier", "seal")
    assert code == Exit.FAILED and "DescribeConfigs on the cluster" in said and "no HTTP port" not in said, said


def test_a_status_says_what_could_not_be_seen(broker: BrokerProcess, tmp_path: Path) -> None:
    """It said that nothing is wrong."""
    code, shown, _ = run(broker, tmp_path, "PLAIN", "alice", "cluster", "status")
    assert code == Exit.DONE and "nothing is wrong in what this user may see" in shown, shown
    assert "DescribeConfigs on the cluster" in shown
    _, shown, _ = run(broker, tmp_path, "PLAIN", "alice", "cluster", "status", "--json")
    noted = [row["what"] for row in json_lines(shown) if row["kind"] == "note"]
    assert any("of broker 1 are not known" in what for what in noted)
    code, shown, _ = run(broker, tmp_path, "SCRAM-SHA-512", "broker", "cluster", "status")
    assert "nothing is wrong in" not in shown and "nothing is wrong" in shown


def test_a_consumer_without_a_group_uses_the_console_consumers_and_names_the_right(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """An ACL with the prefix of kafka-console-consumer lets it in."""
    read = ("consume", "-t", "t", "-e")
    code, _, said = run(broker, tmp_path, "PLAIN", "alice", *read)
    assert code == Exit.FAILED and "Read on the group" in said, said
    allow = ("--allow-principal", "User:alice", "--operation", "Read", "--group", "console-consumer-", "--prefixed")
    assert run(broker, tmp_path, "SCRAM-SHA-512", "broker", "acl", "add", *allow)[0] == Exit.DONE
    code, _, said = run(broker, tmp_path, "PLAIN", "alice", *read)
    assert code == Exit.DONE, said


@pytest.mark.parametrize("words", [("topic", "list"), ("topic", "describe", "t")])
def test_a_command_without_a_login_is_told_that_the_port_may_want_one(
    broker: BrokerProcess, words: tuple[str, ...]
) -> None:
    done = thermocline(*words, "-b", broker.kafka)
    assert done.returncode == Exit.FAILED and "may want TLS or a login" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("user", "list"), "Describe"),
        (("user", "add", "carol", "--generate"), "Alter"),
        (("quota", "set", "--user", "carol", "producer_byte_rate=1MiB"), "AlterConfigs"),
        (("quota", "list"), "DescribeConfigs"),
    ],
)
def test_a_refused_command_names_the_right_on_the_cluster(
    broker: BrokerProcess, tmp_path: Path, words: tuple[str, ...], right: str
) -> None:
    """It said "Cluster authorization failed."."""
    code, _, said = run(broker, tmp_path, "PLAIN", "alice", *words)
    assert code == Exit.FAILED and f"it needs {right} on the cluster" in said, said


def test_what_is_not_there_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    """A topic that this user may not describe; a user that was deleted before; a file of a password."""
    assert run(broker, tmp_path, "SCRAM-SHA-512", "broker", "topic", "create", "secret")[0] == Exit.DONE
    code, _, said = run(broker, tmp_path, "PLAIN", "alice", "consume", "-t", "secret", "-e")
    assert code == Exit.FAILED and "there is no topic secret that this user may see" in said, said
    code, _, said = run(broker, tmp_path, "SCRAM-SHA-512", "broker", "user", "delete", "bob", "--yes")
    assert code == Exit.FAILED and "there is no user bob (SCRAM)" in said, said
    missing = tmp_path / "missing"
    add = ("user", "add", "bob", "--password-file", str(missing))
    code, _, said = run(broker, tmp_path, "SCRAM-SHA-512", "broker", *add)
    assert code == Exit.USAGE and f"--password-file {missing}: No such file or directory" in said, said
