"""A client cannot slow the broker by topic ids that Python hashes alike.

Everybody knows the hash of an `int`, and so of a `UUID`. A client can choose any number of ids with one hash, and a
dict then compares each of them with all others. Found by a penetration test: a Metadata request of 20 000 such ids,
which needs no right, held the event loop for half a minute.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.net.dispatch import Peer
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import Place

_MODULUS = (1 << 61) - 1  # of Python's hash of numbers (sys.hash_info)
ALIKE = [UUID(int=(number + 1) * _MODULUS) for number in range(2_000)]

REQUESTS: list[tuple[ApiKey, int, Any]] = [
    (
        ApiKey.METADATA,
        12,
        wire.MetadataRequest(topics=[wire.MetadataRequestTopic(topic_id=one, name=None) for one in ALIKE]),
    ),
    (
        ApiKey.FETCH,
        13,
        wire.FetchRequest(
            max_wait_ms=0,
            topics=[
                wire.FetchRequestTopic(topic_id=one, partitions=[wire.FetchRequestPartition(partition=0)])
                for one in ALIKE
            ],
        ),
    ),
    (
        ApiKey.DELETE_TOPICS,
        6,
        wire.DeleteTopicsRequest(
            topics=[wire.DeleteTopicsRequestTopic(name=None, topic_id=one) for one in ALIKE], timeout_ms=1000
        ),
    ),
    (
        ApiKey.OFFSET_FETCH,
        10,
        wire.OffsetFetchRequest(
            groups=[
                wire.OffsetFetchRequestGroup(
                    "g",
                    topics=[wire.OffsetFetchRequestGroupTopic(topic_id=one, partition_indexes=[0, 1]) for one in ALIKE],
                )
            ]
        ),
    ),
]


@pytest.mark.parametrize(("key", "version", "request_"), REQUESTS, ids=[row[0].name for row in REQUESTS])
async def test_ids_of_one_hash_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch, key: ApiKey, version: int, request_: Any
) -> None:
    assert len(set(map(hash, ALIKE))) == 1
    life = await Place().start()
    peer = Peer(1, "10.0.0.1:1", "PLAINTEXT")
    found = wire.FindCoordinatorRequest(key="g")
    assert (await life.call(ApiKey.FIND_COORDINATOR, found, 1, peer)).error_code == 0
    compared, equal = 0, UUID.__eq__

    def counted(one: UUID, other: object) -> bool:
        nonlocal compared
        compared += 1
        return bool(equal(one, other))

    monkeypatch.setattr(UUID, "__eq__", counted)
    await life.call(key, request_, version, peer)
    assert compared < 10 * len(ALIKE)  # it was half of their square
    await life.stop()
