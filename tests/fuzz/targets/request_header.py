"""Request and response headers: a header or `MalformedFrame`; what was read is written again as the same header.

Differential: where kio knows the header version, it reads the same fields and stops at the same byte. Input: the frame.
"""

from __future__ import annotations

import contextlib
from typing import Any

from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader

from broker.wire.apis import APIS, is_flexible
from broker.wire.errors import MalformedFrame
from broker.wire.framing import parse_request_header, parse_response_header, request_frame
from broker.wire.scatter import Part

_READ_V1: Any = entity_reader(HeaderV1)
_READ_V2: Any = entity_reader(HeaderV2)


def seeds() -> list[bytes]:
    made: list[bytes] = []
    for key, version in ((18, 0), (18, 3), (0, 3), (0, 9), (1, 4), (1, 12), (3, 12), (11, 9), (999, 0)):
        for client in ("rdkafka", None, "é" * 30):
            made.append(_joined(request_frame(key, version, 7, client, [b"body"]))[4:])
    made.append(made[4][:-5] + b"\x02\x00\x01a\x05\x02bc")
    return made


def run(data: bytes) -> None:
    frame = memoryview(data)
    for api in (18, 1):
        with contextlib.suppress(MalformedFrame):
            _, at = parse_response_header(frame, api, 12)
            assert 4 <= at <= len(data)
    try:
        header, offset = parse_request_header(frame)
    except MalformedFrame:
        return
    assert 10 <= offset <= len(data), (offset, len(data))
    again = _joined(request_frame(header.api_key, header.api_version, header.correlation_id, header.client_id, []))[4:]
    assert parse_request_header(memoryview(again)) == (header, len(again))
    if header.api_key in APIS:
        _compare_with_kio(data, header.api_key, header.api_version, header.correlation_id, header.client_id, offset)


def _compare_with_kio(data: bytes, key: int, version: int, correlation: int, client: str | None, offset: int) -> None:
    try:
        theirs, size = (_READ_V2 if is_flexible(key, version) else _READ_V1)(data, 0)
    except KeyError:
        return  # kio refuses tagged fields that it does not know; Kafka and we pass over them
    assert (theirs.request_api_key, theirs.request_api_version) == (key, version)
    assert (theirs.correlation_id, theirs.client_id) == (correlation, client)
    assert size == offset, (size, offset)


def _joined(parts: list[Part]) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
