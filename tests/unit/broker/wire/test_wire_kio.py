"""The codec against `kio`, an independent implementation of Kafka's message definitions.

Every (message, version) both know is compared byte for byte in both directions, and field by field: names, types and
order of the table are checked against kio's classes, so that a wrong table cannot agree with itself.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import re
import types
import typing
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from broker.error_codes import ErrorCode
from broker.wire import codec
from broker.wire.apis import APIS, Api
from broker.wire.message import Message
from broker.wire.schema import Field, Kind
from broker.wire.table import MESSAGES
from tests.support.kafka.kafkas_fields import kafkas
from tests.support.wire.random_messages import random_message

MESSAGES_PER_VERSION = 12
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MS = datetime.timedelta(milliseconds=1)

PAIRS = [
    pytest.param(api, kind, version, id=f"{api.name}{kind.value.capitalize()}-v{version}")
    for api in APIS.values()
    for kind in (Kind.REQUEST, Kind.RESPONSE)
    for version in range(api.version_min, api.version_max + 1)
]


def schema_name(api: Api, kind: Kind) -> str:
    return api.name + kind.value.capitalize()


def kio_class(api: Api, kind: Kind, version: int) -> type:
    load = load_request_schema if kind is Kind.REQUEST else load_response_schema
    return load(int(api.key), version)


def inner_class(annotation: object) -> type | None:
    """The dataclass within `T`, `T | None` or `tuple[T, ...]`, if there is one."""
    if dataclasses.is_dataclass(annotation):
        return typing.cast(type, annotation)
    for part in typing.get_args(annotation):
        found = None if part in (types.EllipsisType, type(None), ...) else inner_class(part)
        if found is not None:
            return found
    return None


def matched(fields: tuple[Field, ...], version: int, kio: type) -> list[tuple[Field, dataclasses.Field]]:
    """Our fields of `version` beside kio's, both in the order of the definition."""
    ours = [field for field in fields if version in field.versions]
    theirs = dataclasses.fields(kio)
    assert len(ours) == len(theirs), (kio, [f.name for f in ours], [f.name for f in theirs])
    return list(zip(ours, theirs, strict=True))


def plain(name: str) -> str:
    """A field name without the units that kio turns into types."""
    return re.sub(r"_(ms|timestamp)$", "", name.rstrip("_"))


def compare_fields(fields: tuple[Field, ...], version: int, kio: type) -> None:
    kio_types = {
        "timedelta_i32": "int32",
        "timedelta_i64": "int64",
        "datetime_i64": "int64",
        "error_code": "int16",
    }
    for ours, theirs in matched(fields, version, kio):
        assert plain(ours.name) == plain(theirs.name), kio
        assert ours.tag == theirs.metadata.get("tag"), (kio, ours.name)
        inner = inner_class(theirs.type)
        assert bool(ours.fields) == (inner is not None), (kio, ours.name)
        assert ours.is_array == ("tuple" in str(theirs.type)), (kio, ours.name)
        if inner is not None:
            compare_fields(ours.fields, version, inner)
            continue
        kio_type = theirs.metadata["kafka_type"]
        assert ours.type == kio_types.get(kio_type, kio_type), (kio, ours.name)
        if ours.type in ("string", "bytes", "records") or ours.is_array:
            nullable = version in ours.nullable
            assert nullable == (type(None) in typing.get_args(theirs.type)), (kio, ours.name)
        if theirs.default is not dataclasses.MISSING and ours.tag is None and not ours.is_array:
            assert to_kio_value(ours, theirs, ours.default, version) == theirs.default, (kio, ours.name)


def to_kio(message: Message, fields: tuple[Field, ...], version: int, kio: type) -> object:
    values = {
        theirs.name: to_kio_value(ours, theirs, getattr(message, ours.name), version)
        for ours, theirs in matched(fields, version, kio)
    }
    return kio(**values)


def to_kio_value(ours: Field, theirs: dataclasses.Field, value: Any, version: int) -> object:
    inner = inner_class(theirs.type)
    if inner is not None:
        if ours.is_array:
            return None if value is None else tuple(to_kio(each, ours.fields, version, inner) for each in value)
        if value is None:
            return theirs.default if ours.tag is not None else None
        return to_kio(value, ours.fields, version, inner)
    if value is None:
        return None
    if ours.is_array:
        return tuple(each if ours.type != "uuid" or each.int else None for each in value)
    match theirs.metadata["kafka_type"]:
        case "timedelta_i32" | "timedelta_i64":
            return value * MS
        case "datetime_i64":
            return None if value == -1 else EPOCH + value * MS
        case "error_code":
            return KioErrorCode(value)
        case "uuid":
            return value if value.int else None
        case "records":
            return bytes(value)
    return value


def tame(message: Message, fields: tuple[Field, ...], version: int, kio: type) -> Message:
    """`message` with the integers that kio keeps as durations and dates brought into the range those types have."""
    for ours, theirs in matched(fields, version, kio):
        value, inner = getattr(message, ours.name), inner_class(theirs.type)
        if inner is not None:
            for each in (value or ()) if ours.is_array else (value,):
                if each is not None:
                    tame(each, ours.fields, version, inner)
        elif not ours.is_array and theirs.metadata["kafka_type"] == "datetime_i64":
            optional = type(None) in typing.get_args(theirs.type)
            setattr(message, ours.name, -1 if optional and value < 0 else abs(value) % 4_000_000_000_000)
        elif not ours.is_array and theirs.metadata["kafka_type"] == "timedelta_i64":
            setattr(message, ours.name, value % 1_000_000_000_000)
    return message


@pytest.mark.parametrize(("api", "kind", "version"), PAIRS)
def test_the_table_says_what_kio_says(api: Api, kind: Kind, version: int) -> None:
    """Names, order, types, nullability, tags and defaults of every field are those of Kafka's definitions in kio."""
    kio = kio_class(api, kind, version)
    assert vars(kio)["__flexible__"] == (version >= api.flexible_from)
    compare_fields(kafkas(MESSAGES[schema_name(api, kind)]).fields, version, kio)


@pytest.mark.parametrize(("api", "kind", "version"), PAIRS)
def test_bytes_equal_kios(api: Api, kind: Kind, version: int) -> None:
    """What we encode is what kio encodes, byte for byte; and each decodes the other's bytes to the same values."""
    schema, kio = kafkas(MESSAGES[schema_name(api, kind)]), kio_class(api, kind, version)
    encode = codec.encode_request if kind is Kind.REQUEST else codec.encode_response
    decode = codec.decode_request if kind is Kind.REQUEST else codec.decode_response
    write, read = entity_writer(kio), entity_reader(kio)
    rng = random.Random(f"{schema.name} {version}")
    for _ in range(MESSAGES_PER_VERSION):
        message = tame(random_message(rng, schema, version), schema.fields, version, kio)
        theirs = to_kio(message, schema.fields, version, kio)
        buffer = io.BytesIO()
        write(buffer, theirs)
        ours = b"".join(encode(api.key, version, message))
        assert ours == buffer.getvalue()
        assert decode(api.key, version, memoryview(ours)) == message
        value, size = read(ours, 0)
        assert (value, size) == (theirs, len(ours))


def test_error_codes_are_kafkas() -> None:
    """Every code has Kafka's name, number and retriable flag, and none is missing."""
    assert {(e.name, int(e), e.retriable) for e in ErrorCode} == {
        (e.name.upper(), e.value, e.retriable) for e in KioErrorCode
    }
