"""`thermocline config`: what is listed, what is explained, and a misspelt key."""

from __future__ import annotations

import json

import pytest

from broker.config.definitions import BROKER, TOPIC
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == Exit.DONE
    return capsys.readouterr().out.splitlines()


def test_list_shows_what_has_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    """All honoured names of the scope asked for, no others; with --all the others too."""
    of_topics = [json.loads(line) for line in lines_of(capsys, "config", "list", "--topic", "--json")]
    assert [row["name"] for row in of_topics] == sorted(name for name, found in TOPIC.items() if found.honoured)
    of_brokers = [json.loads(line) for line in lines_of(capsys, "config", "list", "--broker", "--json")]
    assert [row["name"] for row in of_brokers] == sorted(name for name, found in BROKER.items() if found.honoured)
    assert {row["changes"] for row in of_brokers} == {"at start", "at run time"}
    both = lines_of(capsys, "config", "list")
    assert len(both) == 1 + len(of_topics) + len(of_brokers)
    assert both[0].split() == ["name", "of", "type", "default", "changes", "effect"]
    everything = [json.loads(line) for line in lines_of(capsys, "config", "list", "--all", "--json")]
    effects = {row["name"]: row["effect"] for row in everything}
    assert effects["client.quota.callback.class"] == "refused"
    assert effects["sasl.kerberos.service.name"] == "no effect"


def test_explain_says_what_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Meaning, default and why it is not Kafka's, range, when it changes, and whom it gives its default."""
    text = "\n".join(lines_of(capsys, "config", "explain", "segment.bytes"))
    for part in ("of a topic", "134217728 (128MiB)", "because:", "1048576 or more", "log.segment.bytes"):
        assert part in text, part
    text = "\n".join(lines_of(capsys, "config", "explain", "log.retention.minutes"))
    assert "at start" in text
    assert "default of:   retention.ms" in text
    text = "\n".join(lines_of(capsys, "config", "explain", "preallocate"))
    assert "no effect" in text
    (row,) = (json.loads(line) for line in lines_of(capsys, "config", "explain", "max.connections", "--json"))
    assert (row["scope"], row["changes"], row["effect"]) == ("broker", "at run time", "honoured")


def test_a_name_that_both_have_is_explained_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """`min.insync.replicas` is a topic's, and a broker's for topics without their own."""
    rows = [json.loads(line) for line in lines_of(capsys, "config", "explain", "min.insync.replicas", "--json")]
    assert [row["scope"] for row in rows] == ["topic", "broker"]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("retention.msec", "retention.ms"),
        ("segmentbytes", "segment.bytes"),
        ("thermocline.seal", "thermocline.seal.ms"),
        ("log.retention.hour", "log.retention.hours"),
    ],
)
def test_a_misspelt_key_names_the_nearest(wrong: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and one line."""
    assert main(["config", "explain", wrong]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"thermocline: unknown config {wrong!r}; the nearest is {near!r}\n"
