"""Every request and response of the table: decoded, encoded, decoded again: the same message, whatever the bytes.

Input: API (index into the table), version (above the lowest), kind (bit 0: response), then the body.
"""

from __future__ import annotations

import random

from broker.wire import codec
from broker.wire.apis import APIS
from broker.wire.errors import MalformedFrame
from broker.wire.message import Message
from broker.wire.scatter import Part
from broker.wire.schema import Kind
from broker.wire.table import MESSAGES
from tests.fuzz.inputs import Cursor
from tests.support.wire.random_messages import random_message

_APIS = sorted(APIS.values(), key=lambda api: int(api.key))
_SEED_BYTES_MAX = 1500


def seeds() -> list[bytes]:
    made: list[bytes] = []
    rng = random.Random("request bodies")
    for index, api in enumerate(_APIS):
        for version in range(api.version_min, api.version_max + 1):
            for kind in Kind.REQUEST, Kind.RESPONSE:
                schema = MESSAGES[api.name + kind.value.capitalize()]
                for _ in range(20):
                    message = random_message(rng, schema, version)
                    body = _joined(_encode(kind is Kind.RESPONSE, api.key, version, message))
                    if len(body) <= _SEED_BYTES_MAX:
                        made.append(bytes((index, version - api.version_min, kind is Kind.RESPONSE)) + body)
                        break
    return made


def run(data: bytes) -> None:
    cursor = Cursor(data)
    api = _APIS[cursor.number() % len(_APIS)]
    version = api.version_min + cursor.number() % (api.version_max - api.version_min + 1)
    response = bool(cursor.number() & 1)
    body = cursor.rest()
    try:
        message = _decode(response, api.key, version, body)
    except MalformedFrame:
        return
    again = _joined(_encode(response, api.key, version, message))
    assert _decode(response, api.key, version, again) == message, (api.name, version, response)


def _decode(response: bool, key: int, version: int, body: bytes) -> Message:
    return (codec.decode_response if response else codec.decode_request)(key, version, memoryview(body))


def _encode(response: bool, key: int, version: int, message: Message) -> list[Part]:
    return (codec.encode_response if response else codec.encode_request)(key, version, message)


def _joined(parts: list[Part]) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
