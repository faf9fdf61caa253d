"""`thermocline topic` against a running broker: sizes, growing, trimming. One broker serves the module."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.processes.terminal import typed
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

USAGE = 2
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, BrokerProcess]]:
    home = tmp_path_factory.mktemp("topics")
    site = Site(home, DirectoryBucket(home / "bucket"))
    with site.broker() as broker:
        yield site, broker


@pytest.fixture(scope="module")
def run(served: tuple[Site, BrokerProcess]) -> Run:
    """`run(*words, code=0)`: the command's outcome, its exit code checked and its stderr free of stack traces."""
    site, broker = served

    def call(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = site.cli(*words, "-b", broker.kafka)
        assert done.returncode == code, (words, done)
        return done

    return call


def produce(broker: BrokerProcess, topic: str, count: int, *more: str) -> None:
    done = thermocline("produce", "-t", topic, "-b", broker.kafka, *more, stdin="".join(f"{n}\n" for n in range(count)))
    assert done.returncode == 0, done.stderr


def starts(run: Run, topic: str) -> list[int]:
    rows = json_lines(run("tier", "status", "--topic", topic, "--json").stdout)
    return [row["log_start_offset"] for row in rows]


def test_topic_list_shows_what_lies_in_each_tier(served: tuple[Site, BrokerProcess], run: Run) -> None:
    """Local and cold bytes of a topic are the sums of its partitions' in `tier status`; an empty topic has 0."""
    _, broker = served
    run("topic", "create", "sized", "-p", "2")
    run("topic", "create", "empty", "-p", "1")
    produce(broker, "sized", 900)
    run("tier", "seal", "--wait")
    # sealed copies may leave the disk at any time: the topic keeps them a day, so both commands see the same
    sums = {
        name: sum(row[name] for row in json_lines(run("tier", "status", "--topic", "sized", "--json").stdout))
        for name in ("local_bytes", "cold_bytes")
    }
    assert sums["cold_bytes"] > 900
    rows = {row["topic"]: row for row in json_lines(run("topic", "list", "--json").stdout)}
    assert rows["sized"] == {"topic": "sized", "partitions": 2, **sums}
    assert rows["empty"] == {"topic": "empty", "partitions": 1, "local_bytes": 0, "cold_bytes": 0}
    text = run("topic", "list").stdout
    assert "on disk" in text and "in the bucket" in text and "KiB" in text
    internal = json_lines(run("topic", "list", "--json", "--internal").stdout)
    assert {row["topic"] for row in internal} >= {"sized", "empty"}


def test_a_topic_grows_and_never_shrinks(run: Run) -> None:
    """-p N adds partitions; fewer, as many, and impossible numbers are refused before anything changes, the configs
    given with them too."""
    run("topic", "create", "growing", "-p", "2")
    grown = run("topic", "alter", "growing", "-p", "4", "-c", "retention.ms=3h")
    assert grown.stdout.startswith("altered growing: 4 partitions, 2 before\n") and "3h" in grown.stdout
    assert "records with a key" in grown.stderr
    for count, code, said in (
        ("4", 1, "has 4 partitions: 4 would change nothing"),
        ("3", 1, "has 4 partitions: 3 would remove some"),
        ("99999", 1, "at most 10000 partitions"),
        ("1000000", USAGE, "out of expected range"),
    ):
        refused = run("topic", "alter", "growing", "-p", count, "-c", "retention.ms=5h", code=code)
        assert said in refused.stderr and len(refused.stderr.splitlines()) == 1, refused
    assert "there is no topic nowhere" in run("topic", "alter", "nowhere", "-p", "4", code=1).stderr
    (described,) = json_lines(run("topic", "describe", "growing", "--json").stdout)
    assert len(described["partitions"]) == 4 and described["configs"]["retention.ms"] == str(3 * 3_600_000)


def test_trim_shows_its_plan_and_deletes_when_told(served: tuple[Site, BrokerProcess], run: Run) -> None:
    """Without --yes nothing goes; the plan counts both tiers; afterwards the partition begins where it said, in the
    bucket's manifest too."""
    site, broker = served
    run("topic", "create", "trimmed", "-p", "2")
    produce(broker, "trimmed", 100, "-p", "0")
    run("tier", "seal", "--topic", "trimmed", "--wait")
    produce(broker, "trimmed", 20, "-p", "0")
    produce(broker, "trimmed", 7, "-p", "1")
    dry = run("topic", "trim", "trimmed", "-p", "0", "--before", "110")
    assert dry.stdout.splitlines()[1].split() == ["0", "0", "110", "110", "110", "100"]
    assert "nothing was deleted" in dry.stderr and starts(run, "trimmed") == [0, 0]
    done = run("topic", "trim", "trimmed", "-p", "0", "--before", "110", "--yes")
    assert done.stdout.splitlines()[-1] == "trimmed-0 begins at 110"
    assert starts(run, "trimmed") == [110, 0]
    again = run("topic", "trim", "trimmed", "-p", "0", "--before", "110", "--yes")
    assert again.stdout == "nothing to trim: trimmed holds nothing before the given offset or time\n"
    beyond = run("topic", "trim", "trimmed", "--before", "8", "--yes", code=1)
    assert "trimmed-1 ends at 7" in beyond.stderr and starts(run, "trimmed") == [110, 0]
    manifest = ("bucket", "manifest", site.bucket.url, "--topic", "trimmed", "--partition", "0", "--json")

    def start_in_bucket() -> bool:
        return json_lines(site.cli(*manifest).stdout)[0]["log_start_offset"] == 110

    wait_until(start_in_bucket, "the manifest begins at 110")
    assert "no partition 9" in run("topic", "trim", "trimmed", "-p", "9", "--before", "1", code=1).stderr
    absent = "thermocline: there is no topic nowhere; see `thermocline topic list`\n"
    assert run("topic", "trim", "nowhere", "--before", "1", code=1).stderr == absent
    assert run("tier", "status", "--topic", "nowhere", code=1).stderr == absent


def test_trim_by_time_takes_what_is_older(served: tuple[Site, BrokerProcess], run: Run) -> None:
    """Before the first record of that time or later; a time after all records takes all there is, and only that."""
    from confluent_kafka import Producer

    _, broker = served
    run("topic", "create", "aged", "-p", "1", "-c", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": broker.kafka})
    noon = 1_793_534_400_000  # 2026-11-01T12:00Z
    for minute in range(10):
        producer.produce("aged", str(minute), timestamp=noon + minute * 60_000)
    assert producer.flush(30) == 0
    for time, start in {
        "@2026-11-01T11:00Z": 0,
        f"@{noon}": 0,
        "@2026-11-01T12:03:00.001Z": 4,
        "@2026-11-01T13:05+01:00": 5,
        "@2027-01-01Z": 10,
    }.items():
        run("topic", "trim", "aged", "--before", time, "--yes")
        assert starts(run, "aged") == [start], time
    local = run("topic", "trim", "aged", "--before", "@2027-01-01")
    assert "is local time, 2027-01-01T00:00:00" in local.stderr


def test_trim_asks_at_a_terminal(served: tuple[Site, BrokerProcess], run: Run) -> None:
    """The topic's name is the only yes."""
    _, broker = served
    run("topic", "create", "asked", "-p", "1")
    produce(broker, "asked", 5)
    command = ("topic", "trim", "asked", "--before", "3", "-b", broker.kafka)
    refused = typed("yes\n", *command)
    assert (refused.returncode, starts(run, "asked")) == (1, [0])
    assert "Delete these offsets of asked, on the disk and in the bucket?" in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert typed("asked\n", *command).returncode == 0
    assert starts(run, "asked") == [3]
    deleting = typed("no\n", "topic", "delete", "asked", "-b", broker.kafka)
    assert deleting.returncode == 1 and starts(run, "asked") == [3]


def test_a_change_that_takes_longer_is_not_called_undone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker goes on after the wait ends: "is the broker running?" sent people to look in the wrong place."""
    monkeypatch.setattr("thermocline.cli.clients.stock.REQUEST_TIMEOUT_S", 0.01)
    late = run("topic", "create", "slowly", "-p", "100", code=1)
    monkeypatch.undo()
    assert "creating topic slowly: no answer within 0 s; the broker may still be working on it" in late.stderr
    wait_until(lambda: "slowly" in run("topic", "list").stdout, "the broker made it all the same")
