"""Messages to bytes and back: the codec's doors.

Owns the compiled functions, one per (message, version), made from the table on first use (1-3 ms) and kept. Always
true: decoding raises nothing but `MalformedFrame` (or `InvalidRequest` for a version outside the table); encoding
never copies records. Must not know frames' headers (`framing`) nor what messages mean.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import replace
from typing import Final

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

_Key = tuple[int, int]
_request_decoders: dict[_Key, Decoder] = {}
_request_encoders: dict[_Key, Encoder] = {}
_response_steppers: dict[_Key, SteppedEncoder] = {}
_response_decoders: dict[_Key, Decoder] = {}
_response_encoders: dict[_Key, Encoder] = {}
_element_encoders: dict[tuple[int, int, tuple[str, ...]], Encoder] = {}
_record_decoders: dict[tuple[str, int], Decoder] = {}
_record_encoders: dict[tuple[str, int], Encoder] = {}


def decode_request(api_key: int, version: int, body: memoryview) -> Message:
    """The request in `body` (all of it, without header). Its records are views of `body`.

    Raises `MalformedFrame`, or `InvalidRequest` when the table lacks this API or version.
    """
    decoder = _request_decoders.get((api_key, version))
    if decoder is None:
        decoder = build_decoder(_api_schema(api_key, version, Kind.REQUEST), version)
        _request_decoders[api_key, version] = decoder
    return decoder(body)


def encode_response(api_key: int, version: int, message: Message) -> list[Part]:
    """The parts of a response body, in order; buffers and file ranges of its records are among them uncopied."""
    encoder = _response_encoders.get((api_key, version))
    if encoder is None:
        encoder = build_encoder(_api_schema(api_key, version, Kind.RESPONSE), version)
        _response_encoders[api_key, version] = encoder
    return encoder(message)


def encode_response_in_steps(api_key: int, version: int, message: Message) -> Generator[None, None, list[Part]]:
    """As `encode_response`, pausing every `encoder.STEP_ELEMENTS` elements: a long answer must not hold a loop."""
    encoder = _response_steppers.get((api_key, version))
    if encoder is None:
        encoder = build_stepped_encoder(_api_schema(api_key, version, Kind.RESPONSE), version)
        _response_steppers[api_key, version] = encoder
    return encoder(message)


def encode_response_element(api_key: int, version: int, message: Message, *arrays: str) -> bytes:
    """One element of an array within a response: `arrays` names its field, from the outside in. For
    `EncodedElements`."""
    encoder = _element_encoders.get((api_key, version, arrays))
    if encoder is None:
        schema = _api_schema(api_key, version, Kind.RESPONSE)
        for name in arrays:
            (field,) = (field for field in schema.fields if field.name == name)
            schema = replace(schema, name=field.class_name, fields=field.fields)
        encoder = build_encoder(schema, version)
        _element_encoders[api_key, version, arrays] = encoder
    (body,) = encoder(message)
    assert isinstance(body, bytes)  # there are no records in it
    return body


def encode_request(api_key: int, version: int, message: Message) -> list[Part]:
    """The parts of a request body, for clients."""
    encoder = _request_encoders.get((api_key, version))
    if encoder is None:
        encoder = build_encoder(_api_schema(api_key, version, Kind.REQUEST), version)
        _request_encoders[api_key, version] = encoder
    return encoder(message)


def decode_response(api_key: int, version: int, body: memoryview) -> Message:
    """The response in `body`, for clients; errors as `decode_request`."""
    decoder = _response_decoders.get((api_key, version))
    if decoder is None:
        decoder = build_decoder(_api_schema(api_key, version, Kind.RESPONSE), version)
        _response_decoders[api_key, version] = decoder
    return decoder(body)


def encode_record(name: str, version: int, message: Message) -> bytes:
    """A key or value of `__consumer_offsets`: the int16 version, then the fields. `name` as in the table."""
    encoder = _record_encoders.get((name, version))
    if encoder is None:
        encoder = build_encoder(_schema(name, version), version)
        _record_encoders[name, version] = encoder
    (body,) = encoder(message)
    assert isinstance(body, bytes)  # records of records do not exist
    return _RECORD_VERSION.pack(version) + body


def record_version(data: bytes | memoryview) -> int:
    """The int16 in front of a record's key or value. Raises `MalformedFrame` when it is not there."""
    try:
        (version,) = _RECORD_VERSION.unpack_from(data)
    except struct.error:
        raise MalformedFrame(f"a record of {len(data)} bytes has no version") from None
    return int(version)


def decode_record(name: str, data: bytes | memoryview) -> Message:
    """What `encode_record` wrote, or Kafka: the version is read from `data`. Errors as `decode_request`."""
    version = record_version(data)
    decoder = _record_decoders.get((name, version))
    if decoder is None:
        decoder = build_decoder(_schema(name, version), version)
        _record_decoders[name, version] = decoder
    return decoder(memoryview(data)[_RECORD_VERSION.size :])


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
