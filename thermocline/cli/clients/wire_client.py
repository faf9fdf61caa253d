"""A small blocking Kafka client for requests that stock Python clients lack.

One request at a time. A response to another request, or one larger than the limit, ends the connection.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from broker.config.network.addresses import show_address
from broker.config.network.sasl import PasswordLogin
from broker.error_codes import ErrorCode
from broker.security.sasl.client_login import LoginFailed, check_answer, check_handshake
from broker.wire import codec, framing
from broker.wire.apis import APIS, ApiKey
from broker.wire.errors import MalformedFrame
from broker.wire.message import Message
from broker.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    DescribeLogDirsResponse,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from logformat.errors import Retryable
from thermocline.cli.clients.advice import CLOSED, closed_advice, running_advice, tls_advice
from thermocline.cli.clients.connection_properties import current
from thermocline.cli.clients.secured_socket import new_login, secured

EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -4, -5  # KIP-79, KIP-405, KIP-1005
BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2

_SINCE = {EARLIEST_LOCAL: 8, LATEST_TIERED: 9}  # ListOffsets version that knows the sentinel
_RESPONSE_BYTES_MAX = 100 << 20
_CLIENT_ID = "thermocline-cli"
_VERSION_MAX = 32_767  # an int16 on the wire
TIMEOUT_S = 10.0

R = TypeVar("R", bound=Message)


class BrokerUnreachable(Retryable):
    """No response from an address. The message has address, cause and what to check; `why` is the cause alone."""

    why = ""


class NotSecured(BrokerUnreachable):
    """The port answers, but TLS failed, or the port may want TLS or a login that this command does not have."""


class LoginRefused(NotSecured):
    """The broker answers but refused the login; the message has the user."""


class WireClient:
    """One connection to one broker; use as a context manager."""

    def __init__(self, host: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self.host = host
        self.port = port
        self._correlation_ids = itertools.count(1)
        self._versions: dict[int, int] = {}
        self._properties = current()
        try:
            self._socket = secured(socket.create_connection((host, port), timeout_s), host, self._properties)
        except (OSError, UnicodeError) as refused:  # UnicodeError: a host name that cannot be resolved
            raise self._unreachable(refused) from refused

    def __enter__(self) -> WireClient:
        try:
            self._negotiate()
            self._log_in()
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _negotiate(self) -> None:
        # Every broker answers version 0.
        answer = self._exchange(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), ApiVersionsResponse)
        theirs = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        for key, api in APIS.items():
            low, high = theirs.get(key, (0, -1))
            version = min(api.version_max, high)
            if version >= max(api.version_min, low):
                self._versions[key] = version

    def _log_in(self) -> None:
        """Log in. Raises BrokerUnreachable when the login is refused."""
        if self._properties.login is None:
            return
        login = new_login(self._properties.login)
        mechanism, authenticate = login.mechanism, ApiKey.SASL_AUTHENTICATE
        try:
            shaken = self.call(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism), SaslHandshakeResponse)
            check_handshake(mechanism, shaken)
            token: bytes | None = login.first_token()
            while token is not None:
                answer = self.call(authenticate, SaslAuthenticateRequest(token), SaslAuthenticateResponse)
                token = login.next_token(check_answer(mechanism, answer))
        except LoginFailed as failed:
            raise self._login_refused(failed) from failed
        except OSError as failed:  # a token's file cannot be read
            raise self._unreachable(failed) from failed

    def version(self, key: ApiKey) -> int:
        """The version used for an API, or -1 when the broker serves none that we know."""
        return self._versions.get(key, -1)

    def call(self, key: ApiKey, request: Message, response: type[R], *, version_max: int = _VERSION_MAX) -> R:
        """Send one request and wait for its response. Raises BrokerUnreachable when the connection fails."""
        version = min(self.version(key), version_max)
        if version < 0:
            raise BrokerUnreachable(
                f"{show_address(self.host, self.port)} does not serve {key.name} in a version this client knows"
            )
        return self._exchange(key, version, request, response)

    def _exchange(self, key: ApiKey, version: int, request: Message, response: type[R]) -> R:
        correlation_id = next(self._correlation_ids)
        body = codec.encode_request(key, version, request)
        parts = framing.request_frame(key, version, correlation_id, _CLIENT_ID, body)
        try:
            for part in parts:
                assert isinstance(part, bytes | bytearray | memoryview)  # no request of ours carries records
                self._socket.sendall(part)
            frame = memoryview(self._read(int.from_bytes(self._read(framing.FRAME_PREFIX_SIZE), "big", signed=True)))
            answered_id, start = framing.parse_response_header(frame, key, version)
            if answered_id != correlation_id:
                raise self._unreachable(f"answered request {answered_id}, not {correlation_id}")
            answer = codec.decode_response(key, version, frame[start:])
        except (OSError, MalformedFrame) as failed:
            raise self._unreachable(failed) from failed
        assert isinstance(answer, response)
        return answer

    def _read(self, size: int) -> bytearray:
        if not 0 <= size <= _RESPONSE_BYTES_MAX:
            raise self._unreachable(f"its answer claims {size} bytes; is this a Kafka port?")
        found = bytearray()
        while len(found) < size:
            data = self._socket.recv(min(size - len(found), 1 << 20))
            if not data:
                raise self._unreachable(CLOSED)
            found += data
        return found

    def _login_refused(self, why: LoginFailed) -> LoginRefused:
        """`why` names the mechanism, and never has a secret."""
        login = self._properties.login
        user = f"user {login.username}" if isinstance(login, PasswordLogin) else "the token's user"
        found = f"{show_address(self.host, self.port)} refused the login of {user}: {why}"
        refused = LoginRefused(f"{found}; check user, password and mechanism (--command-config)")
        refused.why = found
        return refused

    def _unreachable(self, why: object) -> BrokerUnreachable:
        found = f"no answer from {show_address(self.host, self.port)}: {why}"
        has_login = self._properties.login is not None
        kind, advice = BrokerUnreachable, running_advice(self._properties.bootstrap_file)
        if isinstance(why, ssl.SSLError):
            kind, advice = NotSecured, tls_advice(why)
        elif not has_login and (why == CLOSED or isinstance(why, ConnectionResetError | BrokenPipeError)):
            kind, advice = NotSecured, closed_advice(advice, uses_tls=self._properties.protocol.uses_tls)
        unreachable = kind(f"{found}; {advice}")
        unreachable.why = found
        return unreachable

    def metadata(self, topics: Sequence[str] | None = None) -> MetadataResponse:
        """Brokers and topics (None: all topics). Never creates a topic."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        return self.call(ApiKey.METADATA, request, MetadataResponse)

    def configs(self, resource_type: int, name: str, keys: Sequence[str] | None = None) -> dict[str, str | None]:
        """Configs of a topic or broker; empty when there are none, or when this user may not read them."""
        resource = DescribeConfigsRequestResource(
            resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        request = DescribeConfigsRequest(resources=[resource])
        answer = self.call(ApiKey.DESCRIBE_CONFIGS, request, DescribeConfigsResponse)
        return {
            entry.name: entry.value
            for result in answer.results
            if result.error_code == ErrorCode.NONE
            for entry in result.configs
        }

    def may_read_configs(self, node_id: int) -> bool:
        """Whether this user may read a broker's configs."""
        resource = DescribeConfigsRequestResource(
            resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[]
        )
        request = DescribeConfigsRequest(resources=[resource])
        answer = self.call(ApiKey.DESCRIBE_CONFIGS, request, DescribeConfigsResponse)
        return all(result.error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED for result in answer.results)

    def offsets(self, partitions: Mapping[str, Sequence[int]], sentinel: int) -> dict[tuple[str, int], int]:
        """The offset that a ListOffsets sentinel has in each (topic, partition) that this broker leads."""
        if self.version(ApiKey.LIST_OFFSETS) < _SINCE.get(sentinel, 1):
            return {}
        topics = [
            ListOffsetsRequestTopic(
                name=topic,
                partitions=[ListOffsetsRequestPartition(partition_index=i, timestamp=sentinel) for i in indexes],
            )
            for topic, indexes in partitions.items()
        ]
        request = ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=5000)
        answer = self.call(ApiKey.LIST_OFFSETS, request, ListOffsetsResponse)
        return {
            (topic.name, found.partition_index): found.offset
            for topic in answer.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE
        }

    def log_sizes(self, partitions: Iterable[tuple[str, int]] | None = None) -> dict[tuple[str, int], int]:
        """Bytes of this broker's logs of these partitions, or of all (DescribeLogDirs, KIP-113). Empty if the broker
        does not serve this request.
        """
        if self.version(ApiKey.DESCRIBE_LOG_DIRS) < 0:
            return {}
        topics = None
        if partitions is not None:
            topics = [DescribeLogDirsRequestTopic(name, indexes) for name, indexes in by_topic(partitions).items()]
        answer = self.call(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=topics), DescribeLogDirsResponse)
        return {
            (topic.name, found.partition_index): found.partition_size
            for directory in answer.results
            for topic in directory.topics
            for found in topic.partitions
            if not found.is_future_key
        }


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Sorted partitions by topic, as requests need them."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
