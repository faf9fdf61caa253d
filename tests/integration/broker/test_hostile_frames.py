"""Hostile input over real sockets (docs/design/failures.md): frames, headers, lengths, batches, floods.

One broker answers for the whole module. After every row: the broker answers a fresh connection, no log has grown by a
byte, no topic came into being, and its memory never rose by more than the row may cost. At the end it is the same
process, not larger than before.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from crc32c import crc32c

from broker.error_codes import ErrorCode
from broker.wire import codec, framing
from broker.wire import messages as m
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from logformat.compression import compress
from logformat.record_batch import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    read_header,
)
from logformat.records import Record, encode_batch, encode_record
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import QUICK, status
from thermocline.cli.clients.wire_client import LATEST, WireClient

TOPIC = "target"
REQUEST_BYTES_MAX = 2 << 20
BATCH_BYTES_MAX = 1_048_588  # Kafka's default
FRAME_TIMEOUT_MS = 1000
ANSWER_S = 8.0
MEMORY_MAX = 64 << 20
HOSTILE = "hostile"

# Tests whose rows may cost more than MEMORY_MAX for a moment.
COSTS_MIB = {
    "test_a_compression_bomb_is_refused": 300,  # one decompression yields at most 128 MiB, and joins them once
    "test_a_request_full_of_topics_is_answered_or_closed_in_time": 160,  # 150 000 names of 700 B, asked and answered
}

SETTINGS = {
    **QUICK,
    "thermocline.validate.records": "true",
    "thermocline.frame.timeout.ms": FRAME_TIMEOUT_MS,
    "socket.request.max.bytes": REQUEST_BYTES_MAX,
    "message.max.bytes": BATCH_BYTES_MAX,
    "auto.create.topics.enable": "false",
}


# -- the broker, and what must still be true after each row -----------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What nobody hostile may change."""

    topics: frozenset[str]
    log_end_offset: int
    log_bytes: int


@dataclass
class Target:
    """The broker under fire."""

    broker: BrokerProcess
    data_dir: Path
    rss_start: int = 0

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.broker.kafka.rpartition(":")
        return host, int(port)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=ANSWER_S)

    def client(self) -> WireClient:
        """A well-behaved client on a connection of its own; it begins with ApiVersions."""
        return WireClient(*self.address)

    def seen(self) -> Seen:
        with self.client() as client:
            topics = frozenset(topic.name or "" for topic in client.metadata().topics)
            end = client.offsets({TOPIC: [0]}, LATEST)[TOPIC, 0]
        (partition,) = status(self.broker, TOPIC)
        assert partition["log_end_offset"] == end
        logs = self.data_dir.glob("*-*/*.log")
        written = sum(len(log.read_bytes().rstrip(b"\0")) for log in logs)  # preallocated room is zeros
        return Seen(topics, end, written)

    def memory(self, field: str) -> int:
        """Bytes: VmRSS now, or VmHWM, the most since `forget_peak`."""
        text = Path(f"/proc/{self.broker.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field)) << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")


def produce_request(
    batch: bytes | None, acks: int = -1, transactional_id: str | None = None, timeout_ms: int = 5000
) -> m.ProduceRequest:
    records = None if batch is None else memoryview(batch)
    topic = m.ProduceRequestTopic(name=TOPIC, partition_data=[m.ProduceRequestPartition(index=0, records=records)])
    return m.ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


@pytest.fixture(scope="module")
def module_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("hostile")
    with running_broker(home / "broker", f"file://{home}/bucket", settings=SETTINGS) as broker:
        target = Target(broker, home / "broker")
        create = m.CreateTopicsRequest(
            topics=[m.CreateTopicsRequestTopic(name=TOPIC, num_partitions=1, replication_factor=1)], timeout_ms=5000
        )
        with target.connect() as peer:
            answer = call(peer, ApiKey.CREATE_TOPICS, 7, create)
            assert answer.topics[0].error_code == ErrorCode.NONE
            for _ in range(3):  # every road that an honest request takes has been taken: its code is loaded
                assert produced(peer, good_batch()) is ErrorCode.NONE
            call(peer, ApiKey.FETCH, 12, fetch_request())
        target.seen()
        target.rss_start = target.memory("VmRSS")
        yield target


@pytest.fixture
def target(module_target: Target, request: pytest.FixtureRequest) -> Iterator[Target]:
    """The broker, with the promises of this module checked after the test."""
    before = module_target.seen()
    module_target.forget_peak()
    at_rest = module_target.memory("VmRSS")
    yield module_target
    assert module_target.broker.process.poll() is None, module_target.broker.log()[-4000:]
    assert module_target.seen() == before
    cost = COSTS_MIB.get(request.node.originalname, MEMORY_MAX >> 20)
    grown = module_target.memory("VmHWM") - at_rest
    assert grown < cost << 20, f"the row cost {grown >> 20} MiB"


# -- speaking to it ---------------------------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(api_key: int, version: int, *, client_id: bytes = b"\0\1x", tags: bytes = b"") -> bytes:
    return struct.pack(">hhi", api_key, version, 7) + client_id + tags


def request_bytes(api_key: ApiKey, version: int, request: Message) -> bytes:
    parts = framing.request_frame(api_key, version, 7, HOSTILE, codec.encode_request(api_key, version, request))
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def body_bytes(api_key: ApiKey, version: int, request: Message) -> bytes:
    return b"".join(bytes(part) for part in codec.encode_request(api_key, version, request))  # type: ignore[arg-type]


def read_exactly(peer: socket.socket, size: int) -> bytes:
    """`size` bytes, or what came before the other side closed."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while len(found) < size and (data := peer.recv(size - len(found))):
            found += data
    return found


def answer_to(peer: socket.socket, data: bytes) -> bytes:
    """The answer frame, or nothing when the connection was closed instead. TimeoutError when neither happens."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.sendall(data)
    prefix = read_exactly(peer, 4)
    return read_exactly(peer, struct.unpack(">i", prefix)[0]) if len(prefix) == 4 else b""


def call(peer: socket.socket, api_key: ApiKey, version: int, request: Message):
    frame = memoryview(answer_to(peer, request_bytes(api_key, version, request)))
    assert frame, "closed instead of answered"
    _, start = framing.parse_response_header(frame, api_key, version)
    return codec.decode_response(api_key, version, frame[start:])


def produced(peer: socket.socket, batch: bytes | None, version: int = 9, **more) -> ErrorCode:
    answer = call(peer, ApiKey.PRODUCE, version, produce_request(batch, **more))
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def assert_closed(target: Target, data: bytes) -> None:
    """Nothing is answered and the connection ends, long before any deadline of a frame."""
    with target.connect() as peer:
        assert answer_to(peer, data) == b""


# -- frames and headers -----------------------------------------------------------------------------------------------

INT32 = struct.Struct(">i")
FLEXIBLE_METADATA = header(ApiKey.METADATA, 12, tags=b"\0")
FRAMES = {
    "length -1": INT32.pack(-1),
    "length -2^31": INT32.pack(-(2**31)),
    "length 0": INT32.pack(0),
    "length max + 1": INT32.pack(REQUEST_BYTES_MAX + 1),
    "length 2^31-1": INT32.pack(0x7FFFFFFF),
    "an http request": b"GET / HTTP/1.1\r\n\r\n",
    "a tls handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "1 byte": framed(b"\0"),
    "no client id": framed(header(ApiKey.METADATA, 4, client_id=b"")),
    "half a correlation id": framed(b"\0\3\0\4\0\0"),
    "unknown api 9999": framed(header(9999, 0)),
    "unknown api -1": framed(header(-1, 0)),
    "a broker's own api (LeaderAndIsr)": framed(header(4, 0)),
    "unknown version of Fetch": framed(header(ApiKey.FETCH, 99)),
    "version -1": framed(header(ApiKey.METADATA, -1)),
    "version -2^15": framed(header(ApiKey.METADATA, -(2**15))),
    "client id of -2": framed(header(ApiKey.METADATA, 4, client_id=b"\xff\xfe") + INT32.pack(-1) + b"\0"),
    "client id beyond the frame": framed(header(ApiKey.METADATA, 4, client_id=b"\x7f\xff")),
    "client id not utf-8": framed(header(ApiKey.METADATA, 4, client_id=b"\0\2\xff\xfe") + INT32.pack(-1) + b"\0"),
    "header tags 2^32-1": framed(header(ApiKey.METADATA, 12, tags=b"\xff\xff\xff\xff\x0f")),
    "header tag count of 6 bytes": framed(header(ApiKey.METADATA, 12, tags=b"\x80\x80\x80\x80\x80\x01")),
    "header tag count cut short": framed(header(ApiKey.METADATA, 12, tags=b"\x80")),
    "header tag twice": framed(header(ApiKey.METADATA, 12, tags=b"\2\1\0\1\0")),
    "header tag longer than the frame": framed(header(ApiKey.METADATA, 12, tags=b"\1\0\x7f")),
    "no body": framed(FLEXIBLE_METADATA),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_frame_that_cannot_be_followed_closes_the_connection(target: Target, frame: bytes) -> None:
    """Length prefixes and headers: closed at once, before anything is allocated for what they claim."""
    assert_closed(target, frame)


@pytest.mark.parametrize("version", [5, 99, 2**15 - 1, -1])
def test_api_versions_of_an_unknown_version_gets_the_table(target: Target, version: int) -> None:
    """KIP-511: the one unknown version with an answer, under header 0 and in version 0, on a connection that lives."""
    with target.connect() as peer:
        for _ in range(2):
            frame = memoryview(answer_to(peer, framed(header(ApiKey.API_VERSIONS, version, tags=b"\0"))))
            answer = codec.decode_response(ApiKey.API_VERSIONS, 0, frame[4:])
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION  # type: ignore[attr-defined]
            assert answer.api_keys  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_versions_are_refused_by_code(target: Target, version: int) -> None:
    """Advertised for librdkafka's sake (KAFKA-18659), never served."""
    old = b"\xff\xff" + INT32.pack(5000) + INT32.pack(1) + b"\0\6target" + INT32.pack(1) + INT32.pack(0)
    batch = good_batch()
    with target.connect() as peer:
        body = old + INT32.pack(len(batch)) + batch
        frame = memoryview(answer_to(peer, framed(header(ApiKey.PRODUCE, version) + body)))
        assert frame[4:].tobytes().count(struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)) == 1


def test_a_dripping_frame_is_closed_at_its_deadline(target: Target) -> None:
    """A prefix begun, a body begun, a byte every 50 ms: the deadline counts from a frame's first byte, so dripping does
    not put it off. A silent connection without a frame is left alone."""
    whole = request_bytes(ApiKey.METADATA, 12, m.MetadataRequest(topics=[]))
    patient = {"half a prefix": whole[:2], "half a body": whole[:10], "drip": b""}
    peers = {name: target.connect() for name in patient}
    silent = target.connect()
    begun = time.monotonic()
    try:
        for name, peer in peers.items():
            peer.sendall(patient[name])
        closed: dict[str, float] = {}
        position = 0
        while len(closed) < len(peers):
            assert time.monotonic() - begun < ANSWER_S, f"still open: {set(peers) - set(closed)}"
            for name in set(peers) - set(closed):
                peer = peers[name]
                peer.settimeout(0.05)
                try:
                    if name == "drip":
                        peer.sendall((INT32.pack(1 << 20) + bytes(1000))[position : position + 1])
                        position += 1
                    assert peer.recv(1) == b""
                    closed[name] = time.monotonic() - begun
                except TimeoutError:
                    pass
                except (ConnectionResetError, BrokenPipeError):
                    closed[name] = time.monotonic() - begun
        assert min(closed.values()) >= FRAME_TIMEOUT_MS / 1000 * 0.5, closed
        assert answer_to(silent, whole), "a connection between two frames has time"
    finally:
        for peer in (*peers.values(), silent):
            peer.close()


# -- lengths and counts within a body ---------------------------------------------------------------------------------

CREATE = m.CreateTopicsRequest(
    topics=[m.CreateTopicsRequestTopic(name="made", num_partitions=1, replication_factor=1)], timeout_ms=1000
)
CREATED = body_bytes(ApiKey.CREATE_TOPICS, 5, CREATE)
METADATA_4 = header(ApiKey.METADATA, 4)
SYNC_3 = header(ApiKey.SYNC_GROUP, 3) + b"\0\1g" + INT32.pack(1) + b"\0\1m" + b"\xff\xff" + INT32.pack(1) + b"\0\1m"
PRODUCE_8 = header(ApiKey.PRODUCE, 8) + b"\xff\xff" + b"\xff\xff" + INT32.pack(5000) + INT32.pack(1)
PRODUCE_8_RECORDS = PRODUCE_8 + b"\0\6target" + INT32.pack(1) + INT32.pack(0)
PRODUCE_9_RECORDS = header(ApiKey.PRODUCE, 9, tags=b"\0") + b"\0\xff\xff" + INT32.pack(5000) + b"\2\7target\2\0\0\0\0"
BODIES = {
    "cut short by a byte": header(ApiKey.CREATE_TOPICS, 5, tags=b"\0") + CREATED[:-1],
    "cut in the middle": header(ApiKey.CREATE_TOPICS, 5, tags=b"\0") + CREATED[: len(CREATED) // 2],
    "a trailing byte": header(ApiKey.CREATE_TOPICS, 5, tags=b"\0") + CREATED + b"\0",
    "trailing garbage": header(ApiKey.CREATE_TOPICS, 5, tags=b"\0") + CREATED + b"\xff" * 1000,
    "array of -2": METADATA_4 + INT32.pack(-2) + b"\0",
    "array of -2^31": METADATA_4 + INT32.pack(-(2**31)) + b"\0",
    "array of 2^31-1": METADATA_4 + INT32.pack(2**31 - 1) + b"\0",
    "array of one more than is there": METADATA_4 + INT32.pack(2) + b"\0\1t" + b"\0",
    "10^6 topics claimed": METADATA_4 + INT32.pack(10**6) + b"\0\1t" + b"\0",
    "null where the array must be": header(ApiKey.CREATE_TOPICS, 4) + INT32.pack(-1) + INT32.pack(1000) + b"\0",
    "10^6 topics to create claimed": header(ApiKey.CREATE_TOPICS, 4) + INT32.pack(10**6) + INT32.pack(1000) + b"\0",
    "string of -1": METADATA_4 + INT32.pack(1) + b"\xff\xff" + b"\0",
    "string of -2": METADATA_4 + INT32.pack(1) + b"\xff\xfe" + b"\0",
    "string of 32767": METADATA_4 + INT32.pack(1) + b"\x7f\xff" + b"t\0",
    "string not utf-8": METADATA_4 + INT32.pack(1) + b"\0\2\xc0\x80" + b"\0",
    "bytes of -1": SYNC_3 + INT32.pack(-1),
    "bytes of -2": SYNC_3 + INT32.pack(-2),
    "bytes of 2^31-1": SYNC_3 + INT32.pack(2**31 - 1) + bytes(100),
    "records of -2": PRODUCE_8_RECORDS + INT32.pack(-2),
    "records of 2^31-1": PRODUCE_8_RECORDS + INT32.pack(2**31 - 1) + bytes(100),
    "records beyond the frame by one": PRODUCE_8_RECORDS + INT32.pack(101) + bytes(100),
    "compact records of 2^32-1": PRODUCE_9_RECORDS + b"\xff\xff\xff\xff\x0f" + bytes(100),
    "compact array of 2^32-1": FLEXIBLE_METADATA + b"\xff\xff\xff\xff\x0f" + b"\0\0\0",
    "compact array varint of 6 bytes": FLEXIBLE_METADATA + b"\x82\x80\x80\x80\x80\x00" + b"\0\0\0",
    "compact array above 32 bits": FLEXIBLE_METADATA + b"\xff\xff\xff\xff\x1f" + b"\0\0\0",
    "compact varint cut short": FLEXIBLE_METADATA + b"\x80",
    "compact string of 2^32-1": FLEXIBLE_METADATA + b"\2" + bytes(16) + b"\xff\xff\xff\xff\x0f" + b"t\0\0\0\0",
    "tags 2^32-1": FLEXIBLE_METADATA + b"\1\0\0\xff\xff\xff\xff\x0f",
    "a tag twice": FLEXIBLE_METADATA + b"\1\0\0" + b"\2\5\0\5\0",
    "a tag longer than the frame": FLEXIBLE_METADATA + b"\1\0\0" + b"\1\0\xff\xff\xff\xff\x0f",
    "a tag's number of 6 bytes": FLEXIBLE_METADATA + b"\1\0\0" + b"\1\x80\x80\x80\x80\x80\x01\0",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_lies_closes_the_connection(target: Target, body: bytes) -> None:
    """Counts and lengths are compared with the bytes left before anything is allocated or done."""
    assert_closed(target, framed(body))


# -- names and floods -------------------------------------------------------------------------------------------------


def create_topics(target: Target, *topics: m.CreateTopicsRequestTopic) -> list[ErrorCode]:
    with target.connect() as peer:
        answer = call(peer, ApiKey.CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=list(topics), timeout_ms=5000))
    return [ErrorCode(topic.error_code) for topic in answer.topics]


def new_topic(name: str, partitions: int = 1) -> m.CreateTopicsRequestTopic:
    return m.CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=1)


NAMES = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "slash": "a/b",
    "traversal": "../../etc/cron.d/x",
    "absolute": "/tmp/x",
    "nul": "a\0b",
    "line break": "a\nb",
    "blank": "a b",
    "not ascii": "tópico",
    "250 characters": "x" * 250,
    "32 000 characters": "x" * 32_000,
    "colon": "a:b",
    "format": "%s%n",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_no_topic_may_have_is_refused(target: Target, name: str) -> None:
    """INVALID_TOPIC_EXCEPTION to CreateTopics, and to a client that would have it created by asking for it."""
    assert create_topics(target, new_topic(name)) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    with target.connect() as peer:
        asked = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        assert call(peer, ApiKey.METADATA, 12, asked).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_that_is_not_utf8_closes_the_connection(target: Target) -> None:
    """The body cannot be decoded, so there is nobody to answer."""
    assert_closed(target, request_bytes(ApiKey.CREATE_TOPICS, 7, CREATE).replace(b"made", b"m\xff\xfee"))


@pytest.mark.parametrize("partitions", [0, -2, 10_001, 10**6, 2**31 - 1])
def test_absurd_partition_counts_are_refused(target: Target, partitions: int) -> None:
    """Before a file is made."""
    assert create_topics(target, new_topic("many", partitions)) == [ErrorCode.INVALID_PARTITIONS]


def test_growing_to_10_to_the_6_partitions_is_refused(target: Target) -> None:
    """CreatePartitions is bounded as CreateTopics is."""
    wanted = m.CreatePartitionsRequest(
        topics=[m.CreatePartitionsRequestTopic(name=TOPIC, count=10**6, assignments=None)], timeout_ms=5000
    )
    with target.connect() as peer:
        answer = call(peer, ApiKey.CREATE_PARTITIONS, 3, wanted)
    assert answer.results[0].error_code == ErrorCode.INVALID_PARTITIONS


def test_too_many_changes_in_one_request_are_refused_before_the_first(target: Target) -> None:
    """1 001 topics to create, or to delete: POLICY_VIOLATION each, none made, none gone."""
    codes = create_topics(target, *(new_topic(f"flood-{n}") for n in range(1001)))
    assert set(codes) == {ErrorCode.POLICY_VIOLATION}
    doomed = [m.DeleteTopicsRequestTopic(name=name) for name in (TOPIC, *(f"flood-{n}" for n in range(1000)))]
    with target.connect() as peer:
        answer = call(peer, ApiKey.DELETE_TOPICS, 6, m.DeleteTopicsRequest(topics=doomed, timeout_ms=5000))
    assert {topic.error_code for topic in answer.responses} == {ErrorCode.POLICY_VIOLATION}


def test_a_request_full_of_topics_is_answered_or_closed_in_time(target: Target) -> None:
    """As many real names as a frame holds: the broker is back for others within seconds."""
    names = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=f"{n:x}") for n in range(150_000)])
    flood = request_bytes(ApiKey.METADATA, 4, names)
    assert len(flood) < REQUEST_BYTES_MAX
    begun = time.monotonic()
    with target.connect() as peer:
        peer.sendall(flood)
        with target.client() as other:
            assert other.metadata([TOPIC]).topics[0].error_code == ErrorCode.NONE
    assert time.monotonic() - begun < ANSWER_S


# -- fetch ------------------------------------------------------------------------------------------------------------


def fetch_request(**fields) -> m.FetchRequest:
    partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = {"replica_id": -1, "max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
    asked |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "fetch_offset": 0} | fields
    for name in ("current_leader_epoch", "last_fetched_epoch", "fetch_offset"):
        setattr(partition, name, asked.pop(name))
    return m.FetchRequest(topics=[m.FetchRequestTopic(topic=TOPIC, partitions=[partition])], **asked)


def test_a_fetch_for_2_to_the_31_bytes_gets_what_there_is(target: Target) -> None:
    """min_bytes and max_bytes of 2^31-1: an answer when its time is over, of the bytes that exist."""
    with target.connect() as peer:
        begun = time.monotonic()
        most = 2**31 - 1
        answer = call(peer, ApiKey.FETCH, 12, fetch_request(min_bytes=most, max_bytes=most, max_wait_ms=300))
        assert 0.2 < time.monotonic() - begun < ANSWER_S
        assert len(answer.responses[0].partitions[0].records) > HEADER_SIZE


def test_fetches_parked_for_weeks_end_with_their_connections(target: Target) -> None:
    """max_wait of 2^31-1 ms: parked, others are served, and nothing is left of them when their peers go."""
    parked = [target.connect() for _ in range(100)]
    try:
        weeks = request_bytes(ApiKey.FETCH, 12, fetch_request(max_wait_ms=2**31 - 1, min_bytes=2**31 - 1))
        for peer in parked:
            peer.sendall(weeks)
        with target.client() as other:
            assert other.offsets({TOPIC: [0]}, LATEST)
        parked[0].settimeout(0.2)
        with pytest.raises(TimeoutError):
            parked[0].recv(1)
    finally:
        for peer in parked:
            peer.close()


FETCHES = {
    "as replica 1": ({"replica_id": 1}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    "as replica 2^31-1": ({"replica_id": 2**31 - 1}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    "as replica -3": ({"replica_id": -3}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    "offset -1": ({"fetch_offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "offset 2^63-1": ({"fetch_offset": 2**63 - 1}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "leader epoch of the future": ({"current_leader_epoch": 2**31 - 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
}


@pytest.mark.parametrize(("fields", "code"), FETCHES.values(), ids=FETCHES)
def test_a_fetch_that_is_not_a_consumers_is_refused(target: Target, fields: dict[str, int], code: ErrorCode) -> None:
    """A client may not pose as a replica (CVE-2018-1288), nor read where nothing is; no record is in the answer."""
    with target.connect() as peer:
        (partition,) = call(peer, ApiKey.FETCH, 12, fetch_request(**fields)).responses[0].partitions
    assert partition.error_code == code
    assert not partition.records


def test_fetch_sessions_are_bounded(target: Target) -> None:
    """Whoever opens sessions without end gets as many as there are slots, then full fetches (KIP-227 lets a broker)."""
    with target.connect() as peer:
        opened = [call(peer, ApiKey.FETCH, 12, fetch_request(session_epoch=0)) for _ in range(1_100)]
        assert {answer.error_code for answer in opened} == {ErrorCode.NONE}
        assert sum(answer.session_id != 0 for answer in opened) <= 1_000
        assert opened[-1].session_id == 0
        taken = {answer.session_id for answer in opened}
        stranger = next(number for number in range(1, 2_000) if number not in taken)
        unknown = call(peer, ApiKey.FETCH, 12, fetch_request(session_id=stranger, session_epoch=5))
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# -- batches ----------------------------------------------------------------------------------------------------------

NOW_MS = int(time.time() * 1000)
YEAR_MS = 365 * 24 * 3600 * 1000
RECORDS = tuple(Record(n, NOW_MS + n, b"k%d" % n, b"v" * 20) for n in range(3))


def good_batch() -> bytes:
    return encode_batch(RECORDS)


def sealed(batch: bytes) -> bytes:
    """With the CRC that its bytes have."""
    return batch[:CRC_AT] + crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4, "big") + batch[ATTRIBUTES_AT:]


def with_header(batch: bytes | None = None, **fields: int) -> bytes:
    """A batch whose header says something else, its CRC right."""
    batch = good_batch() if batch is None else batch
    return sealed(HEADER.pack(*read_header(batch)._replace(**fields)) + batch[HEADER_SIZE:])


def around(body: bytes, count: int = 1, codec_number: int = 0, **fields: int) -> bytes:
    """A well-formed header around `body`."""
    length = HEADER_SIZE - LOG_OVERHEAD + len(body)
    said = {"length": length, "record_count": count, "last_offset_delta": count - 1, "attributes": codec_number}
    return with_header(good_batch()[:HEADER_SIZE] + body, **{**said, **fields})


def message_set(magic: int) -> bytes:
    """A message of Kafka before 0.11: magic 0, or 1 with a timestamp."""
    tail = bytes([magic, 0]) + (struct.pack(">q", NOW_MS) if magic else b"") + INT32.pack(-1) + INT32.pack(3) + b"old"
    return struct.pack(">qiI", 0, len(tail) + 4, zlib.crc32(tail)) + tail


BATCHES: dict[str, tuple[bytes | None, ErrorCode]] = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "1 byte": (b"\0", ErrorCode.CORRUPT_MESSAGE),
    "60 bytes": (good_batch()[:60], ErrorCode.CORRUPT_MESSAGE),
    "cut short": (good_batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    "length below a header": (with_header(length=48), ErrorCode.CORRUPT_MESSAGE),
    "length -1": (with_header(length=-1), ErrorCode.CORRUPT_MESSAGE),
    "length 2^31-1": (with_header(length=2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
    "crc wrong": (good_batch()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (message_set(0), ErrorCode.INVALID_RECORD),
    "magic 1": (message_set(1), ErrorCode.INVALID_RECORD),
    "magic 3": (with_header(magic=3), ErrorCode.INVALID_RECORD),
    "magic 255": (with_header(magic=255), ErrorCode.INVALID_RECORD),
    "count above delta + 1": (with_header(record_count=4), ErrorCode.INVALID_RECORD),
    "count below delta + 1": (with_header(record_count=2), ErrorCode.INVALID_RECORD),
    "count 0": (around(b"", 0), ErrorCode.INVALID_RECORD),
    "count -1": (with_header(record_count=-1, last_offset_delta=-2), ErrorCode.INVALID_RECORD),
    "delta 2^31-1": (with_header(last_offset_delta=2**31 - 1), ErrorCode.INVALID_RECORD),
    "base offset 5": (with_header(base_offset=5), ErrorCode.INVALID_RECORD),
    "base offset -1": (with_header(base_offset=-1), ErrorCode.INVALID_RECORD),
    "two batches": (good_batch() * 2, ErrorCode.INVALID_RECORD),
    "a byte behind the batch": (good_batch() + b"\0", ErrorCode.INVALID_RECORD),
    "control bit": (encode_batch(RECORDS, control=True), ErrorCode.INVALID_RECORD),
    "log append time bit": (with_header(attributes=TIMESTAMP_TYPE_BIT), ErrorCode.INVALID_TIMESTAMP),
    "undefined attribute bits": (with_header(attributes=1 << 9), ErrorCode.INVALID_RECORD),
    "transactional, with a producer": (
        with_header(attributes=TRANSACTIONAL_BIT, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "transactional, without": (with_header(attributes=TRANSACTIONAL_BIT), ErrorCode.INVALID_RECORD),
    "control and transactional": (with_header(attributes=CONTROL_BIT | TRANSACTIONAL_BIT), ErrorCode.INVALID_RECORD),
    "producer id -2": (with_header(producer_id=-2), ErrorCode.INVALID_RECORD),
    "negative sequence": (with_header(producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
    "negative epoch": (with_header(producer_id=1, producer_epoch=-1, base_sequence=0), ErrorCode.INVALID_RECORD),
    "max timestamp in a year": (with_header(max_timestamp=NOW_MS + YEAR_MS), ErrorCode.INVALID_TIMESTAMP),
    "all timestamps in a year": (
        with_header(base_timestamp=NOW_MS + YEAR_MS, max_timestamp=NOW_MS + YEAR_MS),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    "timestamp -2": (with_header(base_timestamp=-2, max_timestamp=-2), ErrorCode.INVALID_TIMESTAMP),
    "codec 5": (with_header(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "codec 7": (with_header(attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "oversized": (encode_batch([Record(0, NOW_MS, None, bytes(BATCH_BYTES_MAX))]), ErrorCode.MESSAGE_TOO_LARGE),
}

# -- records: only looked at with thermocline.validate.records=true


def varint(value: int) -> bytes:
    """Zig-zag, as records have it."""
    coded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while coded >= 0x80:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes(out + bytes([coded]))


def record_of(fields: bytes) -> bytes:
    return varint(len(fields)) + fields


ONE = encode_record(Record(0, NOW_MS, b"k", b"v"), 0, 0)
SECOND = encode_record(Record(1, NOW_MS, b"k", b"v"), 1, 0)
NULLS = b"\0\0\0\1\1"  # attributes, timestamp delta, offset delta, null key, null value
BOMB_BYTES = 160 << 20  # more than the 128 MiB that one batch may become


def gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


def bombs() -> dict[str, bytes]:
    """Few bytes that become many; what they would become is zeros."""
    zeros = bytes(BOMB_BYTES)
    return {
        "gzip bomb": around(gzip_bomb(), codec_number=Codec.GZIP),
        "lz4 bomb": around(lz4.frame.compress(zeros, store_size=True), codec_number=Codec.LZ4),
        "zstd bomb": around(zstandard.compress(zeros), codec_number=Codec.ZSTD),
        "snappy bomb": around(b"\xff\xff\xff\xff\x0f" + bytes(100), codec_number=Codec.SNAPPY),
        "zstd bomb, maximum unset": around(zstandard.compress(zeros), codec_number=Codec.ZSTD, max_timestamp=-1),
    }


INSIDE: dict[str, bytes] = {
    "record length null": around(b"\1" + ONE[1:]),
    "record length -2": around(varint(-2) + ONE[1:]),
    "record length 0": around(b"\0"),
    "record length 2^31-1": around(varint(2**31 - 1) + ONE[1:]),
    "record length one too much": around(varint(len(ONE)) + ONE[1:]),
    "record length of 6 bytes": around(b"\x80\x80\x80\x80\x80\x01" + ONE),
    "record length cut short": around(b"\xff"),
    "key beyond the record": around(record_of(b"\0\0\0" + varint(10_000) + b"k\1\0")),
    "key of 2^31-1": around(record_of(b"\0\0\0" + varint(2**31 - 1) + b"k\1\0")),
    "key of -2": around(record_of(b"\0\0\0" + varint(-2) + b"\1\0")),
    "value beyond the record": around(record_of(b"\0\0\0\1" + varint(50) + b"v\0")),
    "headers beyond the record": around(record_of(NULLS + varint(1000))),
    "headers 2^31-1": around(record_of(NULLS + varint(2**31 - 1))),
    "headers -1": around(record_of(NULLS + varint(-1))),
    "header without a key": around(record_of(NULLS + b"\2\1\1")),
    "header key beyond the record": around(record_of(NULLS + b"\2" + varint(500) + b"a\1")),
    "garbage in the record": around(record_of(NULLS + b"\0" + b"garbage")),
    "garbage behind the last record": around(ONE + b"garbage"),
    "a record more than counted": around(ONE + SECOND),
    "a record fewer than counted": around(ONE, 2),
    "10^6 records counted": around(ONE, 10**6),
    "2^31-1 records counted": around(ONE, 2**31 - 1),
    "offset delta 1 first": around(SECOND),
    "offset delta twice": around(ONE + ONE, 2),
    "offset delta negative": around(record_of(b"\0\0" + varint(-1) + b"\1\1\0")),
    "not gzip": around(ONE, codec_number=Codec.GZIP),
    "not lz4": around(ONE, codec_number=Codec.LZ4),
    "not snappy": around(ONE, codec_number=Codec.SNAPPY),
    "not zstd": around(ONE, codec_number=Codec.ZSTD),
    "gzip cut short": around(compress(Codec.GZIP, ONE)[:-3], codec_number=Codec.GZIP),
    "zstd cut short": around(compress(Codec.ZSTD, ONE)[:-3], codec_number=Codec.ZSTD),
    "garbage behind gzip": around(compress(Codec.GZIP, ONE) + b"garbage", codec_number=Codec.GZIP),
    "nothing compressed": around(b"", codec_number=Codec.ZSTD),
}
ROWS = {**BATCHES, **{name: (batch, ErrorCode.INVALID_RECORD) for name, batch in INSIDE.items()}}
BOMBS = ("gzip bomb", "lz4 bomb", "zstd bomb", "snappy bomb", "zstd bomb, maximum unset")


# A batch that claims more offsets than are reserved is not looked at before its request's timeout: the reservation has
# to grow first.
PATIENCE_MS = 300
BEYOND_THE_RESERVATION = {"delta 2^31-1", "10^6 records counted", "2^31-1 records counted"}


@pytest.fixture(scope="module")
def made_bombs() -> dict[str, bytes]:
    return bombs()


@pytest.mark.parametrize(("batch", "code"), ROWS.values(), ids=ROWS)
def test_a_bad_batch_is_refused_by_code(target: Target, batch: bytes | None, code: ErrorCode) -> None:
    """The exact code, in an inflexible and a flexible version, and with acks=0 a closed connection."""
    with target.connect() as peer:
        for version in (7, 9):
            assert produced(peer, batch, version, timeout_ms=PATIENCE_MS) is code
        unacknowledged = produce_request(batch, acks=0, timeout_ms=PATIENCE_MS)
        assert answer_to(peer, request_bytes(ApiKey.PRODUCE, 9, unacknowledged)) == b""


@pytest.mark.parametrize("name", BOMBS)
def test_a_compression_bomb_is_refused(target: Target, made_bombs: dict[str, bytes], name: str) -> None:
    """Refused at the cap on what a batch may become, whatever the data says of itself."""
    assert len(made_bombs[name]) < BATCH_BYTES_MAX
    with target.connect() as peer:
        assert produced(peer, made_bombs[name]) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_the_request_around_a_good_batch_can_be_wrong_too(target: Target) -> None:
    """Unknown acks, a partition that is not there, zstd in a version that cannot have it."""
    with target.connect() as peer:
        assert produced(peer, good_batch(), acks=2) is ErrorCode.INVALID_REQUIRED_ACKS
        zstd = encode_batch(RECORDS, codec=Codec.ZSTD)
        assert produced(peer, zstd, version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        for index in (1, -1, 2**31 - 1):
            elsewhere = produce_request(good_batch())
            elsewhere.topic_data[0].partition_data[0].index = index
            answer = call(peer, ApiKey.PRODUCE, 9, elsewhere).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_fast_path_refuses_as_the_general_path_does(module_target: Target) -> None:
    """A connection whose produce requests have been learned: every bad batch still gets its code, and only the good
    ones are in the log."""
    target = module_target
    before = target.seen().log_end_offset
    good = 0
    with target.connect() as peer:
        for name, (batch, code) in ROWS.items():
            if name in BEYOND_THE_RESERVATION:
                continue
            assert produced(peer, good_batch()) is ErrorCode.NONE
            good += 1
            assert produced(peer, batch) is code, name
    assert target.seen().log_end_offset == before + good * len(RECORDS)


def test_a_record_of_the_far_future_behind_an_honest_header_is_refused(module_target: Target) -> None:
    """Kafka's validator looks at every record: INVALID_TIMESTAMP, whatever the header says."""
    far = Record(0, NOW_MS + YEAR_MS, b"k", b"v")
    with module_target.connect() as peer:
        assert produced(peer, around(encode_record(far, 0, YEAR_MS))) is ErrorCode.INVALID_TIMESTAMP


def test_a_client_cannot_make_an_ordinary_topic_of_an_internal_name(module_target: Target) -> None:
    """Refused, or made as the internal topic it is (Kafka does that): retention must never eat committed offsets."""
    codes = create_topics(module_target, new_topic("__consumer_offsets"))
    with module_target.client() as client:
        (made,) = client.metadata(["__consumer_offsets"]).topics
    assert codes != [ErrorCode.NONE] or made.is_internal


def test_a_client_may_not_write_to_an_internal_topic(module_target: Target) -> None:
    """Kafka answers INVALID_TOPIC_EXCEPTION: what lies there is read as the groups' own word."""
    with module_target.connect() as peer:
        find = m.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
        deadline = time.monotonic() + ANSWER_S
        while call(peer, ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code:
            assert time.monotonic() < deadline
        forged = produce_request(good_batch())
        forged.topic_data[0].name = "__consumer_offsets"
        answer = call(peer, ApiKey.PRODUCE, 9, forged).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_after_all_that_it_is_the_same_process_and_no_larger(module_target: Target) -> None:
    """The pid that became ready still serves, logged nothing unexpected, and grew by less than 64 MiB."""
    target = module_target
    assert target.broker.process.poll() is None
    assert target.memory("VmRSS") - target.rss_start < MEMORY_MAX
    log = target.broker.log()
    assert "Traceback" not in log
    assert "unexpected" not in log
    with target.connect() as peer:
        assert produced(peer, good_batch()) is ErrorCode.NONE
