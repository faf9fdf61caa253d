"""Requests of at most 1 MiB that ask for as much as they can, of every API, made from the wire table.

A `Recipe` is a few numbers: which array is filled, with how many elements, which names they carry. Always true: an API
that enters the table is covered without a word here; fields are told apart by their names only where a known topic,
partition or group makes a difference. Must not know what a handler does with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from broker.wire.apis import APIS, Api
from broker.wire.codec import encode_request
from broker.wire.emit import present
from broker.wire.framing import FRAME_PREFIX_SIZE, request_frame
from broker.wire.generated import messages as classes
from broker.wire.message import Message
from broker.wire.primitives import REQUEST_UNITS_MAX, STRING_UNITS, STRUCTURE_UNITS, ZERO_UUID
from broker.wire.schema import Field, Schema
from broker.wire.table import MESSAGES
from logformat.record_batch import Codec, stamp_max_timestamp
from logformat.records import Record, encode_batch
from tests.sim.world.clock import EPOCH_MS

FRAME_BYTES_MAX: Final = 1 << 20
_HEADER_ROOM: Final = 64
WIDE: Final = "wide"
WIDE_PARTITIONS: Final = 400
TOPICS: Final = (WIDE, *(f"t{at}" for at in range(20)))
GROUP: Final = "g"
GROUPS: Final = (GROUP, *(f"g{at}" for at in range(10)))


class Names(IntEnum):
    """What the elements name."""

    SAME = 0  # one topic, partition, group that exists, again and again
    EACH = 1  # all that exist, in turn
    UNKNOWN = 2  # nothing that exists, never the same
    EMPTY = 3  # "" and 0, as short as can be
    BY_TIME = 4  # as EACH, and timestamps are times, not sentinels
    RECORDS = 5  # as SAME, and records are batches that are dear to check
    LONG = 6  # as UNKNOWN, as long as strings may be: what an answer repeats for each element grows most
    ODD = 7  # as UNKNOWN, as long as a topic's name may be, of characters that are longest when they are escaped


class Inner(IntEnum):
    """What an element's own arrays hold."""

    NOTHING = 0
    ONE = 1
    NULL = 2  # where null is allowed ("everything", mostly); else one


class Recipe(NamedTuple):
    """`path` counts the arrays of the request in table order; `share` of 255 is filled of what fits."""

    api_key: int
    version: int
    path: int
    names: Names
    inner: Inner
    share: int = 255

    def __str__(self) -> str:
        schema = _schema(APIS_BY_KEY[self.api_key])
        found = paths(schema, self.version)
        place = ".".join(field.name for field in found[self.path % len(found)]) if found else "-"
        return f"{schema.name} v{self.version} {place} {self.names.name} {self.inner.name} {self.share}"


APIS_BY_KEY: Final[dict[int, Api]] = {int(key): api for key, api in APIS.items()}


def _schema(api: Api) -> Schema:
    return MESSAGES[api.name + "Request"]


def paths(schema: Schema, version: int) -> list[tuple[Field, ...]]:
    """Every array of the request, as the way to it."""

    def below(fields: tuple[Field, ...], way: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
        for field in present(fields, version):
            if field.is_array:
                yield (*way, field)
                yield from below(field.fields, (*way, field))

    return list(below(schema.fields, ()))


def versions(api: Api) -> list[int]:
    """Those whose encoding or meaning differs: the ends, and where tagged fields begin."""
    return sorted({api.version_min, api.version_max, max(api.version_min, min(api.flexible_from, api.version_max))})


def recipes(api: Api) -> Iterator[Recipe]:
    """All there are of an API."""
    schema = _schema(api)
    has_time = any(field.name == "timestamp" for field in _all(schema.fields))
    has_records = any(field.type == "records" for field in _all(schema.fields))
    for version in versions(api):
        for path in range(max(1, len(paths(schema, version)))):
            for names, inner in itertools.product(Names, Inner):
                if (names is Names.BY_TIME and not has_time) or (names is Names.RECORDS and not has_records):
                    continue
                yield Recipe(int(api.key), version, path, names, inner)


def _all(fields: tuple[Field, ...]) -> Iterator[Field]:
    for field in fields:
        yield field
        yield from _all(field.fields)


class FrameMaker:
    """Frames over a broker that knows `topic_id` as the id of WIDE."""

    def __init__(self, topic_id: UUID) -> None:
        self._topic_id = topic_id
        self._batches: list[bytes] = []

    def frame(self, recipe: Recipe) -> memoryview:
        """The request as a connection hands it over: writable, without its length prefix."""
        api = APIS_BY_KEY[recipe.api_key]
        body = self._body(api, recipe, 0)
        one = len(self._body(api, recipe, 1)) - len(body)
        if one > 0:
            count = (FRAME_BYTES_MAX - _HEADER_ROOM - len(body)) // one
            count = min(count, self._units(api, recipe)) * recipe.share // 255
            body = self._body(api, recipe, max(count, 1))
            while len(body) > FRAME_BYTES_MAX - _HEADER_ROOM:  # elements are not all of the first one's size
                count = count * 9 // 10
                body = self._body(api, recipe, count)
        parts = request_frame(recipe.api_key, recipe.version, 7, "hostile", [body])
        return memoryview(bytearray(b"".join(bytes(part) for part in parts)[FRAME_PREFIX_SIZE:]))  # type: ignore[arg-type]

    def _body(self, api: Api, recipe: Recipe, count: int) -> bytes:
        schema = _schema(api)
        found = paths(schema, recipe.version)
        way = found[recipe.path % len(found)] if found else ()
        filling = _Filling(recipe, self._topic_id, self._dear_batches(recipe))
        message = filling.structure(schema.name, schema.fields, way, count)
        return b"".join(bytes(part) for part in encode_request(recipe.api_key, recipe.version, message))  # type: ignore[arg-type]

    def _units(self, api: Api, recipe: Recipe) -> int:
        """How many elements the codec takes."""
        found = paths(_schema(api), recipe.version)
        if not found:
            return 0
        way = found[recipe.path % len(found)]
        cost = _cost(way[-1], recipe)
        return (REQUEST_UNITS_MAX - STRUCTURE_UNITS * (len(way) - 1) - 100) // cost

    def _dear_batches(self, recipe: Recipe) -> list[bytes]:
        if recipe.names is Names.RECORDS and not self._batches:
            self._batches = list(dear_batches())
        return self._batches


def _cost(field: Field, recipe: Recipe) -> int:
    """Units of one element and what it holds."""
    if not field.fields:
        return STRING_UNITS if field.type in ("string", "bytes", "uuid") else 1
    cost = STRUCTURE_UNITS
    if recipe.inner is not Inner.NOTHING:
        for inner in present(field.fields, recipe.version):
            if inner.is_array and not (recipe.inner is Inner.NULL and recipe.version in inner.nullable):
                cost += _cost(inner, recipe)
    return cost


def dear_batches() -> Iterator[bytes]:
    """Batches of up to 1 MiB that pass every check of a header and are dear to look into: bombs in every codec, and the
    most records there can be, as KafkaJS writes them (no producer id, sequence 0) or without a maximum timestamp."""
    bomb = [Record(0, EPOCH_MS, None, bytes(60 << 20)), Record(1, EPOCH_MS, None, None)]
    small = [Record(at, EPOCH_MS, None, None) for at in range(100_000)]
    for records in (bomb, small):
        for codec in Codec:
            batch = encode_batch(records, codec=codec, base_sequence=0)
            if len(batch) > FRAME_BYTES_MAX - 512:
                continue
            yield batch
            unset = bytearray(batch)
            stamp_max_timestamp(unset, 0, -1)
            yield bytes(unset)


class _Filling:
    """Fills one message."""

    def __init__(self, recipe: Recipe, topic_id: UUID, batches: list[bytes]) -> None:
        self._recipe = recipe
        self._topic_id = topic_id
        self._batches = batches
        self._ordinal = 0

    def structure(self, name: str, fields: tuple[Field, ...], way: tuple[Field, ...], count: int) -> Message:
        """A structure on the way to the array that gets `count` elements, or beside it."""
        values = {}
        for field in present(fields, self._recipe.version):
            if way and field is way[0]:
                inside = len(way) == 1
                values[field.name] = [
                    self._element(field, () if inside else way[1:], 0 if inside else count)
                    for _ in range(count if inside else 1)
                ]
            else:
                values[field.name] = self._beside(field)
        message: Message = getattr(classes, name)(**values)
        return message

    def _beside(self, field: Field) -> object:
        if field.fields and not field.is_array:
            return None  # a tagged structure
        if not field.is_array:
            return self._single(field)
        inner = self._recipe.inner
        if inner is Inner.NULL and self._recipe.version in field.nullable:
            return None
        return [] if inner is Inner.NOTHING else [self._element(field, (), 0)]

    def _element(self, field: Field, way: tuple[Field, ...], count: int) -> object:
        self._ordinal += 1
        return self.structure(field.class_name, field.fields, way, count) if field.fields else self._single(field)

    def _single(self, field: Field) -> object:
        names, at = self._recipe.names, self._ordinal
        exists = names not in (Names.UNKNOWN, Names.EMPTY, Names.LONG, Names.ODD)
        match field.type:
            case "string":
                return self._string(field)
            case "uuid":
                return self._topic_id if exists else ZERO_UUID if names is Names.EMPTY else UUID(int=at)
            case "bytes":
                return b""
            case "records":
                if names is Names.RECORDS:
                    return memoryview(self._batches[self._recipe.share % len(self._batches)])
                return None
            case "bool":
                return field.name == "validate_only" or (exists and field.name.startswith("include_"))
        if field.name in ("partition", "partition_index", "partition_indexes", "partitions", "index"):
            return at % WIDE_PARTITIONS if names in (Names.EACH, Names.BY_TIME) else at if not exists else 0
        if field.name == "timestamp":
            return 0 if names is Names.BY_TIME else -1
        return _NUMBERS.get(field.name, 0)

    def _string(self, field: Field) -> str | None:
        names, at = self._recipe.names, self._ordinal
        if names is Names.EMPTY:
            return ""
        if field.name in ("transactional_id", "group_instance_id") and self._recipe.version in field.nullable:
            return None
        if names in (Names.UNKNOWN, Names.LONG, Names.ODD):
            return f"{at:x}" + _ENDINGS.get(names, "")
        if field.name in ("group_id", "key", "coordinator_keys", "groups", "groups_names"):
            return GROUPS[at % len(GROUPS)] if names is Names.EACH else GROUP
        if field.name in ("name", "topic", "topic_name", "resource_name", "topic_names"):
            return TOPICS[at % len(TOPICS)] if names is Names.EACH else WIDE
        return ""


_ENDINGS: Final = {Names.LONG: "n" * 32_000, Names.ODD: "\U000e0001" * 240}
_NUMBERS: Final = {
    "acks": -1,
    "count": WIDE_PARTITIONS + 1,
    "current_leader_epoch": -1,
    "endpoint_type": 1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "last_fetched_epoch": -1,
    "leader_epoch": 0,
    "max_bytes": 1 << 30,
    "max_wait_ms": 100,
    "min_bytes": 1,
    "num_partitions": 1,
    "partition_max_bytes": 1 << 20,
    "producer_epoch": -1,
    "producer_id": -1,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_type": 2,
    "response_partition_limit": 2_000,
    "retention_time_ms": -1,
    "session_epoch": -1,
    "timeout_ms": 1_000,
}
