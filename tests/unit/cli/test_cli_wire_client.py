"""The small blocking client, and the two HTTP requests: versions, hostile answers, `tier status` and `tier seal`."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest

from broker.wire import codec, framing
from broker.wire.apis import APIS, ApiKey
from broker.wire.message import Message
from broker.wire.messages import (
    ApiVersionsResponse,
    ApiVersionsResponseApi,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseLogDir,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.wire_client import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, BrokerUnreachable, WireClient
from thermocline.cli.main import main
from thermocline.cli.tier.reader import TierReader

Answer = Callable[[int, int, Message], Message]
OFFSETS = {-2: 0, -1: 100, -4: 60, -5: 79}


class FakeBroker:
    """One topic `t` with partitions 0 (answers) and 1 (an error); serves one connection after the other."""

    def __init__(self, http_address: str | None = None, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self._http = http_address
        self.topic_configs: dict[str, str] = {}
        self.topic_error = 0
        self.is_sealed = False  # whether `t` is partition 0 only, all of it in the bucket
        self._versions = versions or {key: (api.version_min, api.version_max) for key, api in APIS.items()}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while size := connection.recv(4):
                    frame = b""
                    while len(frame) < int.from_bytes(size, "big"):
                        frame += connection.recv(65536)
                    connection.sendall(self._answer(memoryview(frame)))

    def _answer(self, frame: memoryview) -> bytes:
        header, start = framing.parse_request_header(frame)
        key, version = header.api_key, header.api_version
        request = codec.decode_request(key, version, frame[start:])
        body = codec.encode_response(key, version, self._message(key, request))
        flexible = version >= APIS[ApiKey(key)].flexible_from and key != ApiKey.API_VERSIONS
        parts = framing.response_frame(1 if flexible else 0, header.correlation_id, body)
        return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]

    def _message(self, key: int, request: Message) -> Message:
        if key == ApiKey.API_VERSIONS:
            listed = [ApiVersionsResponseApi(key, low, high) for key, (low, high) in self._versions.items()]
            return ApiVersionsResponse(api_keys=listed)
        if key == ApiKey.METADATA:
            partitions = [MetadataResponsePartition(partition_index=i, leader_id=1) for i in range(2 - self.is_sealed)]
            return MetadataResponse(
                brokers=[MetadataResponseBroker(1, "127.0.0.1", self.port)],
                topics=[MetadataResponseTopic(name="t", partitions=partitions, error_code=self.topic_error)],
            )
        if isinstance(request, ListOffsetsRequest):
            timestamp = request.topics[0].partitions[0].timestamp
            offset = OFFSETS[-1] - 1 if self.is_sealed and timestamp == LATEST_TIERED else OFFSETS[timestamp]
            found = [
                ListOffsetsResponsePartition(partition_index=0, offset=offset),
                ListOffsetsResponsePartition(partition_index=1, error_code=6),
            ]
            return ListOffsetsResponse(topics=[ListOffsetsResponseTopic("t", found)])
        if isinstance(request, DescribeConfigsRequest):
            resource = request.resources[0]
            values = {"thermocline.http": self._http} if resource.resource_type == 4 and self._http else {}
            values |= self.topic_configs if resource.resource_type == 2 else {}
            configs = [DescribeConfigsResponseConfig(name=name, value=value) for name, value in values.items()]
            return DescribeConfigsResponse(results=[DescribeConfigsResponseResult(configs=configs)])
        sizes = [DescribeLogDirsResponsePartition(0, 4096), DescribeLogDirsResponsePartition(1, 1, 0, True)]
        directory = DescribeLogDirsResponseLogDir(topics=[DescribeLogDirsResponseTopic("t", sizes)])
        return DescribeLogDirsResponse(results=[directory])


@pytest.fixture
def fake_broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


def test_offsets_are_asked_in_a_version_both_sides_know(fake_broker: FakeBroker) -> None:
    """A partition with an error is left out; a sentinel the broker's version does not know is not asked."""
    with WireClient("127.0.0.1", fake_broker.port) as client:
        assert client.offsets({"t": [0, 1]}, LATEST_TIERED) == {("t", 0): 79}
        assert client.log_sizes() == {("t", 0): 4096}
    old = FakeBroker(versions={ApiKey.LIST_OFFSETS: (0, 8), ApiKey.METADATA: (0, 20)})
    with WireClient("127.0.0.1", old.port) as client:
        assert client.offsets({"t": [0]}, EARLIEST) == {("t", 0): 0}
        assert client.offsets({"t": [0]}, EARLIEST_LOCAL) == {("t", 0): 60}
        assert client.offsets({"t": [0]}, LATEST_TIERED) == {}
        assert client.log_sizes() == {}
        assert client.version(ApiKey.METADATA) == APIS[ApiKey.METADATA].version_max
        with pytest.raises(BrokerUnreachable, match="PRODUCE"):
            client.call(ApiKey.PRODUCE, ListOffsetsRequest(), ListOffsetsResponse)
    old.close()


@contextmanager
def answering(data: bytes) -> Iterator[int]:
    """A server that answers anything with `data` and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\x04\0\0\0\x63",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05\0\0\0\1\0",
        b"HTTP/1.1 400 Bad",
    ],
)
def test_whatever_answers_is_named_not_believed(data: bytes) -> None:
    """A closed connection, another correlation id, absurd sizes, a cut body, another protocol."""
    with answering(data) as port, pytest.raises(BrokerUnreachable, match=str(port)), WireClient("127.0.0.1", port, 5):
        pass


def test_bootstrap_addresses() -> None:
    """Several, also IPv6; the first that answers is asked."""
    assert bootstrap_addresses("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    assert main(["tier", "status", "-b", "nonsense"]) == 2
    assert main(["topic", "list", "-b", "nonsense"]) == 2
    assert main(["topic", "list", "-b", "::1:9092"]) == 2  # which colon is the port's?


def test_tier_status_against_a_broker_without_http(fake_broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """As against Apache Kafka: offsets and local bytes, null for the rest, and null where a partition has an error."""
    assert main(["tier", "status", "-b", f"127.0.0.1:{fake_broker.port}", "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    names = ("log_start_offset", "local_log_start_offset", "remote_end_offset", "high_watermark")
    assert [first[name] for name in names] == [0, 60, 80, 100]
    assert (first["local_bytes"], first["log_end_offset"], first["gaps"]) == (4096, None, None)
    assert second["high_watermark"] is None and second["leader"] == 1


class Http(http.server.BaseHTTPRequestHandler):
    """`/status` and `/tier/seal`."""

    seals: ClassVar[list[tuple[str | None, dict[str, object]]]] = []
    refuse = False

    def do_GET(self) -> None:
        row = {"topic": "t", "partition": 0, "log_end_offset": 101, "cold_bytes": 5, "gaps": [[1, 3]], "new_field": 1}
        self._reply(200, json.dumps([row]))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seals.append((self.headers["Content-Type"], body))
        self._reply(503 if self.refuse else 200, "store away" if self.refuse else json.dumps({"done": body["wait"]}))

    def _reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def thermocline_broker() -> Iterator[FakeBroker]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Http)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    broker = FakeBroker(f"127.0.0.1:{server.server_port}")
    Http.seals.clear()
    Http.refuse = False
    yield broker
    broker.close()
    server.shutdown()
    server.server_close()


def test_tier_status_finds_http_through_describe_configs(
    thermocline_broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the broker knows comes from its HTTP port; fields this version does not know are skipped."""
    assert main(["tier", "status", "-b", f"127.0.0.1:{thermocline_broker.port}", "--json", "--topic", "t"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["log_end_offset"], first["cold_bytes"], first["gaps"]) == (101, 5, [[1, 3]])
    assert (first["high_watermark"], first["local_bytes"]) == (100, 4096)


def test_tier_status_watch_looks_again_until_stopped(
    thermocline_broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look a second; Ctrl-C ends it as intended, with 0."""
    looks = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(looks, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    # Its own name for the module: threads that another test left behind sleep, too.
    monkeypatch.setattr("thermocline.cli.terminal.watch.time", SimpleNamespace(sleep=sleep))
    assert main(["tier", "status", "-b", f"127.0.0.1:{thermocline_broker.port}", "--watch"]) == 0
    assert capsys.readouterr().out.count("high wm") == 3


def test_tier_seal_posts_json_and_reports_a_refusal(
    thermocline_broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The content type is what keeps web pages out; a refusal is exit 1 with the broker's words."""
    bootstrap = f"127.0.0.1:{thermocline_broker.port}"
    thermocline_broker.is_sealed = True
    assert main(["tier", "seal", "-b", bootstrap, "--topic", "t", "--wait"]) == 0
    assert Http.seals == [("application/json", {"topic": "t", "wait": True})]
    assert "everything is in the bucket" in capsys.readouterr().err
    Http.refuse = True
    assert main(["tier", "seal", "-b", bootstrap]) == 1
    assert "store away" in capsys.readouterr().err


@pytest.mark.parametrize("config", ["remote.storage.enable=false", "remote.log.copy.disable=true"])
def test_tier_seal_names_what_is_not_copied_at_all(
    thermocline_broker: FakeBroker, capsys: pytest.CaptureFixture[str], config: str
) -> None:
    """`tier seal --wait` comes before a disk is given up: it must not call a topic safe that no bucket ever holds."""
    thermocline_broker.topic_configs = dict([config.split("=")])
    bootstrap = f"127.0.0.1:{thermocline_broker.port}"
    assert main(["tier", "seal", "-b", bootstrap, "--wait"]) == 0
    said = capsys.readouterr().err
    assert f"NOT in the bucket, on this disk only: t ({config})" in said
    assert "everything is in the bucket" not in said
    assert main(["tier", "seal", "-b", bootstrap, "--wait", "--topic", "t"]) == 1
    assert f"topic t is not copied to the bucket: {config}" in capsys.readouterr().err


def test_tier_seal_refuses_a_topic_that_is_not_there(
    thermocline_broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped name is exit 1, and nothing is asked of the broker: "everything is in the bucket" would be a trap."""
    thermocline_broker.topic_error = 3
    assert main(["tier", "seal", "-b", f"127.0.0.1:{thermocline_broker.port}", "--topic", "t"]) == 1
    assert "there is no topic t" in capsys.readouterr().err
    assert Http.seals == []


def test_topics_that_leave_alike_share_a_line(
    thermocline_broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a sentence, not a line a topic: with a hundred topics the table must stay in sight."""
    thermocline_broker.topic_configs = {"remote.storage.enable": "false", "retention.ms": "86400000"}
    source = TierReader(f"127.0.0.1:{thermocline_broker.port}", None, None)
    source.read()
    source._topic_configs |= {"a": source._topic_configs["t"], "b": {"retention.ms": "-1"}}
    assert source.retention() == [
        "a, t: not tiered: data stays on the disk for 1d",
        "b: not tiered: data stays on the disk for ever",
    ]


def test_tier_seal_needs_a_thermocline_broker(fake_broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """Apache Kafka has nothing to seal."""
    assert main(["tier", "seal", "-b", f"127.0.0.1:{fake_broker.port}"]) == 1
    assert "not Thermocline" in capsys.readouterr().err


def test_sizes_nobody_tells_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    """A broker without HTTP, or with one that cannot be reached, and a partition DescribeLogDirs leaves out: null, and
    - for people. 0 would be a lie."""
    for http_address in (None, "127.0.0.1:1"):
        broker = FakeBroker(http_address)
        address = f"127.0.0.1:{broker.port}"
        assert main(["topic", "list", "--json", "-b", address]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "topic": "t", "partitions": 2, "local_bytes": None, "cold_bytes": None,
        }  # fmt: skip
        assert main(["topic", "list", "-b", address]) == 0
        assert capsys.readouterr().out.splitlines()[-1].split() == ["t", "2", "-", "-"]
        broker.close()
