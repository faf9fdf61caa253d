"""Log directories of several brokers: each tells what lies on its own disk, and nothing moves there (KIP-113)."""

from __future__ import annotations

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestDir,
    AlterReplicaLogDirsRequestTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
)
from tests.support.brokers.broker_kit import Life
from tests.support.brokers.house import house
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.waiting import until


async def sizes(life: Life, wanted: DescribeLogDirsRequest) -> dict[tuple[str, int], int]:
    (found,) = (await life.call(ApiKey.DESCRIBE_LOG_DIRS, wanted)).results
    assert found.log_dir == life.context.config.data_dir and found.error_code == 0
    return {
        (topic.name, part.partition_index): part.partition_size for topic in found.topics for part in topic.partitions
    }


async def judged(life: Life, path: str, *places: tuple[str, int]) -> list[ErrorCode]:
    topics = [AlterReplicaLogDirsRequestTopic(name=name, partitions=[index]) for name, index in places]
    asked = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDirsRequestDir(path=path, topics=topics)])
    answer = await life.call(ApiKey.ALTER_REPLICA_LOG_DIRS, asked)
    found = {
        (topic.topic_name, part.partition_index): ErrorCode(part.error_code)
        for topic in answer.results
        for part in topic.partitions
    }
    return [found[place] for place in places]


def test_each_broker_describes_what_it_leads_and_what_it_follows() -> None:
    """Copies were left out: `kafka-log-dirs` showed a third of what lies on a disk."""

    async def scenario() -> None:
        async with house(3) as it:
            leader = it.row().leader
            await it.lives[leader].produce("log", b"x" * 1000)
            await until(lambda: all(life.context.registry.followed for life in it.lives.values()), 10)
            for life in it.lives.values():
                every = DescribeLogDirsRequest(topics=None)
                await until(lambda life=life: held(life) > 1000, 10)  # type: ignore[misc]
                assert set(await sizes(life, every)) == {("log", index) for index in range(3)}
                assert (await sizes(life, every))["log", 0] > 1000
                one = DescribeLogDirsRequest(topics=[DescribeLogDirsRequestTopic(topic="log", partitions=[1, 7])])
                assert set(await sizes(life, one)) == {("log", 1)}

    def held(life: Life) -> int:
        (size,) = [each.log.local_bytes for each in life.context.registry.written if each.index == 0]
        return size

    run_fast(scenario(), timeout_s=HOUR_S)


async def test_a_replica_stays_where_it_lies() -> None:
    """Led or followed; what lies on other brokers alone, or nowhere, or in no directory, is said as Kafka says it."""
    async with house(2) as it:
        await it.lives[1].context.controller.create_topic("one", 1, {}, assignments=[(0, [3])])
        await until(lambda: it.lives[1].context.metadata.topic_named("one") is not None, 10)
        await until(lambda: all(len(life.context.registry.written) >= 2 for life in it.lives.values()), 10)
        life = it.lives[1]
        here, places = life.context.config.data_dir, [("log", 0), ("log", 1), ("one", 0), ("log", 9), ("no", 0)]
        assert await judged(life, here, *places) == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.REPLICA_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert set(await judged(life, f"{here}/", *places)) == {ErrorCode.LOG_DIR_NOT_FOUND}
        assert await judged(life, "/nowhere", ("n" * 220, 0)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
