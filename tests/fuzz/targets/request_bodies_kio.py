"""Our encoder beside kio's: what we decoded and wrote, kio reads to its end and writes as the same bytes.

What is not Kafka's (`broker.wire.schema.OUR_TAGS`) is taken out first. kio turns times and error codes into types that
hold less than the wire does; where it refuses a value for that, nothing is compared. Input as of `request_bodies`,
whose every seed is also one here.
"""

from __future__ import annotations

import io
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from broker.wire.errors import MalformedFrame
from broker.wire.table import MESSAGES
from tests.fuzz.inputs import Cursor
from tests.fuzz.targets.request_bodies import _APIS, _decode, _encode, _joined, seeds
from tests.support.kafka.kafkas_fields import clear_ours

__all__ = ["run", "seeds"]

_NARROWER = (SerialError, ValueError, OverflowError, TypeError)


@cache
def _kio(key: int, version: int, response: bool) -> tuple[Any, Any]:
    kind = (load_response_schema if response else load_request_schema)(key, version)
    return entity_reader(kind), entity_writer(kind)


def run(data: bytes) -> None:
    cursor = Cursor(data)
    api = _APIS[cursor.number() % len(_APIS)]
    version = api.version_min + cursor.number() % (api.version_max - api.version_min + 1)
    response = bool(cursor.number() & 1)
    try:
        message = _decode(response, api.key, version, cursor.rest())
    except MalformedFrame:
        return
    clear_ours(message, MESSAGES[api.name + ("Response" if response else "Request")].fields)
    ours = _joined(_encode(response, api.key, version, message))
    read, write = _kio(int(api.key), version, response)
    back = io.BytesIO()
    try:
        theirs, size = read(ours, 0)
        write(back, theirs)
    except _NARROWER:
        return
    assert size == len(ours), (api.name, version, response, size, len(ours))
    assert back.getvalue() == ours, (api.name, version, response)
