"""Envelopes between whole brokers: a client's admin request at any broker, decided by the controller in its name.

The two brokers have a bucket each: `here` reads in its own that node 2 is the controller, and `there` is node 2, the
controller of another bucket. So what came true `there` was decided there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from broker.controller.broker_rpc import SessionRequest
from broker.controller.decisions.registrations import session_records
from broker.error_codes import ErrorCode
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot
from broker.net.dispatch import CloseConnection, Peer
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from broker.wire.codec import encode_request
from broker.wire.framing import FRAME_PREFIX_SIZE, request_frame
from tests.support.brokers.broker_kit import Life, Place, parts_of
from tests.support.brokers.cluster_kit import cluster_root, created
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.scenario import by

POLLED_S = 20.0


class Pair:
    """`here` is asked, `there` decides."""

    def __init__(self, here: Life, there: Life, root: ClusterRoot) -> None:
        self.here, self.there, self.root = here, there, root
        self._lives = True

    async def end_there(self) -> None:
        """A clean stop, once."""
        if self._lives:
            self._lives = False
            await self.there.stop()

    def topics(self, life: Life) -> set[str]:
        return {topic.name for topic in life.context.metadata.image.topics.values()}

    async def envelope(self, data: bytes, *, broker: Life | None = None, **fields: Any) -> m.EnvelopeResponse:
        """Put into an envelope and given to `there`, or to `broker`, as a broker does."""
        sender: dict[str, Any] = {"request_principal": b"User:ANONYMOUS", "client_listener": "PLAINTEXT"}
        request = m.EnvelopeRequest(request_data=data, **(sender | fields))
        asked = broker or self.there
        peer = Peer(5, "127.0.0.1:5", asked.context.config.brokers_listener)
        answer: m.EnvelopeResponse = await asked.call(ApiKey.ENVELOPE, request, peer=peer)
        return answer


@asynccontextmanager
async def pair(*settings: str) -> AsyncIterator[Pair]:
    # A lease that stands still for long is nothing to `here`, which would decide by itself again.
    first, second = Place("thermocline.lease.ms=600000", *settings), Place("node.id=2", *settings, seed=2)
    second.net, second.lives = first.net, 10
    there = await second.start()
    here = await first.start()
    root = cluster_root(first.memory, "other")
    assert await root.load() is not None
    node = there.context.metadata.image.nodes[2]
    asked = SessionRequest(2, "", "other", "other-directory", "boot", node.listeners)
    await root.claim("", Controller(2, "other"), lambda image: session_records(image, asked))
    async with asyncio.timeout(POLLED_S):
        await here.context.images.until(here.context.forward.is_elsewhere)
    made = Pair(here, there, root)
    yield made
    await here.stop()
    await made.end_there()


def between(
    scenario: Callable[[Pair], Awaitable[None]], house: Callable[[], AbstractAsyncContextManager[Pair]] = pair
) -> None:
    async def played() -> None:
        async with house() as made:
            await scenario(made)

    run_fast(played(), timeout_s=HOUR_S)


def create(*names: str, **more: Any) -> m.CreateTopicsRequest:
    wanted = [m.CreateTopicsRequestTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    return m.CreateTopicsRequest(topics=wanted, timeout_ms=10_000, **more)


def framed(key: int, version: int, request: Any) -> bytes:
    parts = request_frame(key, version, 77, "alice", encode_request(key, version, request))
    return b"".join(parts)[FRAME_PREFIX_SIZE:]  # type: ignore[arg-type]


@by(between)
async def test_a_change_that_a_broker_no_longer_waits_for_is_not_made(made: Pair, /) -> None:
    """Regression: an envelope waits unread while its connection has 128 answers in flight. Its broker gave up, closed
    the connection and answered NOT_CONTROLLER. The client deleted the topic through another broker and made it again,
    and the envelope deleted the new topic."""
    there = made.there
    await made.here.call(ApiKey.CREATE_TOPICS, create("orders"))
    deletion = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="orders")], timeout_ms=10_000)
    envelope = m.EnvelopeRequest(
        request_data=framed(ApiKey.DELETE_TOPICS, 6, deletion),
        request_principal=b"User:ANONYMOUS",
        client_listener="PLAINTEXT",
    )
    gone = Peer(5, "127.0.0.1:5", there.context.config.brokers_listener, has_left=lambda: True)
    with pytest.raises(CloseConnection):
        await parts_of(there.dispatch(ApiKey.ENVELOPE, envelope, peer=gone))
    assert made.topics(there) == {"orders"}


@by(between)
async def test_an_admin_request_at_any_broker_is_decided_by_the_controller(made: Pair, /) -> None:
    """Made, grown, configured, deleted: all that is answered here came true there, and nothing of it here."""
    here, there = made.here, made.there
    answer = await here.call(ApiKey.CREATE_TOPICS, create("orders", "bad name"))
    good, bad = answer.topics
    assert (good.error_code, good.num_partitions) == (0, 2)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    topic = there.context.metadata.topic("orders")
    assert UUID(topic.topic_id) == good.topic_id
    grow = m.CreatePartitionsRequest(
        topics=[m.CreatePartitionsRequestTopic(name="orders", count=3, assignments=None)], timeout_ms=10_000
    )
    assert (await here.call(ApiKey.CREATE_PARTITIONS, grow)).results[0].error_code == 0
    config = m.IncrementalAlterConfigsRequestConfig("retention.ms", 0, "77")
    resource = m.IncrementalAlterConfigsRequestResource(2, "orders", [config])
    altered = await here.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert altered.responses[0].error_code == 0
    topic = there.context.metadata.topic("orders")
    assert (topic.partitions, topic.configs["retention.ms"]) == (3, "77")
    assert made.topics(here) == set()
    delete = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="orders")], timeout_ms=10_000)
    assert (await here.call(ApiKey.DELETE_TOPICS, delete)).responses[0].error_code == 0
    assert made.topics(there) == set()
    assert there.broker.metrics.requests[ApiKey.ENVELOPE] == 4


@by(between)
async def test_an_answer_comes_back_as_it_would_have_been_given_there(made: Pair, /) -> None:
    """Refusals, words and throttle: the same message."""
    delete = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="none")], timeout_ms=1000)
    elect = m.ElectLeadersRequest(topic_partitions=[m.ElectLeadersRequestTopic("none", [0])])
    for key, request in ((ApiKey.DELETE_TOPICS, delete), (ApiKey.ELECT_LEADERS, elect)):
        assert await made.here.call(key, request) == await made.there.call(key, request)
    assert made.there.broker.metrics.requests[ApiKey.ENVELOPE] == 2


@by(between)
async def test_topics_that_a_broker_makes_by_itself_are_made_by_the_controller(made: Pair, /) -> None:
    """By Metadata, and `__consumer_offsets` by the first group, as internal; a client cannot make that."""
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
    await made.here.call(ApiKey.METADATA, request)
    assert "auto" in made.topics(made.there)
    by_client = await made.here.call(ApiKey.CREATE_TOPICS, create("__consumer_offsets"))
    assert by_client.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await made.here.call(ApiKey.FIND_COORDINATOR, m.FindCoordinatorRequest(coordinator_keys=["g"]))
    assert made.there.context.metadata.topic("__consumer_offsets").internal
    assert made.topics(made.here) == set()


@by(between)
async def test_no_broker_makes_an_internal_topic_for_a_clients_metadata_request(made: Pair, /) -> None:
    """The controller cannot tell it from the broker's own request. The topic would have the partitions and the
    retention of an ordinary one, for ever."""
    wanted = ("__transaction_state", "__consumer_offsets")
    for life in (made.here, made.there):
        request = m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name=name) for name in wanted], allow_auto_topic_creation=True
        )
        answer = await life.call(ApiKey.METADATA, request)
        assert {topic.name: topic.error_code for topic in answer.topics} == dict.fromkeys(
            wanted, ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        assert made.topics(made.there) == set()


@by(between)
async def test_what_was_written_can_be_read_here_when_it_is_answered(made: Pair, /) -> None:
    """The answer waits for the position that it was decided at; here that comes by the next poll of the bucket."""
    for name in "abcdefgh":
        await made.there.create(name)
    asked = asyncio.ensure_future(made.here.call(ApiKey.CREATE_TOPICS, create("last")))
    async with asyncio.timeout(5.0):
        while "last" not in made.topics(made.there):
            await asyncio.sleep(0.01)
    position = made.there.context.images.position
    assert made.here.context.images.position < position and not asked.done()
    missing = position - made.here.context.images.position
    at = await made.root.commit([created(100 + number, node_id=2) for number in range(missing)])
    answer = await asked
    assert made.here.context.images.position >= position
    assert answer.topics[0].error_code == 0 and at.position == position


@by(between)
async def test_when_no_controller_takes_it_clients_are_told_to_ask_again(made: Pair, /) -> None:
    """NOT_CONTROLLER for each topic, in Kafka's words; soon."""
    await made.end_there()
    began = asyncio.get_running_loop().time()
    answer = await made.here.call(ApiKey.CREATE_TOPICS, create("x", "y"))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.NOT_CONTROLLER] * 2
    assert answer.topics[0].error_message == "This is not the correct controller for this cluster."
    assert asyncio.get_running_loop().time() - began < 10


@by(between)
async def test_a_broker_that_is_not_the_controller_opens_no_envelope(made: Pair, /) -> None:
    """Nor does it pass it on: no circles."""
    answer = await made.envelope(framed(ApiKey.CREATE_TOPICS, 7, create("x")), broker=made.here)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER and answer.response_data is None
    assert made.topics(made.here) == made.topics(made.there) == set()


@pytest.mark.parametrize(
    ("data", "fields", "code"),
    [
        (b"", {}, ErrorCode.INVALID_REQUEST),
        (b"\0\x13\0\7", {}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.METADATA, 12, m.MetadataRequest()), {}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.FETCH, 12, m.FetchRequest(replica_id=3)), {}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.BROKER_HEARTBEAT, 2, m.BrokerHeartbeatRequest()), {}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.ENVELOPE, 0, m.EnvelopeRequest(request_principal=b"p")), {}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.CREATE_TOPICS, 7, create("x"))[:-3], {}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.CREATE_TOPICS, 7, create("x")) + b"\0", {}, ErrorCode.INVALID_REQUEST),
        (b"\0\x13\0\x63" + bytes(7), {}, ErrorCode.UNSUPPORTED_VERSION),
        (framed(ApiKey.CREATE_TOPICS, 7, create("x")), {"request_principal": b""}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.CREATE_TOPICS, 7, create("x")), {"request_principal": b"\xff"}, ErrorCode.INVALID_REQUEST),
        (framed(ApiKey.CREATE_TOPICS, 7, create("x")), {"client_host_address": b"abc"}, ErrorCode.INVALID_REQUEST),
    ],
)
@by(between)
async def test_what_belongs_into_no_envelope_is_not_done(
    made: Pair, /, data: bytes, fields: dict[str, Any], code: ErrorCode
) -> None:
    """Other requests, another envelope among them, damage, senders without a name: an error, and nothing else."""
    answer = await made.envelope(data, **fields)
    assert answer.error_code == code and answer.response_data is None
    assert made.topics(made.there) == set()


@by(between)
async def test_envelopes_of_one_connection_are_decided_side_by_side(made: Pair, /) -> None:
    """All are under way before the first is answered, so that one commit takes them; answers are for each its own."""
    frames = [framed(ApiKey.CREATE_TOPICS, 7, create(f"t{at}")) for at in range(5)]
    before = made.there.context.images.position
    answers = await asyncio.gather(*[made.envelope(frame) for frame in frames])
    assert [answer.error_code for answer in answers] == [0] * 5
    assert {answer.position for answer in answers} == {before + 5}
