"""The command line's contract against running brokers: flags, the ready line, exit codes, JSON names, the HTTP port.

Scripts rely on these words. One broker serves the module; what must be asked while no broker runs (`bucket …` on a
stopped one, refusals at start) has its own, as short-lived as can be.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seams.interpreter import this_build
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.ports import free_port
from tests.support.processes.site import Site, json_lines, thermocline
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import BROKER_RESOURCE, WireClient
from thermocline.cli.serve.process import PLAIN_BUILD

USAGE, REFUSED, FINDINGS = 2, 3, 5
TOPIC = "orders"

STATUS_FIELDS = [
    "topic",
    "partition",
    "leader",
    "log_start_offset",
    "local_log_start_offset",
    "remote_end_offset",
    "high_watermark",
    "log_end_offset",
    "local_bytes",
    "cold_bytes",
    "copy_lag_bytes",
    "copy_lag_segments",
    "copy_lag_ms",
    "seal_age_ms",
    "gaps",
    "blocked_by",
    "stale_bytes",
    "rewrite_requests",
    "rewrite_bytes",
    "replaced_bytes",
]
LS_FIELDS = [
    "topic",
    "topic_id",
    "partition",
    "base_offset",
    "end_offset",
    "leader_epoch",
    "log_bytes",
    "object_bytes",
    "records",
    "min_timestamp_ms",
    "max_timestamp_ms",
    "crc32c",
    "key",
]


def ask(
    broker: BrokerProcess, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, str]:
    """Status and text of one HTTP request."""
    return ask_at(broker.http, path, method, body, **headers)


def ask_at(address: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, BrokerProcess]]:
    home = tmp_path_factory.mktemp("contract")
    site = Site(home, DirectoryBucket(home / "bucket"))
    with site.broker() as broker:
        yield site, broker


@pytest.fixture
def broker(served: tuple[Site, BrokerProcess]) -> BrokerProcess:
    return served[1]


@pytest.fixture
def site(served: tuple[Site, BrokerProcess]) -> Site:
    """The module's site, not the evidence tests': one broker for all."""
    return served[0]


def cli(site: Site, broker: BrokerProcess, *arguments: str) -> str:
    """stdout of a command that must succeed."""
    done = site.cli(*arguments, "-b", broker.kafka)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def produce(broker: BrokerProcess, text: str, *arguments: str) -> None:
    """`thermocline produce` needs a stdin of its own."""
    done = thermocline("produce", *arguments, "-b", broker.kafka, stdin=text)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# -- serving ----------------------------------------------------------------------------------------------------------


def test_the_ready_line_names_what_is_served(site: Site, broker: BrokerProcess) -> None:
    """Exactly the contract's fields, in its order; port 0 became a port that answers."""
    assert list(broker.ready) == ["kafka", "http", "node", "cluster", "data", "bucket"]
    for address in (broker.kafka, broker.http):
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), timeout=5).close()
    assert broker.ready["node"] == "1"
    assert broker.ready["data"] == str(site.data_dir())
    assert broker.ready["bucket"] == site.bucket.url
    assert re.fullmatch(r"[A-Za-z0-9_-]{22,36}", broker.ready["cluster"])
    build = this_build()
    (line,) = [line for line in broker.log().splitlines() if f"{build}" in line]
    assert (PLAIN_BUILD in line) == (build.optimised is False)


WRONG = {
    "unknown flag": (["--no-such-flag"], "--no-such-flag"),
    "unknown config, with the nearest": (["--set", "log.segment.byte=1"], "log.segment.bytes"),
    "unknown config of ours": (["--set", "thermocline.seal.sm=1"], "thermocline.seal.ms"),
    "no number": (["--set", "log.segment.bytes=many"], "log.segment.bytes"),
    "all addresses": (["--listen", "0.0.0.0:0"], "--insecure"),
    "http for others": (["--http", "0.0.0.0:0"], "--insecure"),
    "bucket inside": (["--bucket", "file://{data}/bucket"], "data"),
    "data inside the bucket": (["--bucket", "file://{parent}"], "data"),
    "a key in the URL": (["--bucket", "s3://AKIA:secret@bucket/x"], ""),
    "unknown bucket parameter": (["--bucket", "s3://bucket?regio=x"], "regio"),
    "no such file": (["--config", "{parent}/none.properties"], "none.properties"),
}


@pytest.mark.parametrize(("flags", "said"), WRONG.values(), ids=WRONG)
def test_usage_and_config_are_exit_2(tmp_path: Path, flags: list[str], said: str) -> None:
    """One line on stderr that names what is wrong, no stack trace, nothing on stdout, nothing made on disk."""
    data = tmp_path / "data"
    given = [flag.format(data=data, parent=tmp_path) for flag in flags]
    done = thermocline("serve", "--data-dir", str(data), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *given)
    assert (done.returncode, done.stdout) == (USAGE, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert not data.exists()


def test_a_locked_data_dir_is_exit_3(site: Site, broker: BrokerProcess) -> None:
    """Refused at once; the first goes on."""
    with site.broker(wait_ready=False) as second:
        assert second.wait() == REFUSED
        assert "choose another --data-dir" in second.log()
    assert ask(broker, "/readyz")[0] == 200


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    """Each place overrides the one below it, as DescribeConfigs says; variables that map to no key are ignored; an
    address that others reach works once --insecure is typed; SIGTERM ends it with 0."""
    file = tmp_path / "server.properties"
    file.write_text(
        "# Kafka's syntax\nlog.segment.bytes=2000000\nnum.partitions : 7\nnum.network.threads=3\n"
        f"log.retention.check.interval.ms=60000\nlog.dirs={tmp_path}/from-file\n"
    )
    environment = {
        "THERMOCLINE_LOG_SEGMENT_BYTES": "3000000",
        "THERMOCLINE_LOG_RETENTION_CHECK_INTERVAL_MS": "50000",
        "THERMOCLINE_NO_SUCH_KEY": "1",
    }
    flags = ("--config", str(file), "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:9092", "--insecure")
    with running_broker(
        tmp_path / "data", None, *flags, settings={"log.segment.bytes": 4000000}, environment=environment
    ) as other:
        assert other.ready["data"] == str(tmp_path / "data"), "a flag beats the file"
        assert other.ready["bucket"] == f"file://{tmp_path}/data-bucket", "beside the data directory"
        assert "share a disk" in other.log()
        assert "num.network.threads" in other.log(), "a config without effect is listed"
        with WireClient("127.0.0.1", int(other.kafka.rpartition(":")[2])) as client:
            said = client.configs(BROKER_RESOURCE, "1")
        assert said["log.segment.bytes"] == "4000000"  # --set
        assert said["log.retention.check.interval.ms"] == "50000"  # environment
        assert said["num.partitions"] == "7"  # file
        assert said["log.retention.ms"] in (None, "604800000")  # default; Kafka's is null, for log.retention.hours
        assert other.stop() == 0


def test_readyz_is_503_before_the_broker_is_ready(site: Site, broker: BrokerProcess) -> None:
    """A broker that waits for the right to serve says so: alive, not ready."""
    address = f"127.0.0.1:{free_port()}"
    seen = set()
    with site.broker("other", "--http", address, wait_ready=False) as waiting:

        def gave_up() -> bool:
            with contextlib.suppress(OSError):  # not listening yet, or not any more
                seen.add(ask_at(address, "/readyz")[0])
            return waiting.process.poll() is not None

        wait_until(gave_up, "it stops waiting for the other broker's lease", 100)
    assert seen == {503}


# -- topics and records -----------------------------------------------------------------------------------------------


def test_topics_are_created_listed_described_altered_and_deleted(site: Site, broker: BrokerProcess) -> None:
    """Each verb, its effect seen by the others; what cannot be done is exit 1 with a reason, what is unclear, or a
    config that is none, exit 2."""
    made = cli(site, broker, "topic", "create", "short", "-p", "2", "-r", "1", "-c", "retention.ms=2h")
    assert "short" in made and "2h" in made.replace(" ", ""), "it says when data leaves"
    assert "short" in cli(site, broker, "topic", "list")
    listed = json_lines(cli(site, broker, "topic", "list", "--json"))
    assert {"topic": "short", "partitions": 2, "local_bytes": 0, "cold_bytes": 0} in listed
    (described,) = json_lines(cli(site, broker, "topic", "describe", "short", "--json"))
    assert described["configs"]["retention.ms"] == "7200000"
    assert [p["leader"] for p in described["partitions"]] == [1, 1]
    cli(site, broker, "topic", "alter", "short", "-c", "segment.bytes=64MiB")
    (described,) = json_lines(cli(site, broker, "topic", "describe", "short", "--json"))
    assert described["configs"]["segment.bytes"] == str(64 << 20)
    for code, *refused in (
        (1, "topic", "create", "short"),
        (1, "topic", "create", "three", "-r", "3"),
        (1, "topic", "describe", "nowhere"),
        (1, "topic", "delete", "nowhere", "--yes"),
        (USAGE, "topic", "create", "compacted", "-c", "cleanup.policy=compacted"),
        (USAGE, "topic", "create", "unknown", "-c", "no.such=1"),
        (USAGE, "topic", "alter", "short", "-c", "no.such=1"),
    ):
        done = site.cli(*map(str, refused), "-b", broker.kafka)
        assert (done.returncode, done.stdout) == (code, ""), (refused, done)
        assert len(done.stderr.splitlines()) == 1 and ".;" not in done.stderr, done.stderr
    unsure = thermocline("topic", "delete", "short", "-b", broker.kafka, stdin="")
    assert unsure.returncode == USAGE and "--yes" in unsure.stderr
    cli(site, broker, "topic", "delete", "short", "--yes")
    assert "short" not in cli(site, broker, "topic", "list")


def test_an_address_where_nobody_listens_is_exit_1(site: Site) -> None:
    """At once, with the address."""
    nobody = f"127.0.0.1:{free_port()}"
    for command in (("topic", "list"), ("consume", "-t", "t", "-e"), ("tier", "status")):
        done = site.cli(*command, "-b", nobody)
        assert done.returncode == 1 and nobody in done.stderr, done


@pytest.fixture(scope="module")
def filled(served: tuple[Site, BrokerProcess]) -> str:
    """A topic of one partition: five records with one key, three with keys of their own."""
    site, broker = served
    cli(site, broker, "topic", "create", TOPIC, "-p", "1")
    produce(broker, "".join(f"{n}\n" for n in range(5)), "-t", TOPIC, "-k", "all")
    produce(broker, "alice:a\nbob:b:c\nnobody\n", "-t", TOPIC, "-K", ":")
    return TOPIC


def consumed(site: Site, broker: BrokerProcess, *arguments: str) -> list[str]:
    done = thermocline("consume", "-b", broker.kafka, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_was_produced_is_consumed_as_asked(site: Site, broker: BrokerProcess, filled: str) -> None:
    """-k and -K on one side; -o beginning, N, -N, @ms, end; -n, -e, -f on the other; the bootstrap variable."""
    everything = consumed(site, broker, "-t", filled, "-e", "-f", "%o %k=%s %p %t\\n")
    values = [*(f"all={n}" for n in range(5)), "alice=a", "bob=b:c", "=nobody"]
    assert everything == [f"{n} {value} 0 {filled}" for n, value in enumerate(values)]
    for more, offsets in {
        ("-o", "6", "-e"): "67",
        ("-o", "-2", "-e"): "67",
        ("-o", "@0", "-n", "2"): "01",
        ("-p", "0", "-o", "3", "-n", "1"): "3",
        ("-o", "end", "-e"): "",
        ("-o", "9", "-e"): "",
    }.items():
        assert consumed(site, broker, "-t", filled, *more, "-f", "%o\\n") == list(offsets), more
    beyond = thermocline("consume", "-b", broker.kafka, "-t", filled, "-o", "9", "-e").stderr
    assert beyond == f"thermocline: {filled}-0 holds offsets 0 to 8, not 9: reading from 8\n"
    wrong = thermocline("topic", "create", "wrong", "-c", "retention.msx=1", "-b", broker.kafka)
    assert wrong.returncode == USAGE and "the nearest is retention.ms\n" in wrong.stderr
    quiet = thermocline("topic", "list", environment={"THERMOCLINE_BOOTSTRAP_SERVER": broker.kafka})
    assert filled in quiet.stdout and quiet.stderr == ""


def test_a_group_goes_on_where_it_stopped(site: Site, broker: BrokerProcess, filled: str) -> None:
    """-g commits what was printed, no more."""
    first = consumed(site, broker, "-t", filled, "-g", "readers", "-n", "3", "-f", "%o\\n")
    rest = consumed(site, broker, "-t", filled, "-g", "readers", "-e", "-f", "%o\\n")
    assert (first, rest) == (list("012"), list("34567"))


# -- tiers, HTTP ------------------------------------------------------------------------------------------------------


def test_tier_status_has_exactly_the_contracts_fields(site: Site, broker: BrokerProcess, filled: str) -> None:
    """Before and after `tier seal --wait`, which ends when everything is in the bucket."""
    (row,) = json_lines(cli(site, broker, "tier", "status", "--topic", filled, "--json"))
    assert list(row) == STATUS_FIELDS
    assert (row["log_start_offset"], row["high_watermark"], row["log_end_offset"]) == (0, 8, 8)
    cli(site, broker, "tier", "seal", "--topic", filled, "--wait")
    (row,) = json_lines(cli(site, broker, "tier", "status", "--topic", filled, "--json", "--bucket", site.bucket.url))
    assert list(row) == STATUS_FIELDS
    assert (row["remote_end_offset"], row["copy_lag_bytes"], row["copy_lag_segments"]) == (8, 0, 0)
    assert (row["gaps"], row["blocked_by"]) == ([], None)
    assert row["cold_bytes"] > 0
    assert filled in cli(site, broker, "tier", "status", "--topic", filled)


def test_the_http_port_answers(broker: BrokerProcess, filled: str) -> None:
    """/readyz, /healthz, /metrics (in Prometheus' text format), and nothing else."""
    assert ask(broker, "/readyz")[0] == 200
    assert ask(broker, "/healthz")[0] == 200
    code, metrics = ask(broker, "/metrics")
    assert code == 200
    lines = [line for line in metrics.splitlines() if line and not line.startswith("#")]
    assert lines and all(re.fullmatch(r"[a-z_][a-z0-9_]*(\{.*\})? [-+0-9.eEinfNa]+", line) for line in lines)
    assert ask(broker, "/tier")[0] == 404
    assert ask(broker, "/metrics", "POST", "{}")[0] == 405


def test_tier_seal_wants_json(broker: BrokerProcess, filled: str) -> None:
    """What a web page can send without asking (no type, text, a form) is refused; so is a GET and what is no JSON."""
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert ask(broker, "/tier/seal", "POST", "{}", **({"Content_Type": kind} if kind else {}))[0] == 415
    assert ask(broker, "/tier/seal", "POST", "{", Content_Type="application/json")[0] == 400
    assert ask(broker, "/tier/seal")[0] == 405
    code, answer = ask(broker, "/tier/seal", "POST", '{"wait": true}', Content_Type="application/json")
    assert (code, json.loads(answer)) == (200, {"sealed": True, "done": True})


# -- the bucket and the log, with the broker stopped: last, because it ends the module's broker ------------------------


def test_sigterm_is_exit_0_and_the_bucket_is_read_without_a_broker(
    site: Site, broker: BrokerProcess, filled: str
) -> None:
    """Everything `bucket …` and `log dump` say of the topic once nobody serves it."""
    cli(site, broker, "tier", "seal", "--wait")
    url = site.bucket.url
    assert broker.stop() == 0

    def run(*arguments: str, code: int = 0) -> str:
        done = site.cli(*arguments)
        assert done.returncode == code, (arguments, done)
        return done.stdout

    rows = json_lines(run("bucket", "ls", url, "--topic", filled, "--partition", "0", "--json"))
    assert rows and all(list(row) == LS_FIELDS for row in rows)
    assert (rows[0]["base_offset"], rows[-1]["end_offset"], sum(row["records"] for row in rows)) == (0, 8, 8)
    key = rows[0]["key"]
    assert key in site.bucket.listing()
    assert key in run("bucket", "ls", url)
    manifest = json.loads(run("bucket", "manifest", url, "--topic", filled, "--partition", "0", "--json"))
    assert (manifest["topic"], manifest["partition"]) == (filled, 0)
    assert filled in run("bucket", "manifest", url, "--topic", filled, "--partition", "0")
    assert "records" in run("bucket", "dump", url, key)
    assert "nobody" not in run("bucket", "dump", url, key, "--batches")
    assert "pass" in run("bucket", "probe", url)
    run("bucket", "verify", url, "--deep")
    assert json_lines(run("bucket", "verify", url, "--topic", filled, "--json")) == []
    (local,) = site.local_log_files(filled)[:1]
    dump = [sys.executable, "-m", "thermocline", "bucket", "dump", url, key, "--log"]
    assert subprocess.run(dump, capture_output=True, timeout=30, check=True).stdout == local.read_bytes()
    dumped = json_lines(run("log", "dump", str(local), "--json"))
    assert [line["value"] for line in dumped if line["kind"] == "record"] == [*"01234", "a", "b:c", "nobody"]
    assert run("log", "dump", str(local)) == run("bucket", "dump", url, key, "--records")
    orphan = re.sub(r"[^-]{8}\.log$", "deadbeef.log", key)  # another attempt's name, of an epoch that is the root's own
    site.bucket.load({orphan: b"left behind"})
    before = site.bucket.listing()
    plans = json_lines(run("bucket", "gc", url, "--json"))
    assert [list(plan) for plan in plans] == [["state", "bytes", "key"]] * len(plans)
    assert {plan["key"]: plan["state"] for plan in plans}[orphan] == "pending"
    assert site.bucket.listing() == before, "a dry run deletes nothing"
    run("bucket", "gc", url, "--delete")
    assert {row["key"] for row in rows} <= site.bucket.listing()
    assert site.bucket.move_aside(key) == 1
    damage = json_lines(run("bucket", "verify", url, "--json", code=FINDINGS))
    assert [(finding["damage"], finding["key"]) for finding in damage if finding["damage"]] == [(True, key)]
    run("bucket", "ls", f"file://{site.directory}/nothing-here", code=1)
    run("bucket", "dump", url, "no/such/key", code=USAGE)
