"""Client quotas on a whole broker: set and described, served first and throttled after, free for brokers."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.throttle import _get, _set
from broker.net.dispatch import Peer
from broker.quotas.client_quotas import QuotaKind
from broker.quotas.loop_time import LoopTime
from broker.security.audit import LOGGER
from broker.wire import messages as wire
from broker.wire.apis import APIS, ApiKey, response_header_version
from broker.wire.codec import encode_response
from broker.wire.framing import response_frame
from broker.wire.table import MESSAGES
from tests.support.brokers.broker_kit import (
    Life,
    Place,
    batch_of,
    decoded,
    fetch_request,
    joined,
    parts_of,
    produce_request,
)
from tests.support.wire.random_messages import random_message

Entity = dict[str, str | None]


async def alter(
    life: Life, *entries: tuple[Entity, dict[str, float | None]], dry: bool = False
) -> list[tuple[int, str | None]]:
    request = wire.AlterClientQuotasRequest(
        entries=[
            wire.AlterClientQuotasRequestEntry(
                entity=[wire.AlterClientQuotasRequestEntity(*pair) for pair in entity.items()],
                ops=[
                    wire.AlterClientQuotasRequestOp(key, value or 0.0, value is None) for key, value in quotas.items()
                ],
            )
            for entity, quotas in entries
        ],
        validate_only=dry,
    )
    response = await life.call(ApiKey.ALTER_CLIENT_QUOTAS, request)
    return [(entry.error_code, entry.error_message) for entry in response.entries]


async def limit(life: Life, **quotas: float) -> Peer:
    """A client that connected and has these quotas; its throttle times are `throttled(peer)`."""
    assert await alter(life, ({"client-id": "kit"}, dict(quotas))) == [(0, None)]
    peer = Peer(7, "127.0.0.1:50007", "PLAINTEXT")
    muted[7] = []
    peer.throttle = muted[7].append
    return peer


muted: dict[int, list[int]] = {}


async def described(life: Life, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    """Error, or entities with their quotas."""
    request = wire.DescribeClientQuotasRequest(
        components=[wire.DescribeClientQuotasRequestComponent(*each) for each in components], strict=strict
    )
    found = await life.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, request)
    if found.error_code:
        return found.error_code, found.error_message
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {each.key: each.value for each in entry.values})
        for entry in found.entries
    ]


async def test_quotas_are_set_described_and_removed() -> None:
    life = await Place().start()
    alice, default = {"user": "alice"}, {"client-id": None, "user": "alice"}
    assert (
        await alter(life, (alice, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}), (default, {}))
        == [(0, None)] * 2
    )
    assert await alter(life, (default, {"consumer_byte_rate": 1.0}), ({"ip": "::1"}, {"connection_creation_rate": 5.0}))
    found = [
        (alice, {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
        (default, {"consumer_byte_rate": 1.0}),
    ]
    address = ({"ip": "::1"}, {"connection_creation_rate": 5.0})
    assert await described(life) == [*found, address]
    assert await described(life, ("user", 0, "alice")) == found
    assert await described(life, ("user", 0, "alice"), strict=True) == found[:1]
    assert await described(life, ("user", 2, None), ("client-id", 1, None)) == found[1:]
    assert await described(life, ("user", 1, None)) == await described(life, ("user", 0, "bob")) == []
    assert await described(life, ("ip", 2, None)) == [address]
    assert await alter(life, (alice, {"producer_byte_rate": None, "consumer_byte_rate": None}), dry=True) == [(0, None)]
    assert await described(life, ("user", 0, "alice"), strict=True) == found[:1]
    assert await alter(life, (alice, {"producer_byte_rate": None, "request_percentage": None})) == [(0, None)]
    assert await described(life, ("user", 2, None)) == found[1:]
    await life.stop()


@pytest.mark.parametrize(
    ("entity", "quotas", "why"),
    [
        ({}, {}, "Invalid empty client quota entity"),
        ({"user": ""}, {}, "Empty user not supported"),
        ({"group": "g"}, {}, "Unhandled client quota entity type: group"),
        ({"ip": "1.2.3.4", "user": "u"}, {}, "Invalid quota entity combination, IP entity shouldnot be combined with"),
        ({"ip": "no such host"}, {}, "no such host is not a valid IP or resolvable host."),
        ({"ip": None}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        ({"user": "u"}, {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ({"user": "u"}, {"producer_byte_rate": -1.0}, "Quota producer_byte_rate must be greater than 0"),
        ({"user": "u"}, {"producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value."),
        ({"user": "u"}, {"producer_byte_rate": 1e19}, "Proposed value for producer_byte_rate is too large for a LONG."),
        ({"ip": None}, {"connection_creation_rate": 3e9}, "Proposed value for connection_creation_rate is too large"),
        ({"user": "u"}, {"request_percentage": float("inf")}, "Quota request_percentage must be a finite number"),
        ({"user": "u"}, {"request_percentage": float("nan")}, "Quota request_percentage must be a finite number"),
    ],
)
async def test_an_entity_is_refused_alone(entity: Entity, quotas: dict[str, float | None], why: str) -> None:
    """The others of the request are set."""
    life = await Place().start()
    good = {"user": "good"}
    refused, taken = await alter(life, (entity, quotas), (good, {"producer_byte_rate": 1.0}))
    assert refused[0] == ErrorCode.INVALID_REQUEST and refused[1] is not None and refused[1].startswith(why)
    assert taken == (0, None)
    assert await described(life) == [(good, {"producer_byte_rate": 1.0})]
    await life.stop()


async def test_an_entity_named_twice_keeps_its_first_change() -> None:
    """As from Kafka, which reports the second."""
    life = await Place().start()
    user: Entity = {"user": "u"}
    answer = await alter(life, (user, {"producer_byte_rate": 1.0}), (user, {"producer_byte_rate": 2.0}))
    assert answer == [(ErrorCode.INVALID_REQUEST, "Ignoring duplicate entity ClientQuotaEntity(entries={user=u})")]
    assert await described(life) == [(user, {"producer_byte_rate": 1.0})]
    await life.stop()


async def test_a_filter_that_cannot_match_is_refused() -> None:
    life = await Place().start()
    invalid = ErrorCode.INVALID_REQUEST
    for components, code, why in [
        ([("", 0, "a")], invalid, "Invalid empty entity type."),
        (
            [("user", 0, "a"), ("user", 1, None)],
            invalid,
            "Entity type user cannot appear more than once in the filter.",
        ),
        ([("group", 0, "a")], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 0, None)], invalid, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", 1, "a")], invalid, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", 2, "a")], invalid, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, "a")], invalid, "Unknown match type 3"),
    ]:
        assert await described(life, *components) == (code, why)
    both = await described(life, ("ip", 2, None), ("user", 2, None))
    assert both[0] == invalid and both[1].startswith("Invalid entity filter component combination.")
    await life.stop()


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_produced_bytes_are_served_first_and_throttled_after(acks: int) -> None:
    """Ten windows' worth is free. Every request is appended and answered at once, with its throttle time."""
    life = await Place().start()
    await life.create("t")
    peer = await limit(life, producer_byte_rate=1000.0)
    bodies = 0
    for at in range(12):
        request = produce_request("t", batch_of(b"x" * 2000), acks=acks)
        frame = life.frame(ApiKey.PRODUCE, 9, request)
        bodies += len(frame) - (8 + 2 + len("kit") + 1)
        response = decoded(ApiKey.PRODUCE, 9, await parts_of(life.dispatch_frame(peer, frame)))
        expected_ms = max(bodies - 10_000, 0)
        throttle_ms = muted[7][-1] if expected_ms else 0
        assert throttle_ms == pytest.approx(expected_ms, abs=100), at  # some ms pass
        if acks:
            assert response.throttle_time_ms == throttle_ms
            assert response.responses[0].partition_responses[0].base_offset == at
    assert peer.produce_route is not None
    assert life.context.quotas.throttled[QuotaKind.PRODUCE] == len(muted[7]) == 8
    await life.stop()


async def test_a_run_is_throttled_by_its_last_response() -> None:
    life = await Place().start()
    await life.create("t")
    peer = await limit(life, producer_byte_rate=1000.0)
    request = produce_request("t", batch_of(b"x" * 2000), acks=1)
    for _ in range(2):
        await life.call(ApiKey.PRODUCE, request, 9, peer)
    count, answer = life.dispatch_run([life.frame(ApiKey.PRODUCE, 9, request) for _ in range(5)], peer)
    assert (count, len(muted[7])) == (5, 1)
    data, throttles = joined(await parts_of(answer) or []), []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        throttles.append(decoded(ApiKey.PRODUCE, 9, [data[:size]]).throttle_time_ms)
        data = data[size:]
    assert throttles == [0, 0, 0, 0, *muted[7]]
    assert muted[7][0] > 4000
    await life.stop()


async def test_a_throttled_fetch_gets_no_records_and_keeps_its_session() -> None:
    """What it did not get it gets once it is within its quota again."""
    life = await Place().start()
    await life.create("t")
    for _ in range(6):
        await life.produce("t", b"x" * 4000)
    peer = await limit(life, consumer_byte_rate=1000.0)

    def asked(epoch: int, session_id: int = 0, *wanted: tuple[str, int, int]) -> Any:
        return fetch_request(*wanted, session_id=session_id, session_epoch=epoch, partition_max_bytes=5000)

    first = await life.call(ApiKey.FETCH, asked(0, 0, ("t", 0, 0)), peer=peer)
    assert (first.throttle_time_ms, len(first.responses), muted[7]) == (0, 1, [])
    session = first.session_id
    second = await life.call(ApiKey.FETCH, asked(1, session, ("t", 0, 1)), peer=peer)
    assert (second.throttle_time_ms, len(second.responses)) == (0, 1)
    third = await life.call(ApiKey.FETCH, asked(2, session, ("t", 0, 2)), peer=peer)
    assert (third.responses, third.session_id, third.error_code) == ([], session, 0)
    assert [third.throttle_time_ms] == muted[7] and 1500 < muted[7][0] < 3000
    await asyncio.sleep(12)
    fourth = await life.call(ApiKey.FETCH, asked(3, session), peer=peer)
    assert (fourth.throttle_time_ms, fourth.responses[0].partitions[0].high_watermark) == (0, 6)
    assert fourth.responses[0].partitions[0].records
    await life.stop()


async def test_a_full_fetch_that_is_throttled_opens_no_session() -> None:
    life = await Place().start()
    await life.create("t")
    await life.produce("t", b"x" * 4000)
    peer = await limit(life, consumer_byte_rate=1000.0)
    for _ in range(2):
        await life.call(ApiKey.FETCH, fetch_request(("t", 0, 0)), peer=peer)
    request = fetch_request(("t", 0, 0), session_epoch=0)
    sessions = len(life.context.fetch_sessions)
    throttled = await life.call(ApiKey.FETCH, request, peer=peer)
    assert len(life.context.fetch_sessions) == sessions
    assert (throttled.session_id, throttled.responses) == (0, []) and throttled.throttle_time_ms
    await life.stop()


async def test_a_batch_above_the_quota_is_read_by_who_read_nothing() -> None:
    """Kafka never sends it."""
    life = await Place().start()
    await life.create("t")
    await life.produce("t", b"x" * 50_000)
    peer = await limit(life, consumer_byte_rate=1000.0)
    found = await life.call(ApiKey.FETCH, fetch_request(("t", 0, 0)), peer=peer)
    assert len(found.responses[0].partitions[0].records) > 50_000
    assert [found.throttle_time_ms] == muted[7] and muted[7][0] > 40_000
    again = await life.call(ApiKey.FETCH, fetch_request(("t", 0, 0)), peer=peer)
    assert again.responses == []
    await life.stop()


async def test_mutations_are_refused_or_throttled_by_version() -> None:
    """KIP-599: CreateTopics 6, DeleteTopics 5, CreatePartitions 3 know the error. What fails anyway costs nothing."""
    life = await Place().start()
    peer = await limit(life, controller_mutation_rate=1.0)

    def create(name: str, partitions: int) -> Any:
        topic = wire.CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=1)
        return wire.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)

    async def created(name: str, partitions: int, version: int) -> tuple[int, int]:
        found = await life.call(ApiKey.CREATE_TOPICS, create(name, partitions), version, peer)
        return found.topics[0].error_code, found.throttle_time_ms

    assert await created("a", 20, 7) == (0, 0)
    assert await created("a", 20, 7) == (ErrorCode.TOPIC_ALREADY_EXISTS, 0)
    code, throttle_ms = await created("b", 1, 6)
    assert (code, muted[7]) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, [throttle_ms]) and 8000 < throttle_ms <= 9000
    code, throttle_ms = await created("b", 1, 5)
    assert (code, muted[7][1:]) == (0, [throttle_ms]) and 8000 < throttle_ms <= 10_000
    grown = wire.CreatePartitionsRequestTopic(name="b", count=3, assignments=None)
    more = wire.CreatePartitionsRequest(topics=[grown], timeout_ms=10_000)
    found = await life.call(ApiKey.CREATE_PARTITIONS, more, 3, peer)
    assert found.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    gone = wire.DeleteTopicsRequest(topics=[wire.DeleteTopicsRequestTopic(name="a")], timeout_ms=10_000)
    found = await life.call(ApiKey.DELETE_TOPICS, gone, 6, peer)
    assert found.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    older = wire.DeleteTopicsRequest(topic_names=["a"], timeout_ms=10_000)
    found = await life.call(ApiKey.DELETE_TOPICS, older, 4, peer)
    assert found.responses[0].error_code == 0 and found.throttle_time_ms > 28_000
    await life.stop()


async def test_topics_made_by_metadata_count_as_mutations() -> None:
    """Otherwise Metadata would be the way around the quota, 100 topics a request. The client hears for how long its
    connection is not read: regression, a client that was not told sent requests, and they timed out."""
    life = await Place().start("num.partitions=20")
    peer = await limit(life, controller_mutation_rate=1.0)

    async def made(*names: str, version: int = 12) -> tuple[dict[str, int], int]:
        wanted = [wire.MetadataRequestTopic(name=name) for name in names]
        request = wire.MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
        found = await life.call(ApiKey.METADATA, request, version, peer)
        return {topic.name: topic.error_code for topic in found.topics}, found.throttle_time_ms

    away = ErrorCode.LEADER_NOT_AVAILABLE
    assert await made("a") == ({"a": 0}, 0)
    assert await made("b", "c") == ({"b": away, "c": away}, muted[7][-1])
    assert {topic.name for topic in life.context.metadata.image.topics.values()} == {"a"}
    assert 8000 < muted[7][-1] <= 9000
    assert await made("a") == ({"a": 0}, 0) and len(muted[7]) == 1, "a topic that exists costs nothing"
    assert await made("b", version=1) == ({"b": away}, 0) and len(muted[7]) == 1, "it has no field for a throttle time"
    await life.stop()


async def test_brokers_are_free_and_so_are_clients_without_a_quota() -> None:
    life = await Place().start()
    await life.create("t")
    await limit(life, producer_byte_rate=1.0, consumer_byte_rate=1.0, request_percentage=0.001)
    broker = Peer(8, "127.0.0.1:50008", life.context.config.brokers_listener)
    for _ in range(4):
        for key, request in (
            (ApiKey.PRODUCE, produce_request("t", batch_of(b"x" * 2000))),
            (ApiKey.FETCH, fetch_request(("t", 0, 0))),
        ):
            assert (await life.call(key, request, peer=broker)).throttle_time_ms == 0
    other = life.frame(ApiKey.PRODUCE, 9, produce_request("t", batch_of(b"x" * 2000)), "other")
    response = decoded(ApiKey.PRODUCE, 9, await parts_of(life.dispatch_frame(life.peer, other)))
    assert response.throttle_time_ms == 0
    assert not any(life.context.quotas.throttled.values())
    await life.stop()


@pytest.mark.parametrize("key", APIS)
def test_the_throttle_time_of_every_response_is_found_in_its_bytes(key: ApiKey) -> None:
    """Set in the encoded frame it is what it would have been in the message. ApiVersions from 3 on has none here, nor
    have responses without the field."""
    api, rng = APIS[key], random.Random(key)
    for version in range(api.version_min, api.version_max + 1):
        has_place = key != ApiKey.API_VERSIONS or version < 3
        for _ in range(5):
            message: Any = random_message(rng, MESSAGES[f"{api.name}Response"], version)
            if key == ApiKey.PRODUCE:
                message.node_endpoints = []  # ours has none
            if not hasattr(message, "throttle_time_ms") or not has_place:
                continue

            def frame(throttle_ms: int, message: Any = message, version: int = version) -> list[Any]:
                message.throttle_time_ms = throttle_ms
                return response_frame(response_header_version(key, version), 1, encode_response(key, version, message))

            parts = frame(0)
            _set(parts, api_key=key, version=version, throttle_ms=77)
            assert parts == frame(77), version
            if key != ApiKey.PRODUCE and parts != frame(0):
                assert _get(parts, key, version) == 77


def slow(life: Life, step_s: float) -> None:
    """From now on each look at the clock of requests takes so long."""
    now_s = 0.0

    def look() -> float:
        nonlocal now_s
        now_s += step_s
        return now_s

    life.dispatcher._now_s = look


async def test_request_time_is_throttled_for_all_kinds_of_requests() -> None:
    """A tenth of a second of the loop each, 1 %: ten windows allow a tenth of a second."""
    life = await Place().start()
    await life.create("t")
    await life.produce("t", b"x")
    peer = await limit(life, request_percentage=1.0)
    slow(life, 0.05)
    requests: list[tuple[ApiKey, Any]] = [
        (ApiKey.METADATA, wire.MetadataRequest(topics=None)),
        (ApiKey.PRODUCE, produce_request("t", batch_of(b"x"), acks=1)),
        (ApiKey.FETCH, fetch_request(("t", 0, 0))),
        (ApiKey.PRODUCE, produce_request("t", batch_of(b"x"))),
        (ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])),
    ]
    throttles = []
    for key, request in requests * 2:
        response = await life.call(key, request, peer=peer)
        throttles.append(response.throttle_time_ms)
        assert response.throttle_time_ms == (muted[7][-1] if muted[7] else 0)
        if key is ApiKey.FETCH and response.throttle_time_ms:
            assert not response.responses
    assert throttles[-6:] == [1000] * 6, throttles
    assert life.context.quotas.throttled[QuotaKind.REQUEST] == len(muted[7])
    without = len(muted[7])
    for _ in range(3):
        await life.call(ApiKey.PRODUCE, produce_request("t", batch_of(b"x"), acks=0), peer=peer)
    assert len(muted[7]) == without, "acks=0 is exempt, as in Kafka"
    await life.stop()


async def test_request_time_counts_steps_and_no_waits() -> None:
    now_s = 0.0

    async def work() -> None:
        nonlocal now_s
        for _ in range(3):
            now_s += 1.0
            await asyncio.sleep(5.0)
        now_s += 1.0

    time = LoopTime(lambda: now_s)
    assert time.start() and not time.start()
    now_s += 0.5
    assert time.seconds == 0.5
    time.stop()
    now_s += 100.0
    await asyncio.get_running_loop().create_task(time.timed(work()))
    assert time.seconds == 4.5


async def test_a_timed_task_is_cancelled_and_fails_as_any_other() -> None:
    async def fails() -> None:
        raise ValueError("said")

    time = LoopTime(lambda: 0.0)
    with pytest.raises(ValueError, match="said"):
        await asyncio.get_running_loop().create_task(time.timed(fails()))
    waiting = asyncio.get_running_loop().create_task(time.timed(asyncio.sleep(100)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.start()


async def test_every_quota_that_changed_is_an_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    """S12. A dry run and a refused entity change nothing; an entity that came twice did change."""
    caplog.set_level(logging.INFO, LOGGER)
    life = await Place().start()
    change: dict[str, float | None] = {"producer_byte_rate": 10.0}
    await alter(life, ({"user": "dry"}, change), dry=True)
    await alter(life, ({"user": "alice", "client-id": None}, change), ({"user": "bad"}, {"nonsense": 1.0}))
    await alter(life, ({"user": "twice"}, change), ({"user": "twice"}, {"producer_byte_rate": None}))
    await life.stop()
    said = [record.getMessage() for record in caplog.records if "event=quotas" in record.getMessage()]
    assert "quotas of user alice and client-id <default>: set producer_byte_rate=10" in said[0]
    assert len(said) == 3 and all("twice" in line for line in said[1:])
