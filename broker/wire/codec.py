"""Decodes and encodes messages by compiled functions, one for each message and version, built at first use (1-3 ms).

Decoding raises only `MalformedFrame`, or `InvalidRequest` for an API or version outside the table. Encoding never
copies records.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import cache
from typing import Final

from msgspec.structs import replace

from broker.wire.apis import api_of
from broker.wire.decoder import Decoder, build_decoder
from broker.wire.encoder import Encoder, SteppedEncoder, build_encoder, build_stepped_encoder
from broker.wire.errors import MalformedFrame
from broker.wire.message import Message
from broker.wire.scatter import Part
from broker.wire.schema import Kind, Schema
from broker.wire.table import MESSAGES
from logformat.errors import InvalidRequest

_RECORD_VERSION: Final = struct.Struct(">h")


# The caches need no bound, because the table bounds their keys.
@cache
def _request_decoder(api_key: int, version: int) -> Decoder:
    return build_decoder(_api_schema(api_key, version, Kind.REQUEST), version)


@cache
def _request_encoder(api_key: int, version: int) -> Encoder:
    return build_encoder(_api_schema(api_key, version, Kind.REQUEST), version)


@cache
def _response_decoder(api_key: int, version: int) -> Decoder:
    return build_decoder(_api_schema(api_key, version, Kind.RESPONSE), version)


@cache
def _response_encoder(api_key: int, version: int) -> Encoder:
    return build_encoder(_api_schema(api_key, version, Kind.RESPONSE), version)


@cache
def _response_stepper(api_key: int, version: int) -> SteppedEncoder:
    return build_stepped_encoder(_api_schema(api_key, version, Kind.RESPONSE), version)


@cache
def _record_decoder(name: str, version: int) -> Decoder:
    return build_decoder(_schema(name, version), version)


@cache
def _record_encoder(name: str, version: int) -> Encoder:
    return build_encoder(_schema(name, version), version)


@cache
def _element_encoder(api_key: int, version: int, arrays: tuple[str, ...]) -> Encoder:
    schema = _api_schema(api_key, version, Kind.RESPONSE)
    for name in arrays:
        (field,) = (field for field in schema.fields if field.name == name)
        schema = replace(schema, name=field.class_name, fields=field.fields)
    return build_encoder(schema, version)


def decode_request(api_key: int, version: int, body: memoryview) -> Message:
    """The request in `body` (all of it, without header). Its records are views of `body`.

    Raises `MalformedFrame`, or `InvalidRequest` when the table lacks this API or version.
    """
    return _request_decoder(api_key, version)(body)


def encode_response(api_key: int, version: int, message: Message) -> list[Part]:
    """The parts of a response body, in order. Buffers and file ranges of its records are parts, and are not copied."""
    return _response_encoder(api_key, version)(message)


def encode_response_in_steps(api_key: int, version: int, message: Message) -> Generator[None, None, list[Part]]:
    """Encode like `encode_response`, with a pause every `encoder.STEP_ELEMENTS` elements, so that a long response does
    not hold the event loop."""
    return _response_stepper(api_key, version)(message)


def encode_response_element(api_key: int, version: int, message: Message, *arrays: str) -> bytes:
    """One element of an array in a response, for `EncodedElements`. `arrays` is the path of the field, outermost array
    first."""
    (body,) = _element_encoder(api_key, version, arrays)(message)
    assert isinstance(body, bytes)  # an element has no `records` field
    return body


def encode_request(api_key: int, version: int, message: Message) -> list[Part]:
    """The parts of a request body, for clients."""
    return _request_encoder(api_key, version)(message)


def decode_response(api_key: int, version: int, body: memoryview) -> Message:
    """The response in `body`, for clients. Raises the errors of `decode_request`."""
    return _response_decoder(api_key, version)(body)


def encode_record(name: str, version: int, message: Message) -> bytes:
    """A key or value of an internal topic's record: the int16 version, then the fields. `name` is the message's name in
    the table."""
    (body,) = _record_encoder(name, version)(message)
    assert isinstance(body, bytes)  # a key or value has no `records` field
    return _RECORD_VERSION.pack(version) + body


def record_version(data: bytes | memoryview) -> int:
    """The int16 before a record's key or value. Raises `MalformedFrame` if it is missing."""
    try:
        (version,) = _RECORD_VERSION.unpack_from(data)
    except struct.error:
        raise MalformedFrame(f"a record of {len(data)} bytes has no version") from None
    return int(version)


def decode_record(name: str, data: bytes | memoryview) -> Message:
    """The key or value in `data`, written by `encode_record` or Kafka, in the version that `data` names. Raises the
    errors of `decode_request`.
    """
    version = record_version(data)
    return _record_decoder(name, version)(memoryview(data)[_RECORD_VERSION.size :])


def _api_schema(api_key: int, version: int, kind: Kind) -> Schema:
    api = api_of(api_key)
    if api is None:
        raise InvalidRequest(f"api key {api_key} is not in the table of broker.wire.apis")
    return _schema(api.name + kind.value.capitalize(), version)


def _schema(name: str, version: int) -> Schema:
    schema = MESSAGES[name]
    if version not in schema.versions:
        raise InvalidRequest(f"{name} version {version} is unknown; known are {schema.versions}")
    return schema
