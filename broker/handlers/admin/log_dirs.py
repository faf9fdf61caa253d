"""DescribeLogDirs and AlterReplicaLogDirs, as Apache Kafka with one log directory answers them.

The answers cover the logs of this broker, led or followed. The directory is never cordoned (version 5), because there
is no other directory for new logs. Source: KIP-113, KIP-827, KIP-1066.
"""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.partition.readable import HostedReplica
from broker.wire import messages as wire
from seams.loop.turns import Turns, next_turn

_FUTURE_NAME_CHARS: Final = len(".") + 32 + len("-future")
"""Length of the suffix that Kafka adds to the partition's name for a copy's directory; a file name has at most 255
characters."""
_NAME_CHARS_MAX: Final = 255


async def handle_describe_log_dirs(
    context: Context, request: wire.DescribeLogDirsRequest, call: Call
) -> wire.DescribeLogDirsResponse:
    """Local bytes of each requested partition (None: all), and the space of the file system."""
    asked = None
    if request.topics is not None:
        asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    sizes: dict[str, list[wire.DescribeLogDirsResponsePartition]] = {}
    turns = Turns()
    for partition in context.registry.written:
        if asked is None or (partition.topic, partition.index) in asked:
            sizes.setdefault(partition.topic, []).append(
                wire.DescribeLogDirsResponsePartition(
                    partition_index=partition.index, partition_size=partition.log.local_bytes
                )
            )
        if turns.over():
            await next_turn()
    space = context.world.disk.space(context.config.data_dir)
    log_dir = wire.DescribeLogDirsResponseLogDir(
        log_dir=context.config.data_dir,
        topics=[wire.DescribeLogDirsResponseTopic(name=name, partitions=found) for name, found in sizes.items()],
        total_bytes=space.total,
        usable_bytes=space.free,
    )
    return wire.DescribeLogDirsResponse(results=[log_dir])


async def handle_alter_replica_log_dirs(
    context: Context, request: wire.AlterReplicaLogDirsRequest, call: Call
) -> wire.AlterReplicaLogDirsResponse:
    """Answer whether each replica is in the requested directory. If a replica is named twice, the last directory
    counts, as in Kafka.
    """
    wanted = {(topic.name, index): of.path for of in request.dirs for topic in of.topics for index in topic.partitions}
    topics: dict[str, list[wire.AlterReplicaLogDirsResponsePartition]] = {}
    turns = Turns()
    for (name, index), path in wanted.items():
        answer = wire.AlterReplicaLogDirsResponsePartition(index, _destination_error(context, name, index, path))
        topics.setdefault(name, []).append(answer)
        if turns.over():
            await next_turn()
    return wire.AlterReplicaLogDirsResponse(
        results=[wire.AlterReplicaLogDirsResponseTopic(name, found) for name, found in topics.items()]
    )


def _destination_error(context: Context, name: str, index: int, path: str) -> ErrorCode:
    if len(f"{name}-{index}") + _FUTURE_NAME_CHARS > _NAME_CHARS_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if path != context.config.data_dir:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if _hosted(context, name, index) is not None:
        return ErrorCode.NONE
    topic = context.metadata.topic_named(name)
    is_known = topic is not None and 0 <= index < topic.partitions
    return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _hosted(context: Context, name: str, index: int) -> HostedReplica | None:
    return context.registry.led(name, index) or context.registry.followed.get((name, index))
