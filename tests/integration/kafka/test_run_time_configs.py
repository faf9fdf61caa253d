"""Configs of running brokers: each that Apache Kafka 4.3.1 takes at run time is asked of Kafka and of this broker. And
what Kafka's tool for its quorum says where there is none."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.definitions import BROKER
from broker.config.values import ConfigType
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from tests.integration.kafka.test_kafka_tools_beside import Beside, both_brokers
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.kafka.kafka_tools import class_path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PROGRAM = """
public class Dynamic {
  public static void main(String[] arguments) {
    for (Object name : org.apache.kafka.server.config.DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS) System.out.println(name);
  }
}
"""
NOT_TAKEN = {
    "config.providers", "listener.security.protocol.map", "listeners", "max.connections.per.ip.overrides",
    "remote.log.manager.copier.thread.pool.size", "remote.log.reader.threads", "sasl.jaas.config",
    "sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol", "ssl.client.auth",
    "ssl.endpoint.identification.algorithm",
}  # fmt: skip
"""Taken by Kafka, refused here: see `broker.config.kafka.at_run_time`. Listeners, and the numbers of copies and of cold
reads at a time, are those of the start."""
OTHER_WORDS = NOT_TAKEN | {"cordoned.log.dirs", "min.insync.replicas"}
"""Refused by both, in other words. Kafka with ELR takes min.insync.replicas for all brokers only."""
SAMPLES = {
    ConfigType.LIST: "x",
    ConfigType.PASSWORD: "secret",
    ConfigType.CLASS: "java.lang.String",
    ConfigType.INT: "1",
    ConfigType.LONG: "1",
}


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with both_brokers(tmp_path_factory.mktemp("run-time")) as found:
        yield found


def altered(address: str, broker: str, name: str) -> tuple[int, str | None]:
    """Error and message of a change that is only validated."""
    definition = BROKER[name]
    config = IncrementalAlterConfigsRequestConfig(
        name=name, config_operation=0, value=definition.default or SAMPLES.get(definition.type, "x")
    )
    resource = IncrementalAlterConfigsRequestResource(resource_type=4, resource_name=broker, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    remote = RemoteBroker(int(address.rpartition(":")[2]))
    response: Any = asyncio.run(remote.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request))
    return response.responses[0].error_code, response.responses[0].error_message


def test_a_running_broker_takes_the_configs_that_kafka_takes(beside: Beside, tmp_path: Path) -> None:
    """Of one broker and of all: the same codes and words, but for the exceptions named above."""
    (tmp_path / "Dynamic.java").write_text(PROGRAM)
    command = ["java", "-cp", class_path(), str(tmp_path / "Dynamic.java")]
    dynamic = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout.split()
    assert len(dynamic) > 90
    different = {
        name
        for name in dynamic
        for broker in ("1", "")
        if altered(beside.ours, broker, name) != altered(beside.kafka, broker, name)
    }
    assert different <= OTHER_WORDS, sorted(different - OTHER_WORDS)
    taken = {name for name in NOT_TAKEN for broker in ("1", "") if altered(beside.ours, broker, name)[0] == 0}
    assert not taken


def test_the_quorum_tool_says_that_there_is_none(beside: Beside) -> None:
    """DescribeQuorum is not advertised: the tool ends with 1 and says so, and no other tool asks for it."""
    for what in ("--status", "--replication"):
        code, _, said = beside.run(beside.ours, QUORUM, "describe", what)
        assert code == 1 and any("The node does not support DESCRIBE_QUORUM" in line for line in said), said
