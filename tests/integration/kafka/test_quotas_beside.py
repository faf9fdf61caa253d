"""Client quotas beside Apache Kafka 4.3.1: its ConfigCommand says the same of both, and the same traffic is throttled
alike, by throttle time and by the time that the connection is not read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.wire import messages as wire
from broker.wire.apis import APIS, ApiKey
from tests.integration.kafka.test_kafka_tools_beside import CONFIGS, TOPICS, Beside, both_brokers
from tests.support.brokers.broker_kit import batch_of, fetch_request, produce_request
from tests.support.kafka.kafka_tools import kafka_tool
from thermocline.cli.clients.connections import connect
from thermocline.cli.clients.wire_client import WireClient

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

CLIENT = ("--entity-type", "clients", "--entity-name", "thermocline-cli")
KEPT = ("--config", "remote.storage.enable=false", "--config", "retention.ms=-1")
"""Records here are stamped with the simulation's first second."""

FLUSHED_MS = 400  # what one broker may take longer than the other


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with both_brokers(tmp_path_factory.mktemp("quotas")) as found:
        yield found


def test_kafkas_tool_sets_describes_and_deletes_the_same(beside: Beside) -> None:
    def same(*arguments: str) -> int:
        return beside.same(CONFIGS, *arguments).code

    user, client = ("--entity-type", "users"), ("--entity-type", "clients")
    alice = (*user, "--entity-name", "alice o'hara=ü")
    for entity, quotas in (
        (alice, "producer_byte_rate=1024,consumer_byte_rate=2048"),
        ((*user, "--entity-default"), "request_percentage=12.5"),
        ((*client, "--entity-name", "c-1"), "controller_mutation_rate=0.5"),
        ((*client, "--entity-default"), "producer_byte_rate=9000000000000"),
        ((*alice, *client, "--entity-name", "c-1"), "producer_byte_rate=1"),
        ((*alice, *client, "--entity-default"), "producer_byte_rate=2"),
        ((*user, "--entity-default", *client, "--entity-default"), "producer_byte_rate=3"),
        (("--entity-type", "ips", "--entity-name", "10.0.0.1"), "connection_creation_rate=7"),
        (("--entity-type", "ips", "--entity-name", "localhost"), "connection_creation_rate=8"),
        (("--entity-type", "ips", "--entity-default"), "connection_creation_rate=9"),
    ):
        assert same("--alter", *entity, "--add-config", quotas) == 0
        if entity[1] != "users" or len(entity) > 4:
            same("--describe", *entity)
    for what in (client, (*user, *client), ("--entity-type", "ips"), (*alice, *client)):
        same("--describe", *what)
    if 50 in APIS:  # DescribeUserScramCredentials, which the tool asks with quotas of users
        same("--describe", *user)
        same("--describe", *alice)
    for entity, quotas in (
        (alice, "producer_byte_rate=0"),
        (alice, "producer_byte_rate=-1"),
        (alice, "connection_creation_rate=1"),
        (("--entity-type", "ips", "--entity-name", "10.0.0.1"), "producer_byte_rate=1"),
        (("--entity-type", "ips", "--entity-name", "nobody.invalid"), "connection_creation_rate=1"),
        (("--entity-type", "ips", "--entity-name", "10.0.0.1"), "connection_creation_rate=1.5"),
    ):
        assert same("--alter", *entity, "--add-config", quotas) == 1, (entity, quotas)
    assert same("--alter", *alice, "--delete-config", "producer_byte_rate") == 0
    assert same("--alter", *alice, "--delete-config", "producer_byte_rate") == 1
    same("--describe", *user, *client)
    for entity, keys in (
        (alice, "consumer_byte_rate"),
        ((*user, "--entity-default"), "request_percentage"),
        ((*client, "--entity-name", "c-1"), "controller_mutation_rate"),
        ((*client, "--entity-default"), "producer_byte_rate"),
        ((*alice, *client, "--entity-name", "c-1"), "producer_byte_rate"),
        ((*alice, *client, "--entity-default"), "producer_byte_rate"),
        ((*user, "--entity-default", *client, "--entity-default"), "producer_byte_rate"),
        (("--entity-type", "ips", "--entity-default"), "connection_creation_rate"),
    ):
        assert same("--alter", *entity, "--delete-config", keys) == 0


def test_answers_to_odd_requests_are_the_same(beside: Beside) -> None:
    """Codes and texts, as far as Kafka's do not depend on a map's order."""
    entity, op = wire.AlterClientQuotasRequestEntity, wire.AlterClientQuotasRequestOp
    component = wire.DescribeClientQuotasRequestComponent
    rate = "producer_byte_rate"
    found = []
    for address in (beside.kafka, beside.ours):
        said: list[Any] = []
        with connect(address) as client:
            for parts, ops in (
                ([], []),
                ([entity("user", "")], []),
                ([entity("group", "g")], []),
                ([entity("user", "u"), entity("ip", "1.1.1.1")], []),
                ([entity("user", "u")], [op(rate, 1.5)]),
                ([entity("user", "u")], [op(rate, 1e19)]),
                ([entity("user", "u")], [op(rate, 1.0), op(rate, 2.0)]),
                ([entity("user", "u")], [op("nonsense", 0.0, True)]),
                ([entity("user", "u"), entity("user", "w")], [op("nonsense", 1.0)]),
            ):
                entry = wire.AlterClientQuotasRequestEntry(entity=parts, ops=ops)
                request = wire.AlterClientQuotasRequest(entries=[entry], validate_only=True)
                answer = client.call(ApiKey.ALTER_CLIENT_QUOTAS, request, wire.AlterClientQuotasResponse)
                said.append(
                    [
                        (
                            each.error_code,
                            each.error_message,
                            {part.entity_type: part.entity_name for part in each.entity},
                        )
                        for each in answer.entries
                    ]
                )
            for components in (
                [component("", 0, "a")],
                [component("user", 0, "a"), component("user", 2, None)],
                [component("group", 0, "a")],
                [component("user", 0, None)],
                [component("user", 1, "a")],
                [component("user", 2, "a")],
                [component("user", 5, None)],
                [component("user", 2, None), component("ip", 2, None)],
            ):
                described = client.call(
                    ApiKey.DESCRIBE_CLIENT_QUOTAS,
                    wire.DescribeClientQuotasRequest(components=components),
                    wire.DescribeClientQuotasResponse,
                )
                said.append((described.error_code, described.error_message, described.entries))
        found.append(said)
    for kafkas, ours in zip(*found, strict=True):
        assert ours == kafkas


def measured(address: str, ask: Callable[[WireClient, int], int], count: int) -> tuple[list[int], list[int]]:
    """Throttle times of so many requests, and ms from each response to the next."""
    throttles, waits = [], []
    with connect(address) as client:
        at_s = time.monotonic()
        for number in range(count):
            throttles.append(ask(client, number))
            now_s = time.monotonic()
            waits.append(round((now_s - at_s) * 1000))
            at_s = now_s
    return throttles, waits


def limited(beside: Beside, quotas: str) -> None:
    assert beside.same(CONFIGS, "--alter", *CLIENT, "--add-config", quotas).code == 0
    time.sleep(1.0)  # both have applied it


def unlimited(beside: Beside, key: str) -> None:
    assert beside.same(CONFIGS, "--alter", *CLIENT, "--delete-config", key).code == 0


def alike(beside: Beside, ask: Callable[[WireClient, int], int], count: int) -> list[int]:
    """The same requests to both; AssertionError unless both were throttled alike. Our throttle times."""
    kafkas, ours = (measured(address, ask, count) for address in (beside.kafka, beside.ours))
    shown = f"kafka: {kafkas}\nours:  {ours}"
    for kafka_ms, our_ms in zip(kafkas[0], ours[0], strict=True):
        assert our_ms == pytest.approx(kafka_ms, rel=0.1, abs=FLUSHED_MS), shown
    for throttle_ms, wait_ms in zip(ours[0], ours[1][1:], strict=False):
        assert throttle_ms - 20 <= wait_ms <= throttle_ms + 3 * FLUSHED_MS, (
            shown
        )  # the next response waits for the mute
    return ours[0]


def test_produced_bytes_are_throttled_alike(beside: Beside) -> None:
    beside.same(TOPICS, "--create", "--topic", "produced", *KEPT)
    limited(beside, "producer_byte_rate=10000")
    request = produce_request("produced", batch_of(b"x" * 30_000), acks=1)

    def ask(client: WireClient, _: int) -> int:
        answer = client.call(ApiKey.PRODUCE, request, wire.ProduceResponse, version_max=9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        return answer.throttle_time_ms

    throttles = alike(beside, ask, 7)
    unlimited(beside, "producer_byte_rate")
    assert throttles[:3] == [0, 0, 0] and all(throttles[3:6]) and sum(throttles) > 4_000


def test_a_throttled_fetch_is_empty_alike(beside: Beside) -> None:
    beside.same(TOPICS, "--create", "--topic", "fetched", *KEPT)
    for address in (beside.kafka, beside.ours):
        with connect(address) as client:
            for _ in range(4):
                request = produce_request("fetched", batch_of(b"x" * 30_000), acks=1)
                answer = client.call(ApiKey.PRODUCE, request, wire.ProduceResponse, version_max=9)
                assert answer.responses[0].partition_responses[0].error_code == 0
    limited(beside, "consumer_byte_rate=10000")
    counts: list[int] = []

    def ask(client: WireClient, _: int) -> int:
        request = fetch_request(("fetched", 0, 1), partition_max_bytes=30_000)
        answer = client.call(ApiKey.FETCH, request, wire.FetchResponse, version_max=12)
        counts.append(sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions))
        return answer.throttle_time_ms

    throttles = alike(beside, ask, 8)
    unlimited(beside, "consumer_byte_rate")
    assert counts[:8] == counts[8:] and 0 in counts, (counts, throttles)
    assert [not throttle_ms for throttle_ms in throttles] == [count > 30_000 for count in counts[8:]]


def test_mutations_are_refused_and_throttled_alike(beside: Beside) -> None:
    limited(beside, "controller_mutation_rate=2")
    codes: list[int] = []

    def ask(client: WireClient, number: int) -> int:
        topic = wire.CreateTopicsRequestTopic(name=f"made-{number}", num_partitions=8, replication_factor=1)
        version = 7 if number < 5 else 5
        answer = client.call(
            ApiKey.CREATE_TOPICS,
            wire.CreateTopicsRequest(topics=[topic], timeout_ms=20_000),
            wire.CreateTopicsResponse,
            version_max=version,
        )
        codes.append(answer.topics[0].error_code)
        return answer.throttle_time_ms

    throttles = alike(beside, ask, 7)
    unlimited(beside, "controller_mutation_rate")
    assert codes[:7] == codes[7:] and 89 in codes[:5], codes
    assert throttles[-1]


@pytest.mark.slow
def test_a_producer_keeps_to_its_quota_and_hears_that_it_is_throttled(beside: Beside, tmp_path: Path) -> None:
    """Kafka's ProducerPerformance: 25.3 MB at 1 MB/s. Ten windows' worth goes at once, and again after eleven windows,
    when that is forgotten: 22 s and more, from both within 15 %."""
    beside.same(TOPICS, "--create", "--topic", "fast", *KEPT)
    name = ("--entity-type", "clients", "--entity-name", "fast")
    beside.same(CONFIGS, "--alter", *name, "--add-config", "producer_byte_rate=1000000")
    rates = []
    for address in (beside.kafka, beside.ours):
        config = tmp_path / "producer.properties"
        config.write_text(f"bootstrap.servers={address}\nclient.id=fast\nbatch.size=50000\n")
        said = kafka_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "fast", "--num-records", "25000", "--record-size", "1000", "--throughput", "-1"),
            *("--producer.config", str(config), "--print-metrics"),
        )
        found = re.search(r"produce-throttle-time-max\S*\s*:\s*([\d.]+)", said)
        assert found and float(found[1]) > 0, (address, said[-2000:])
        sent = re.findall(r"25000 records sent, ([\d.]+) records/sec", said)
        rates.append(float(sent[-1]))
    assert rates[1] == pytest.approx(rates[0], rel=0.15)
    assert all(25_000 / 28 <= rate <= 25_000 / 20 for rate in rates), rates
