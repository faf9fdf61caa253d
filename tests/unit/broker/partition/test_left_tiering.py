"""A replicated topic that is tiered no more, and a replica that was away meanwhile."""

from __future__ import annotations

from typing import Any

from broker.wire.apis import ApiKey
from broker.wire.messages import CreateTopicsRequest, CreateTopicsRequestConfig, CreateTopicsRequestTopic
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place
from tests.support.waiting import until
from tests.unit.broker.test_several_brokers import two_brokers


async def test_a_replica_that_lacks_what_only_the_bucket_held_copies_the_log_anew() -> None:
    """Its first segments were in the bucket alone, and are not any more: what is left here goes aside, it begins where
    the leader's log does, and joins again."""
    place = Place()
    brokers = await two_brokers(place)
    configs = [CreateTopicsRequestConfig(name.replace("_", "."), value) for name, value in SMALL_SEGMENTS.items()]
    wanted = CreateTopicsRequestTopic(name="log", num_partitions=1, replication_factor=2, configs=configs)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
    (answer,) = (await brokers[1].call(ApiKey.CREATE_TOPICS, request)).topics
    assert answer.error_code == 0, answer
    row = brokers[1].context.metadata.topic("log").rows[0]
    leading, away = row.leader, 3 - row.leader
    leader = brokers[leading]

    def copy(life: Life) -> Any:
        found = life.context.registry.followed.get(("log", 0))
        return None if found is None else found.log

    await until(lambda: copy(brokers[away]) is not None)
    for _ in range(40):
        assert (await leader.produce("log", b"x" * 100)).error_code == 0
    await until(lambda: leader.partition("log").log.local_log_start_offset > 20)
    assert (await leader.produce("log", b"x" * 100)).error_code == 0
    await until(lambda: copy(brokers[away]).local_log_start_offset > 10)
    await brokers[away].crash()
    await until(lambda: leader.context.metadata.topic("log").rows[0].in_sync == (leading,))
    decides = brokers[1] if away == 2 else brokers[2]
    await until(lambda: decides.context.metadata.is_decided_by(leading))
    names = {**leader.context.metadata.topic("log").configs, "remote.storage.enable": "false"}
    await leader.context.controller.set_configs("log", lambda _: names)
    log = leader.partition("log").log
    await until(lambda: log.log_start_offset == log.local_log_start_offset)
    for _ in range(20):
        assert (await leader.produce("log", b"y" * 100)).error_code == 0
    brokers[away] = await place.start(f"node.id={away}", directory="ab"[away - 1])
    await until(lambda: len(leader.context.metadata.topic("log").rows[0].in_sync) == 2)
    found = copy(brokers[away])
    assert (found.log_start_offset, found.log_end_offset) == (log.log_start_offset, log.log_end_offset)
    for life in reversed(brokers.values()):
        await life.stop()
