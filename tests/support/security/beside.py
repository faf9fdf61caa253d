"""Asks Apache Kafka and a broker of ours the same, and compares what they answer.

Owns the raw connection to Kafka, its ACLs, and what two right answers may differ in (ids, addresses, offsets, order).
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final
from uuid import UUID

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from broker.metadata.records import Acl
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.framing import FRAME_PREFIX_SIZE, parse_response_header, request_frame
from tests.support.brokers.broker_kit import joined

_TIMEOUT_S: Final = 20.0
_EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
_LEFT_OUT: Final = frozenset(
    {
        "throttle_time_ms",
        "error_message",
        "cluster_id",
        "controller_id",
        "brokers",
        "node_id",
        "host",
        "port",
        "leader_id",
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "eligible_leader_replicas",
        "last_known_elr",
        "offline_replicas",
        "topic_id",
        "timestamp",
        "log_append_time_ms",
        "base_offset",
        "offset",
        "end_offset",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "low_watermark",
        "records",
        "member_id",
        "configs",
        "config_resources",
        "producer_id",
        "producer_epoch",
        "node_endpoints",
        "current_leader",
        "api_keys",
        "supported_features",
        "finalized_features",
        "finalized_features_epoch",
        "metadata",
        "aborted_transactions",
        "partition_size",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "session_id",
    }
)


class RawClient:
    """One connection, one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._at = host, int(port)
        self._socket: socket.socket | None = None

    def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The decoded answer; None when the connection is closed instead."""
        if self._socket is None:
            self._socket = socket.create_connection(self._at, timeout=_TIMEOUT_S)
        frame = joined(request_frame(api, version, 7, "matrix", encode_request(api, version, request)))
        try:
            self._socket.sendall(frame)
            (size,) = (int.from_bytes(self._read(FRAME_PREFIX_SIZE), "big"),)
            body = memoryview(self._read(size))
        except ConnectionError:
            self.close()
            return None
        _, at = parse_response_header(body, api, version)
        return decode_response(api, version, body[at:])

    def _read(self, count: int) -> bytes:
        assert self._socket is not None
        found = b""
        while len(found) < count:
            piece = self._socket.recv(count - len(found))
            if not piece:
                raise ConnectionError("closed")
            found += piece
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def binding(acl: Acl) -> AclBinding:
    return AclBinding(
        _KINDS[acl.resource_type],
        acl.resource_name,
        _PATTERNS[acl.pattern_type],
        acl.principal,
        acl.host,
        _OPERATIONS[acl.operation],
        _PERMISSIONS[acl.permission],
    )


def set_acls(admin: AdminClient, acls: list[Acl]) -> None:
    """Make these Kafka's only ACLs, and wait until its authorizer has them."""
    for deleted in admin.delete_acls([_EVERYTHING], request_timeout=_TIMEOUT_S).values():
        deleted.result()
    if acls:
        for created in admin.create_acls([binding(acl) for acl in acls], request_timeout=_TIMEOUT_S).values():
            created.result()
    until_s = time.monotonic() + _TIMEOUT_S
    while len(admin.describe_acls(_EVERYTHING, request_timeout=_TIMEOUT_S).result()) != len(set(acls)):
        assert time.monotonic() < until_s
        time.sleep(0.01)


_KINDS = {
    2: ResourceType.TOPIC,
    3: ResourceType.GROUP,
    4: ResourceType.BROKER,  # librdkafka's name of the cluster's number
    5: ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS = {3: ResourcePatternType.LITERAL, 4: ResourcePatternType.PREFIXED}
_OPERATIONS = {operation.value: operation for operation in AclOperation}
_PERMISSIONS = {permission.value: permission for permission in AclPermissionType}


def comparable(found: Any) -> Any:
    """What two right answers have in common, in one order."""
    fields = getattr(found, "__struct_fields__", None)
    if fields is not None:
        return tuple((field, comparable(getattr(found, field))) for field in fields if field not in _LEFT_OUT)
    if isinstance(found, list):
        return tuple(sorted((comparable(each) for each in found), key=repr))
    if isinstance(found, UUID):
        return str(found)
    if isinstance(found, memoryview | bytearray):
        return bytes(found)
    return found
