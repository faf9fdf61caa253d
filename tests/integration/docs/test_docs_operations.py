"""docs/operations.md is true: what it quotes is printed, its queries name what /metrics has, its policy is what the
code calls, its unit and Dockerfile fit this tree.

Not checked: that the image builds (there is no docker daemon on the machines that run this) and that Grafana draws it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from broker.config.definitions import BROKER
from broker.observe.conditions import Condition
from tests.integration.broker.test_read_only import COUNT as ARCHIVED_COUNT
from tests.integration.broker.test_read_only import TOPIC as ARCHIVED
from tests.integration.broker.test_read_only import begin as begin_archive
from tests.integration.broker.test_read_only import tree
from tests.integration.docs.test_docs_readme import Reader
from tests.integration.restore.test_cluster_restore import SETTINGS, check_restored, lose_a_cluster, started
from tests.integration.restore.test_cluster_restore import TOPIC as LEDGER
from tests.support.clients.stock_clients import (
    commit_offset,
    committed_offset,
    create_topic,
    end_offsets,
    read_confluent,
)
from tests.support.clients.writing import Writing
from tests.support.kafka.kafka_tools import SCRIPT as KAFKA
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes import operations_kit as kit
from tests.support.processes.broker_process import running_broker, start_broker
from tests.support.processes.site import Site, thermocline
from tests.support.processes.three_brokers import Three, three
from tests.support.repository import ROOT, syntax_tree
from tests.support.store.s3_servers import S3Server, StoreProxy, moto_server, store_proxy
from tests.support.waiting import wait_until
from tiering.partition_state import Block

PAGE = ROOT / "docs/operations.md"
DASHBOARD = ROOT / "docs/grafana/thermocline.json"
ALERTS = ROOT / "docs/grafana/alerts.yml"
UNIT = ROOT / "packaging/thermocline.service"
DOCKERFILE = ROOT / "Dockerfile"

QUOTED = re.compile(r"<!-- seen: (\w+) (\w+) -->\n```text\n(.*?)```", re.S)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[S3Server, StoreProxy]]:
    with moto_server() as server, store_proxy(server) as proxy:
        yield server, proxy


# --- the runbooks ---------------------------------------------------------------------------------------------------


def quoted(scene: str) -> list[tuple[str, str]]:
    """(where, line) of what the page says is to be seen in a scene."""
    found = [(where, line) for name, where, text in QUOTED.findall(PAGE.read_text()) if name == scene
             for line in text.splitlines()]  # fmt: skip
    assert found, scene
    return found


def check(scene: str, seen: kit.Seen) -> None:
    """Every quoted line occurs where the page says."""
    places = {
        "status": seen.status.splitlines(),
        "log": seen.log.splitlines(),
        "readyz": seen.readyz.splitlines(),
        "seal": seen.seal.splitlines(),
        "metrics": [f"{name} {value:g}" for name, value in seen.metrics.items() if "_bucket{" not in name],
    }
    for where, line in quoted(scene):
        pattern = re.compile(".*".join(map(re.escape, re.split("…", line))).replace(r"\ ", " +"))
        printed = "\n".join(places[where])
        assert any(map(pattern.search, places[where])), f"{where} has no {line!r}:\n{printed}"


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    """Refused with KAFKA_STORAGE_ERROR, reads go on, told once; space returns, and so do appends, without a restart."""
    seen = kit.disk_full(tmp_path)
    check("disk_full", seen)
    assert "No space left on device" in seen.refused
    assert len(kit.lines_with(seen.log, "produces are refused")) == 1
    assert "Traceback" not in seen.log


@needs_root
def test_a_full_bucket(tmp_path: Path) -> None:
    """Copies wait and say for what, `tier seal --wait` says it too, and all goes on when there is room."""
    seen = kit.bucket_full(tmp_path)
    check("bucket_full", seen)
    assert "everything is in the bucket" in seen.seal
    assert len(seen.seal.splitlines()) < 6, seen.seal


@pytest.mark.slow
def test_an_upload_that_lags(tmp_path: Path, store: tuple[S3Server, StoreProxy]) -> None:
    """Slower, then refused, nothing dropped; the bucket answers, the backlog drains, appends go on."""
    seen = kit.upload_lags(tmp_path, *store)
    check("upload_lags", seen)
    assert "more than a tenth over their limit" in seen.refused
    assert len(kit.lines_with(seen.log, "tiering lags")) <= 2
    assert len(seen.log.splitlines()) < 30, "a minute of outage is no book:\n" + seen.log


@pytest.mark.slow
@needs_root
def test_a_full_cache_and_a_short_disk(tmp_path: Path, store: tuple[S3Server, StoreProxy]) -> None:
    """A replay evicts; when the disk is short the cache yields, readers go on, and it comes back by itself."""
    check("cache_full", kit.cache_full(tmp_path, store[0]))


@pytest.mark.slow
def test_a_bucket_that_is_away_at_the_start(tmp_path: Path, store: tuple[S3Server, StoreProxy]) -> None:
    """Not ready and saying why, never an exit; ready as soon as it answers."""
    seen = kit.unreachable_at_start(tmp_path, *store)
    check("unreachable_at_start", seen)
    assert len(kit.lines_with(seen.log, "not ready")) <= 4


def test_every_condition_block_and_alert_has_its_place() -> None:
    """A name that is printed can be looked up; a runbook that an alert names exists; every config named is one."""
    page = PAGE.read_text()
    headings = set(re.findall(r"^##+ (\w+)$", page, re.M))
    assert {condition.value for condition in Condition} <= headings
    assert {rule["annotations"]["runbook"] for rule in rules()} <= headings
    for block in Block:
        assert f"`{block.value}`" in page, block
    for name in re.findall(r"`(thermocline\.[a-z.]+|remote\.log\.[a-z.]+)`", page):
        assert name in BROKER, name
    for path in re.findall(r"\]\(([^)#]+)\)", page):
        assert (PAGE.parent / path).exists(), path


# --- three brokers --------------------------------------------------------------------------------------------------


def typed(heading: str) -> list[str]:
    """The commands of a section, in order, each as it is typed."""
    return [line for fence in blocks(heading) for line in fence.splitlines()]


def blocks(heading: str) -> list[str]:
    """The blocks of commands of a section, in order."""
    text = PAGE.read_text()
    begin = text.index(f"\n### {heading}\n" if f"\n### {heading}\n" in text else "<!-- typed:")
    text = text[begin : text.index("\n### ", begin + 1)]
    found: list[str] = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return found


def type_there(cluster: Three, command: str, tools: Path | None = None) -> str:
    """At any of the machines; what it printed. `tools`: a directory of more commands."""
    environment = os.environ | {
        "PATH": f"{tools or '.'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "THERMOCLINE_BOOTSTRAP_SERVER": cluster.everywhere,
    }
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{cluster.logs()}"
    return done.stdout


def test_three_brokers_are_restarted_one_by_one_and_one_is_replaced(directory_site: Site) -> None:
    """As the page says, under a producer with acks=all: the controller last, nothing wrong before each step. Then one
    directory is lost. Every record that was acknowledged is there once, and no write was refused."""
    directory_site.settings |= {"min.insync.replicas": 2, "default.replication.factor": 3}
    with three(directory_site) as cluster:
        for command in typed("first"):
            printed = type_there(cluster, command)
        assert "created orders" in printed
        cluster.wait(lambda: cluster.image().cluster_configs == {"min.insync.replicas": "2"}, "the file's minimum")
        writing = Writing(cluster.everywhere, "orders")
        writing.write("before", 200)
        steps = typed("Rolling restart")
        assert steps[-1] == "systemctl restart thermocline" and len(steps) == 2
        for node_id in [*sorted({1, 2, 3} - {cluster.controller()}), cluster.controller()]:
            type_there(cluster, steps[0])
            writing.write(f"while {node_id} restarts", 200)
            assert cluster.stop(node_id) == 0
            cluster.start(node_id)
        type_there(cluster, steps[0])
        writing.write("restarted", 200)
        cluster.kill(1)
        directory_site.lose_data_dir("1")
        cluster.start(1)
        cluster.wait(cluster.is_whole, "it holds everything again", 60)
        (look,) = typed("Replace a machine")
        assert "nothing is wrong" in type_there(cluster, f"until {look} >/dev/null; do sleep 1; done; {look}")
        writing.flush()
        found = read_confluent(cluster.everywhere, "orders", {0: len(writing.acknowledged)})
        assert [record.value for record in found] == writing.acknowledged


def test_a_broker_is_added_and_another_day_drained(directory_site: Site) -> None:
    """As the page says, under a producer: the new one gets its share, and holds nothing when it goes."""
    with three(directory_site) as cluster:
        cluster.create("orders", partitions=4, replicas=3, min_insync_replicas=2)
        writing = Writing(cluster.everywhere, "orders")
        writing.write("before", 200)
        with cluster.beside("4", 4) as fourth:
            fourth.await_ready()
            dry, go = typed("Grow")
            assert " in the bucket" in type_there(cluster, dry)
            assert not any(4 in row.replicas for row in cluster.rows("orders"))
            writing.write("meanwhile", 200)
            type_there(cluster, go)
            assert sum(4 in row.replicas for row in cluster.rows("orders")) == 3, "a quarter of twelve"
            dry, go, stop, forget = typed("Shrink (drain)")
            assert "4" in type_there(cluster, dry)
            writing.write("and again", 200)
            type_there(cluster, go)
            assert not any(4 in row.replicas for row in cluster.rows("orders"))
            assert stop == "systemctl stop thermocline" and fourth.stop() == 0
            type_there(cluster, forget)
        assert cluster.image().nodes.keys() == {1, 2, 3}
        writing.flush()
        found = read_confluent(cluster.everywhere, "orders", {0: len(writing.acknowledged)})
        assert [record.value for record in found] == writing.acknowledged


KAFKAS = {
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
}


@pytest.mark.peer
@pytest.mark.slow
def test_one_broker_becomes_three(directory_site: Site, tmp_path: Path) -> None:
    """As the page says, with Kafka's scripts as they are: everything of one broker has three replicas, its groups too;
    then the first broker is killed, and nothing that was acknowledged, nor committed by a group, is missing."""
    require_kafka()
    for name, tool in KAFKAS.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {KAFKA} tool {tool} "$@"\n')
        (tmp_path / name).chmod(0o755)
    with contextlib.ExitStack() as stack:
        cluster = Three(directory_site, stack)
        one = cluster.start(1).kafka
        create_topic(one, "orders", 3)
        writing = Writing(cluster.everywhere, "orders")
        writing.write("alone", 200)
        writing.flush()
        commit_offset(one, "readers", "orders", 0, 150)
        for node_id in (2, 3):
            cluster.start(node_id)
        assert {row.replicas for name in ("orders", "__consumer_offsets") for row in cluster.rows(name)} == {(1,)}
        move, end = (block.replace("10.0.0.1:9092", one) for block in blocks("From one broker to three"))
        type_there(cluster, f"cd {tmp_path}\n{move}", tmp_path)
        writing.write("meanwhile", 200)
        type_there(cluster, f"cd {tmp_path}\n{end}", tmp_path)
        rows = [row for name in ("orders", "__consumer_offsets") for row in cluster.rows(name)]
        assert {tuple(sorted(row.in_sync)) for row in rows} == {(1, 2, 3)} and len({row.replicas for row in rows}) == 3
        assert cluster.image().cluster_configs == {"min.insync.replicas": "2"}
        cluster.kill(1)
        writing.write("without the first", 200)
        writing.flush()
        assert committed_offset(cluster.everywhere, "readers", "orders", 0) == 150
        found = read_confluent(cluster.everywhere, "orders", {0: len(writing.acknowledged)})
        assert [record.value for record in found] == writing.acknowledged


@pytest.mark.slow
def test_a_lost_cluster_is_restored_and_a_lost_root_rebuilt(directory_site: Site) -> None:
    """The two runbooks, one after the other: all machines are gone; then cluster.json is. What was in the bucket is
    read after each, and writes go on."""
    site = directory_site
    site.settings |= SETTINGS
    before = lose_a_cluster(site)

    def type_it(command: str, bootstrap: str = "") -> str:
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "THERMOCLINE_BOOTSTRAP_SERVER": bootstrap,
        }
        words = command.replace("s3://my-bucket/log", site.bucket.url)
        done = subprocess.run(
            ["/bin/sh", "-c", words], capture_output=True, text=True, timeout=150, check=False, env=environment
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    plan, restore_it, look = typed("Everything is gone: restore")
    assert "restored" in (shown := type_it(plan)) and "groups come back" in shown and "not running" in shown
    with started(site, 11, 12) as brokers:
        type_it(restore_it)
        assert "nothing is wrong" in type_it(look, brokers[11].kafka)
        check_restored(site, brokers, before)
        for broker in brokers.values():
            assert broker.stop() == 0
    site.bucket.move_aside("cluster.json")
    what, rebuild_it, restore_it, done = typed("cluster.json is gone: rebuild")
    assert LEDGER in type_it(what)
    type_it(rebuild_it)
    with started(site, 11, 12) as brokers:
        type_it(restore_it)
        everywhere = ",".join(broker.kafka for broker in brokers.values())
        ends = end_offsets(everywhere, LEDGER, 1)
        found = read_confluent(everywhere, LEDGER, ends)
        assert sum(record.value is not None and record.value.startswith(b"after") for record in found) == 3
        type_it(done)
        assert "nothing is deleted" not in type_it(look, brokers[11].kafka)


def test_somebodys_archive_is_read(directory_site: Site, tmp_path: Path) -> None:
    """The line of the page, on a bucket whose owner was killed: all of both partitions, a write refused in words,
    positions of a group until it ends, and not a byte written."""
    text = PAGE.read_text()
    begin = text.index("\n### Read somebody's archive\n")
    (line,) = re.findall(r"^thermocline serve --read-only .*$", text[begin : text.index("\n## ", begin)], re.M)
    with directory_site.broker("owner") as owner:
        begin_archive(owner)
        owner.kill()
    path: Path = directory_site.bucket.path  # type: ignore[attr-defined]
    before = tree(path)
    line = line.replace("s3://their-bucket/log", directory_site.bucket.url)
    reader = Reader(tmp_path)
    ready = reader.serve(line.replace("/var/lib/reader", str(tmp_path / "reader")))
    assert reader.broker is not None
    try:
        assert ready.rstrip().endswith("mode=read-only")
        read = reader.type(f"thermocline consume -t {ARCHIVED} -o beginning -e -g mine -f '%p %o\\n'").splitlines()
        assert sorted(read) == sorted(f"{index} {at}" for index in (0, 1) for at in range(ARCHIVED_COUNT))
        assert "mine" in reader.type("thermocline group list")
        refused = thermocline("produce", "-t", ARCHIVED, "-b", reader.kafka, stdin="no\n")
        assert refused.returncode != 0 and "authorization failed" in refused.stderr.lower(), refused
        assert "read-only" in reader.type("thermocline tier status")
        assert reader.stop() == 0
    finally:
        if reader.broker.poll() is None:
            reader.broker.kill()
            reader.broker.wait()
    assert tree(path) == before


# --- queries --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Sample name → its labels, from /metrics of a real broker that did a bit of everything."""
    directory = tmp_path_factory.mktemp("metrics")
    with running_broker(directory / "data", f"file://{directory}/bucket", settings=kit.QUICK) as broker:
        kit.create(broker, "local.retention.bytes=1")
        for _ in range(6):
            kit.produce(broker)
        kit.cli("tier", "seal", "--wait", "-b", broker.kafka)
        kit.cli("consume", "-t", kit.TOPIC, "-g", "readers", "-n", "1", "-f", "%o", "-b", broker.kafka)
        families = list(text_string_to_metric_families(kit.http(broker, "/metrics")))
        assert broker.stop() == 0
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


SCRAPED = {"instance", "job", "__name__"}  # what Prometheus adds
NAME = re.compile(r"\b((?:thermocline|process)_\w+)(?:\{([^}]*)\})?")
WORDS = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def check_query(query: str, series: dict[str, set[str]], shown: str = "") -> None:
    """Each metric exists with each label it is asked for; labels that are grouped by or shown belong to one of them."""
    names = NAME.findall(query)
    assert names or query.startswith("up{"), query
    have = set(SCRAPED)
    for name, matchers in names:
        assert name in series, f"{name} is not in /metrics: {query}"
        have |= series[name]
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in series[name] | SCRAPED, f"{name} has no label {label}: {query}"
    for group in WORDS.findall(query):
        assert {label.strip() for label in group.split(",")} <= have, query
    assert set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown)) - {"value"} <= have, shown
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}"), query
    for name in re.findall(r"(?:rate|increase)\((thermocline_\w+)", query):
        assert name.endswith(("_total", "_bucket", "_count", "_sum")), f"the rate of a gauge: {query}"


def test_the_dashboard_asks_for_what_there_is(series: dict[str, set[str]]) -> None:
    """Every query of every panel; panels do not overlap; ids are their own."""
    asked = 0
    for panel in panels():
        for target in panel.get("targets", ()):
            check_query(target["expr"], series, target["legendFormat"])
            asked += 1
    assert asked > 40
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_alerts_ask_for_what_there_is(series: dict[str, set[str]]) -> None:
    """Every expression; a summary and a runbook each; label values that a metric never has do not sneak in."""
    for rule in rules():
        summary = rule["annotations"]["summary"]
        check_query(rule["expr"], series, re.sub(r"\{\{ \$value[^}]*\}\}", "", summary))
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
    conditions = {condition.value for condition in Condition}
    asked = [*(rule["expr"] for rule in rules()), *(t["expr"] for p in panels() for t in p.get("targets", ()))]
    for expression in asked:
        assert set(re.findall(r'thermocline_condition\{[^}]*name="(\w+)"', expression)) <= conditions


def test_the_pages_name_what_there_is(series: dict[str, set[str]]) -> None:
    """Every metric, with its labels, in any page, and in the scenes that are quoted."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/formats/*.md"), *ROOT.glob("docs/adr/*.md")]
    named = 0
    for page in pages:
        for name, matchers in NAME.findall(page.read_text()):
            named += 1
            sample = name if name in series else f"{name}_count"  # a histogram is called by its name
            assert sample in series, f"{page.name} names {name}, which is not in /metrics"
            assert set(re.findall(r"(\w+)\s*=", matchers)) <= series[sample], f"{page.name}: {name}{{{matchers}}}"
    assert named > 25


def test_a_query_for_something_else_would_be_noticed(series: dict[str, set[str]]) -> None:
    """The check itself can fail."""
    for wrong in (
        "thermocline_redy == 0",
        'thermocline_ready{topic="a"} == 0',
        "sum by (topic) (thermocline_ready)",
        "rate(thermocline_ready[5m])",
        "thermocline_produce_bytes",
    ):
        with pytest.raises(AssertionError):
            check_query(wrong, series)


# --- the policy -----------------------------------------------------------------------------------------------------

ACTIONS = {
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "list_objects_v2": "s3:ListBucket",
    "delete_objects": "s3:DeleteObject",
    "put_object": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
}
"""S3's own table of which action an operation asks for."""


def operations_called() -> set[str]:
    """Every S3 operation that the code names, as an attribute of whatever it calls its client."""
    from botocore import xform_name
    from botocore.session import get_session

    known = {xform_name(name) for name in get_session().get_service_model("s3").operation_names}
    packages = ("seams", "logformat", "hotstore", "coldstore", "tiering", "broker", "thermocline")
    return {
        node.attr
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Attribute) and node.attr in known
    }


def policy(name: str) -> dict[str, list[str]]:
    """Action → the resources it is allowed on."""
    found = json.loads((ROOT / f"packaging/policies/{name}.json").read_text())
    assert all(statement["Effect"] == "Allow" for statement in found["Statement"])
    return {action: [statement["Resource"]] for statement in found["Statement"] for action in statement["Action"]}


def test_the_policy_allows_exactly_what_the_code_calls() -> None:
    """No action too many, none too few; objects below the prefix only."""
    called = operations_called()
    assert called <= ACTIONS.keys(), "an S3 operation whose action nobody wrote down"
    assert policy("broker").keys() == {ACTIONS[operation] for operation in called}
    assert policy("reader").keys() == {"s3:GetObject", "s3:ListBucket"}
    for name in ("broker", "reader"):
        for action, (resource,) in policy(name).items():
            assert resource.endswith("/log/*") is (action != "s3:ListBucket"), action
    page = PAGE.read_text()
    assert set(re.findall(r"^\| `(s3:\w+)` \|", page, re.M)) == policy("broker").keys()


@contextlib.contextmanager
def store_that_enforces(allowed: dict[str, list[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket's URL, and the environment of a user who may do what is allowed there, and nothing else."""
    import boto3

    with moto_server() as server:
        url = server.bucket_url("my-bucket", "log")
        iam = boto3.client("iam", endpoint_url=server.endpoint, region_name="us-east-1",
                           aws_access_key_id="root", aws_secret_access_key="root")  # fmt: skip
        iam.create_user(UserName="broker")
        statements = [{"Effect": "Allow", "Action": a, "Resource": on} for a, on in allowed.items()]
        document = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_user_policy(UserName="broker", PolicyName="policy", PolicyDocument=document)
        key = iam.create_access_key(UserName="broker")["AccessKey"]
        enforce = urllib.request.Request(f"{server.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        urllib.request.urlopen(enforce).close()
        mine = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        yield url, server.environment() | mine


def as_moto_asks(allowed: dict[str, list[str]]) -> dict[str, list[str]]:
    """moto looks for s3:DeleteObject on the bucket when objects are deleted by the list; S3 on each object."""
    return {action: [*on, "arn:aws:s3:::my-bucket"] if action == "s3:DeleteObject" else on
            for action, on in allowed.items()}  # fmt: skip


def test_a_broker_lives_on_the_policy(tmp_path: Path) -> None:
    """Start, produce, sink, read cold, delete a topic, stop: a store that enforces the policy refuses nothing."""
    with store_that_enforces(as_moto_asks(policy("broker"))) as (url, environment):
        settings = kit.QUICK | {"thermocline.gc.grace.ms": 100}
        with running_broker(tmp_path / "data", url, settings=settings, environment=environment) as broker:
            kit.create(broker, "local.retention.bytes=1")
            for _ in range(6):
                assert kit.produce(broker)[0] == 0
            kit.cli("tier", "seal", "--wait", "-b", broker.kafka)
            read = kit.cli("consume", "-t", kit.TOPIC, "-b", broker.kafka, "-o", "beginning", "-e", "-f", "%o\n")
            assert len(read.split()) == 6
            kit.cli("topic", "delete", kit.TOPIC, "--yes", "-b", broker.kafka)
            deletes = 'thermocline_store_calls_total{operation="delete",outcome="ok"}'
            wait_until(lambda: kit.metrics_of(broker)[deletes] > 0, "purged", 30)
            refused = {name: count for name, count in kit.metrics_of(broker).items() if count and "refused" in name}
            assert not refused
            assert broker.stop() == 0
        assert "AccessDenied" not in broker.log()  # not its number: a topic's UUID may hold any three digits


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"])
def test_without_one_of_its_actions_a_broker_says_so_at_once(tmp_path: Path, missing: str) -> None:
    """Exit 3 before anything is served, with a line that names the call."""
    allowed = {action: on for action, on in as_moto_asks(policy("broker")).items() if action != missing}
    with store_that_enforces(allowed) as (url, environment):
        broker = start_broker(tmp_path / "data", url, environment=environment, wait_ready=False)
        assert broker.wait() == 3
    (line,) = kit.lines_with(broker.log(), "refused to serve")
    assert "403 AccessDenied" in line and "check the credentials and the bucket's policy" in line


# --- the unit and the image ------------------------------------------------------------------------------------------


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify`, with a program that exists in place of ours."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    text = UNIT.read_text().replace("/opt/thermocline/bin/thermocline", "/bin/true")
    assert "ExecStart=/bin/true serve" in text
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run([program, "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_the_unit_waits_for_a_clean_stop() -> None:
    """Longer than all that a clean stop may wait for; no restart after exits that it would not heal."""
    options = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))

    def seconds(name: str) -> float:
        return int(str(BROKER[name].default)) / 1000

    drain, last_write = seconds("thermocline.shutdown.timeout.ms"), seconds("thermocline.store.upload.timeout.ms")
    assert int(options["TimeoutStopSec"]) >= drain + 2 * last_write + 30
    assert options["KillSignal"] == "SIGTERM"
    assert options["RestartPreventExitStatus"].split() == ["2", "3", "4"]


def test_the_unit_refuses_calls_it_does_not_know_and_kills_nobody_for_them() -> None:
    """Found in review: cachestat(2) is in no group of systemd 252, and a filter without this line kills for it."""
    lines = UNIT.read_text().splitlines()
    assert "SystemCallFilter=@system-service" in lines and "SystemCallErrorNumber=EPERM" in lines


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in DOCKERFILE.read_text().splitlines() if line[:1] != "#"))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def test_the_image_runs_as_nobody_in_particular_and_holds_no_secret() -> None:
    """Not root, a volume, a health check on /readyz, nothing that looks like a credential."""
    said = dict(instructions())
    assert said["USER"] not in ("root", "0")
    assert said["VOLUME"] == "/var/lib/thermocline"
    assert "/readyz" in said["HEALTHCHECK"]
    assert said["STOPSIGNAL"] == "SIGTERM"
    assert not re.search(r"(?i)(secret|token|passw|AKIA|aws_\w+\s*=)", "\n".join(" ".join(i) for i in instructions()))
    assert "--secure" in json.loads(said["CMD"])


def test_what_the_image_copies_is_a_program_that_serves(tmp_path: Path) -> None:
    """Only what is copied, installed in a clean environment beside the same dependencies: its entry point serves, and
    its health check sees when. (Not built: there is no docker daemon here.)"""
    source = tmp_path / "src"
    source.mkdir()
    copied = [rest.split() for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for *names, target in copied:
        for name in names:
            assert (ROOT / name).exists(), name
            assert f"!{name}" in ignored, f"{name} does not get into the build"
            to = source / target / (name if target == "./" else "")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, to)
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    for path in next((Path(sys.prefix) / "lib").glob("python*/site-packages")).iterdir():
        if "thermocline" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    python = environment / "bin/python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        str(source),
    ]
    subprocess.run(install, check=True, cwd=tmp_path, timeout=300)
    said = dict(instructions())
    (entry,), arguments = json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])
    check = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
    assert check[0] == "python"
    arguments = [str(tmp_path / "data") if a.startswith("/var/lib") else re.sub(r":\d+$", ":0", a) for a in arguments]
    with serving([str(environment / "bin" / entry), *arguments], tmp_path) as http:
        probe = check[2].replace("9644", http.rpartition(":")[2]).replace("/var/lib/thermocline", str(tmp_path))

        def healthy() -> bool:
            return subprocess.run([python, "-c", probe], check=False, capture_output=True).returncode == 0

        assert wait_until(healthy, "healthy", 30)
    assert not healthy()


@contextlib.contextmanager
def serving(command: list[str], directory: Path) -> Iterator[str]:
    """The HTTP address of a broker started by this command."""
    with (directory / "serve.log").open("w") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready "), (directory / "serve.log").read_text()
        yield dict(part.split("=", 1) for part in ready.split()[1:])["http"]
        process.terminate()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()


def test_ipv6_all_the_way(tmp_path: Path) -> None:
    """Listeners, the ready line, `-b` of every command, the advertised address, the HTTP port found by the client."""
    try:
        import socket

        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    flags = ("--listen", "[::1]:0", "--http", "[::1]:0")
    with running_broker(tmp_path / "data", f"file://{tmp_path}/bucket", *flags) as broker:
        assert broker.kafka.startswith("[::1]:") and broker.http.startswith("[::1]:")
        kit.create(broker)
        assert kit.produce(broker)[0] == 0
        assert kit.cli("consume", "-t", kit.TOPIC, "-b", broker.kafka, "-o", "beginning", "-e", "-f", "%o\n") == "0\n"
        kit.cli("tier", "seal", "--wait", "-b", broker.kafka)
        assert "broker 1: disk " in kit.status_of(broker), "its HTTP port was found"
        assert broker.stop() == 0
