"""Metadata's partitions as bytes: what the codec says of the same views, whatever they share."""

from __future__ import annotations

from typing import cast

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.metadata.cluster_view import ClusterView, PartitionView
from broker.handlers.metadata.metadata import PartitionEncoder
from broker.metadata.image import Topic
from broker.metadata.records import NO_EPOCH, NO_LEADER, Row
from broker.wire.apis import APIS, ApiKey
from broker.wire.codec import encode_response, encode_response_in_steps
from broker.wire.encoder import STEP_ELEMENTS
from broker.wire.messages import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

VERSIONS = range(APIS[ApiKey.METADATA].version_min, APIS[ApiKey.METADATA].version_max + 1)
LED = PartitionView(ErrorCode.NONE, 1, 7, [1, 2, 3], [1, 3], [2])
ALONE = PartitionView(ErrorCode.NONE, 2, 0, [2], [2], [])
NOBODYS = PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, NO_EPOCH, [3, 1], [], [3, 1])
UNREACHED = PartitionView(ErrorCode.LISTENER_NOT_FOUND, NO_LEADER, 9, list(range(20)), [4], [])
VIEWS = (LED, ALONE, LED, NOBODYS, UNREACHED, ALONE)
PARTITIONS = STEP_ELEMENTS + 10  # more than one step of the encoder


class _View:
    """Every partition is one of `VIEWS`, in turn."""

    def partition(self, _: Topic, index: int) -> PartitionView:
        return VIEWS[index % len(VIEWS)]


def _message(version: int, index: int) -> MetadataResponsePartition:
    error, leader, epoch, replicas, in_sync, offline = VIEWS[index % len(VIEWS)]
    if error is ErrorCode.LISTENER_NOT_FOUND and version < 6:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(error, index, leader, epoch, replicas, in_sync, offline)


@pytest.mark.parametrize("version", VERSIONS)
def test_they_are_the_codecs_bytes(version: int) -> None:
    """Beside a topic whose partitions are messages, with what follows them."""
    row = Row((1,), 1, 0, 0, (1,), 0)
    topic = Topic("id", "many", (row,) * PARTITIONS, {}, False)
    plain = [_message(version, index) for index in range(PARTITIONS)]
    shown = PartitionEncoder(cast(ClusterView, _View()), version).of(topic)
    few = MetadataResponseTopic(name="few", partitions=plain[:3])

    def answer(partitions: list[MetadataResponsePartition]) -> MetadataResponse:
        return MetadataResponse(topics=[few, MetadataResponseTopic(name="many", partitions=partitions), few])

    steps = encode_response_in_steps(ApiKey.METADATA, version, answer(cast(list[MetadataResponsePartition], shown)))
    try:
        while True:
            next(steps)
    except StopIteration as done:
        assert done.value == encode_response(ApiKey.METADATA, version, answer(plain))
