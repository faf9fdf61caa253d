"""Groups as stock admin clients see them, and a deletion that a kill right after its answer does not take back."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from tests.support.clients.stock_clients import commit_offset, committed_offset, create_topic
from tests.support.processes.site import Site
from tests.support.waiting import wait_until

TOPIC, NOTHING_COMMITTED = "orders", -1001
GROUPS = ("empty-1", "empty-2", "empty-3")


def _commit_all(bootstrap: str) -> None:
    create_topic(bootstrap, TOPIC, 2)
    for group in GROUPS:
        commit_offset(bootstrap, group, TOPIC, 0, 5)


def test_confluent_kafka_lists_describes_and_deletes(directory_site: Site) -> None:
    """librdkafka: states, members with what they are assigned, refusals by name."""
    with directory_site.broker() as broker:
        _commit_all(broker.kafka)
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        reader = Consumer({"bootstrap.servers": broker.kafka, "group.id": "busy", "client.id": "reader"})
        reader.subscribe([TOPIC])
        wait_until(lambda: reader.poll(0.1) is None and reader.assignment(), "the reader has its partitions")
        listed = admin.list_consumer_groups().result(30)
        assert not listed.errors
        found = {row.group_id: (row.state, row.is_simple_consumer_group) for row in listed.valid}
        assert found == {
            "busy": (ConsumerGroupState.STABLE, False),
            **dict.fromkeys(GROUPS, (ConsumerGroupState.EMPTY, True)),
        }
        stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(30)
        assert [row.group_id for row in stable.valid] == ["busy"]
        busy = admin.describe_consumer_groups(["busy"], include_authorized_operations=True)["busy"].result(30)
        (member,) = busy.members
        assert (busy.partition_assignor, member.client_id, member.host) == ("range", "reader", "/127.0.0.1")
        assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [(TOPIC, 0), (TOPIC, 1)]
        assert len(busy.authorized_operations) > 2
        deleted = admin.delete_consumer_groups(["busy", "empty-1", "nobody"], request_timeout=30)
        assert deleted["empty-1"].result(30) is None
        for group, code in (("busy", KafkaError.NON_EMPTY_GROUP), ("nobody", KafkaError.GROUP_ID_NOT_FOUND)):
            with pytest.raises(KafkaException) as refused:
                deleted[group].result(30)
            assert refused.value.args[0].code() == code
        place = ConsumerGroupTopicPartitions("empty-2", [ConfluentPartition(TOPIC, 0, 2)])
        (altered,) = admin.alter_consumer_group_offsets([place]).values()
        assert altered.result(30).topic_partitions[0].error is None
        assert committed_offset(broker.kafka, "empty-2", TOPIC, 0) == 2
        reader.close()


def test_kafka_python_lists_and_describes(directory_site: Site) -> None:
    """The other admin client of Python."""
    with directory_site.broker() as broker:
        _commit_all(broker.kafka)
        admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
        try:
            listed = admin.list_groups()
            assert sorted(row["group_id"] for row in listed) == list(GROUPS)
            described = admin.describe_groups([GROUPS[0]])
            assert described[GROUPS[0]]["group_state"] == "Empty"
            assert set(admin.delete_groups(list(GROUPS)).values()) == {"OK"}
            assert admin.list_groups() == []
        finally:
            admin.close()


def test_a_deletion_survives_a_kill_right_after_its_answer(directory_site: Site) -> None:
    """kill -9 as soon as the client has it: no group, no position of it, the others untouched."""
    with directory_site.broker() as broker:
        _commit_all(broker.kafka)
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        deleted = admin.delete_consumer_groups(["empty-1", "empty-3"], request_timeout=30)
        for group in ("empty-1", "empty-3"):
            deleted[group].result(30)
        broker.kill()
    with directory_site.broker() as broker:
        offsets = [committed_offset(broker.kafka, group, TOPIC, 0) for group in GROUPS]
        assert offsets == [NOTHING_COMMITTED, 5, NOTHING_COMMITTED]
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        assert [row.group_id for row in admin.list_consumer_groups().result(30).valid] == ["empty-2"]
