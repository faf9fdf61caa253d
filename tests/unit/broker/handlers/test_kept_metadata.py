"""A long Metadata answer is encoded once: it says what one made anew says, in every version, after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import permutations, product

import pytest
from msgspec.structs import replace

from broker.following.response_cache import ANSWERS_MAX, BYTES_MAX, BYTES_MIN
from broker.metadata.records import NO_LEADER, Endpoint, RowsSet
from broker.net.dispatch import Peer
from broker.wire.apis import APIS, ApiKey
from broker.wire.codec import decode_response, encode_response
from broker.wire.framing import FRAME_PREFIX_SIZE, parse_response_header
from broker.wire.messages import MetadataRequest, MetadataRequestTopic
from tests.support.brokers.broker_kit import Life, Place, joined, parts_of
from tests.support.brokers.neighbours import commit, create, join, move, neighbour, row

OWN = 8  # partitions that the broker that is asked leads
LONG = 400
VERSIONS = range(APIS[ApiKey.METADATA].version_min, APIS[ApiKey.METADATA].version_max + 1)
PEERS = {name: Peer(1, "127.0.0.1:50000", name) for name in ("PLAINTEXT", "OTHER")}
TWO_LISTENERS = (
    "listeners=PLAINTEXT://127.0.0.1:9001,OTHER://127.0.0.1:9002",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
    "inter.broker.listener.name=PLAINTEXT",
)


async def _long(place: Place) -> Life:
    """Node 1 is asked, and leads the first of the topic; 2 and 3 the rest, some of it nobody. 3 has one listener."""
    life = await place.start()
    await join(life, 2, 3)
    two = neighbour(life, 2)
    await commit(life, replace(two, listeners=(*two.listeners, Endpoint("OTHER", "x2", 7))))
    rows = [row(1) for _ in range(OWN)]
    rows += [row(2 + at % 2, 3 - at % 2, 1, epoch=at % 5) for at in range(OWN, LONG - 2)]
    rows += [row(3, 2, leader=NO_LEADER, in_sync=(3,), epoch=7), row(2, 3, in_sync=(2,))]
    await create(life, "long", *rows)
    await life.context.controller.opened(life.context.metadata.topic("long"))
    return life


async def _body(life: Life, version: int, *names: str, listener: str = "PLAINTEXT", flag: bool = False) -> bytes:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names] or (None if version else []),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=flag,
        include_cluster_authorized_operations=flag,
    )
    answer = life.dispatch(ApiKey.METADATA, request, version, PEERS[listener])
    frame = memoryview(joined(await parts_of(answer) or ()))[FRAME_PREFIX_SIZE:]
    return bytes(frame[parse_response_header(frame, ApiKey.METADATA, version)[1] :])


def _forget(life: Life) -> None:
    life.context.response_cache.get("nothing was kept at this stamp", None)
    assert len(life.context.response_cache) == 0


async def _answers(life: Life, versions: Iterable[int], *, flag: bool = False) -> list[bytes]:
    """Of all topics and of the long one, by both listeners: at most 16 answers for four versions."""
    asked = product(versions, PEERS, ((), ("long",)))
    return [await _body(life, version, *names, listener=listener, flag=flag) for version, listener, names in asked]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_kept_is_what_is_made_anew(version: int, flag: bool) -> None:
    """By each listener, of all topics and of one by name; and these are the bytes of the codec."""
    life = await _long(Place(*TWO_LISTENERS))
    first = await _answers(life, [version], flag=flag)
    assert len(life.context.response_cache) == len(first) == 4
    assert await _answers(life, [version], flag=flag) == first
    _forget(life)
    assert await _answers(life, [version], flag=flag) == first
    assert (await _answers(life, [version], flag=not flag) == first) == (version < 8)
    assert first[0] != first[2]  # the other listener's addresses
    for body in first:
        message = decode_response(ApiKey.METADATA, version, memoryview(body))
        assert [len(topic.partitions) for topic in message.topics] == [LONG]  # type: ignore[attr-defined]
        assert b"".join(encode_response(ApiKey.METADATA, version, message)) == body  # type: ignore[arg-type]
    await life.stop()


async def test_every_change_is_told_to_the_next_who_asks() -> None:
    """One in-sync set, a leadership of this broker that moves or ends here before the image says so, a session that
    ends, a new topic, a deleted one: whatever is kept."""
    life = await _long(Place(*TWO_LISTENERS))
    versions, replicas = (0, 5, 7, 12), life.replicas
    assert replicas is not None
    topic = life.context.metadata.topic("long")

    async def leaves_the_set() -> None:
        now = topic.rows[LONG - 3]
        left = replace(now, in_sync=now.in_sync[:-1], partition_epoch=now.partition_epoch + 1)
        await commit(life, RowsSet(topic.topic_id, ((LONG - 3, left),)))

    async def moves_away() -> None:
        await move(life, "long", 0, 2)

    async def resigns() -> None:
        before = life.context.metadata.swaps
        replicas.resign(topic, [1])
        assert life.context.metadata.swaps == before

    async def session_ends() -> None:
        three = life.context.metadata.image.nodes[3]
        rows = life.context.metadata.topic("long").rows
        led = [
            (at, replace(now, leader=NO_LEADER, partition_epoch=now.partition_epoch + 1))
            for at, now in enumerate(rows)
            if now.leader == 3
        ]
        await commit(life, RowsSet(topic.topic_id, tuple(led)), replace(three, active=False))

    async def is_made() -> None:
        await life.create("another", 1)

    before = await _answers(life, versions)
    for change in (leaves_the_set, moves_away, resigns, session_ends, is_made):
        assert await _answers(life, versions) == before, change
        assert len(life.context.response_cache) == len(before)
        await change()
        after = await _answers(life, versions)
        _forget(life)
        assert await _answers(life, versions) == after, change
        changed = [old != new for old, new in zip(before, after, strict=True)]
        assert all(changed[::2]) and (change is is_made or all(changed)), change
        before = after
    await life.context.controller.delete_topic("long")
    assert all(len(body) < BYTES_MIN for body in await _answers(life, versions))
    await life.stop()


async def test_an_answer_that_was_in_the_making_when_something_changed_is_not_kept() -> None:
    """It may have looked before; who asks next is told."""
    life = await _long(Place())
    topic = await create(life, "longer", *(row(2, 3) for _ in range(9_000)), number=78)
    metadata, first = life.context.metadata, topic.rows[0]
    making = asyncio.ensure_future(_body(life, 12))
    await asyncio.sleep(0)  # it asks
    await asyncio.sleep(0)  # it is looked at, up to the first turn's end
    assert not making.done() and len(life.context.response_cache) == 0
    left = replace(first, in_sync=(2,), partition_epoch=first.partition_epoch + 1)
    metadata.swap(metadata.image.with_records([RowsSet(topic.topic_id, ((0, left),))]), metadata.controller)
    await making
    assert len(life.context.response_cache) == 0
    message = decode_response(ApiKey.METADATA, 12, memoryview(await _body(life, 12)))
    assert message.topics[1].partitions[0].isr_nodes == [2]  # type: ignore[attr-defined]
    assert len(life.context.response_cache) == 1
    await life.stop()


async def test_what_is_kept_is_bounded_however_clients_ask() -> None:
    """Every version, flag and listener makes an answer of its own; topics named in many orders, too."""
    life = await _long(Place(*TWO_LISTENERS))
    kept = life.context.response_cache
    for number in range(3):
        await create(life, f"t{number}", row(2), number=80 + number)
    for flag in (False, True):
        for version in VERSIONS:
            await _answers(life, [version], flag=flag)
            assert len(kept) <= ANSWERS_MAX and kept.kept_bytes <= BYTES_MAX
    _forget(life)
    for names in permutations(("long", "t0", "t1", "t2")):
        await _body(life, 12, *names)
    assert len(kept) == ANSWERS_MAX
    _forget(life)
    await _body(life, 12, "long", *(f"u{number}" for number in range(3)))  # unknown ones: these may come at any time
    await _body(life, 12, "t0")  # short
    assert len(kept) == 0
    await life.stop()
