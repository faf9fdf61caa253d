"""Admin requests at brokers that do not decide: real processes, one directory bucket, one broker asked."""

from __future__ import annotations

from typing import Any

from broker.error_codes import ErrorCode
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.three_brokers import NODES, SLACK_S, Three
from tests.support.waiting import wait_until
from thermocline.cli.clients.wire_client import WireClient


def client(broker: BrokerProcess) -> WireClient:
    host, _, port = broker.kafka.rpartition(":")
    return WireClient(host, int(port), timeout_s=30.0)


def create(asked: WireClient, name: str, **configs: str) -> int:
    wanted = m.CreateTopicsRequestTopic(
        name=name,
        num_partitions=3,
        replication_factor=1,
        configs=[m.CreateTopicsRequestConfig(key.replace("_", "."), value) for key, value in configs.items()],
    )
    request = m.CreateTopicsRequest(topics=[wanted], timeout_ms=20_000)
    answer = asked.call(ApiKey.CREATE_TOPICS, request, m.CreateTopicsResponse)
    return answer.topics[0].error_code


def seen(asked: WireClient, name: str) -> m.MetadataResponseTopic:
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return asked.call(ApiKey.METADATA, request, m.MetadataResponse).topics[0]


def retention(asked: WireClient, name: str) -> Any:
    wanted = m.DescribeConfigsRequestResource(2, name, ["retention.ms"])
    request = m.DescribeConfigsRequest(resources=[wanted])
    return asked.call(ApiKey.DESCRIBE_CONFIGS, request, m.DescribeConfigsResponse).results[0].configs[0].value


def other_than(node_id: int) -> int:
    return next(other for other in NODES if other != node_id)


def test_what_is_written_by_any_broker_is_read_there_at_once(cluster: Three) -> None:
    """One decides, another alone is asked: made, configured, deleted, each seen by the very next request."""
    with client(cluster.brokers[other_than(cluster.controller())]) as asked:
        for number in range(5):
            name = f"t{number}"
            assert create(asked, name, retention_ms="5000") == 0, cluster.logs()
            assert seen(asked, name).error_code == 0 and len(seen(asked, name).partitions) == 3
            change = m.IncrementalAlterConfigsRequestConfig("retention.ms", 0, str(6000 + number))
            resource = m.IncrementalAlterConfigsRequestResource(2, name, [change])
            request = m.IncrementalAlterConfigsRequest(resources=[resource])
            altered = asked.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, m.IncrementalAlterConfigsResponse)
            assert altered.responses[0].error_code == 0
            assert retention(asked, name) == str(6000 + number)
            assert create(asked, name) == ErrorCode.TOPIC_ALREADY_EXISTS
            delete = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=name)], timeout_ms=20_000)
            gone = asked.call(ApiKey.DELETE_TOPICS, delete, m.DeleteTopicsResponse)
            assert gone.responses[0].error_code == 0
            assert seen(asked, name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_are_made_again_when_the_controller_was_killed(cluster: Three) -> None:
    """Until another decides, who asks is told to ask again; then the same broker's answer is that it is made."""
    controller = cluster.controller()
    with client(cluster.brokers[other_than(controller)]) as asked:
        cluster.kill(controller)
        told: list[int] = []

        def made() -> bool:
            told.append(create(asked, "after"))
            return told[-1] in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

        lease_s = float(str(cluster.site.settings["thermocline.lease.ms"])) / 1000
        wait_until(made, "the topic", lease_s + SLACK_S)
        again = {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR}
        assert set(told[:-1]) <= again, told
        assert seen(asked, "after").error_code == 0
        assert "after" in {topic.name for topic in cluster.root()[0].topics.values()}
