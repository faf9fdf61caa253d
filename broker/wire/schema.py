"""The notation of the message table, and its parser. The parser checks what the generators rely on.

A message begins with `request NAME`, `response NAME` (versions and flexibility come from `apis`) or
`record NAME LOW-HIGH [flexible:N]`. Every field is a line below it, indented by two spaces more than its parent:

    name type [VERSIONS] [null | null:VERSIONS] [=DEFAULT] [tag:N]

- VERSIONS: `3+`, `0-8` or `7`; by default all versions of the message.
- type: bool, int8, int16, uint16, int32, int64, float64, uuid, string, bytes, records; `[type]` for an array; a
  capitalised name is a structure whose fields follow, deeper, and whose class is called message name + structure name.
- null: null is allowed on the wire (in those versions). With `=null` it is also the default. A structure outside arrays
  and tags is always nullable (`Cursor null`): a byte says whether the structure follows.
- tag:N: an optional field of the tagged section (KIP-482). A tagged structure is None when it is absent. Tags from
  `OUR_TAGS` on are Thermocline's own (docs/formats/broker-requests.md).
Defaults are 0, "", [], false and the zero UUID.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

import msgspec

from broker.wire.apis import APIS

VERSION_LAST: Final = (1 << 15) - 1
OUR_TAGS: Final = 10_000
"""Kafka counts tags from 0 in each structure and has reached 3: there is no conflict."""


class Kind(Enum):
    REQUEST = "request"
    RESPONSE = "response"
    RECORD = "record"


class Versions(msgspec.Struct, frozen=True):
    """An inclusive range of versions; empty when `low` is above `high`."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __str__(self) -> str:
        if self.high == VERSION_LAST:
            return f"{self.low}+"
        return f"{self.low}-{self.high}" if self.low != self.high else str(self.low)


NEVER: Final = Versions(1, 0)
ALWAYS: Final = Versions(0, VERSION_LAST)


class Field(msgspec.Struct, frozen=True):
    """One field of a message or structure. `type` is the name of a primitive, or "" for a structure of `fields`."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    default: float | str | bool | None
    tag: int | None = None
    class_name: str = ""
    fields: tuple[Field, ...] = ()

    @property
    def is_optional(self) -> bool:
        """Whether this is a nullable structure outside arrays and tags. A byte before it says whether it follows."""
        return bool(self.fields) and not self.is_array and self.tag is None


class Schema(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    versions: Versions
    flexible_from: int
    fields: tuple[Field, ...]


_FIELD_LINE: Final = re.compile(
    r"(?P<indent> *)(?P<name>\w+) +(?P<array>\[?)(?P<type>\w+)\]?"
    r"(?: +(?P<versions>\d[\d+-]*))?(?P<null> +null(?::(?P<null_versions>\S+))?)?"
    r"(?: +=(?P<default>\S+))?(?: +tag:(?P<tag>\d+))?"
)
_INTEGERS: Final = frozenset({"int8", "int16", "uint16", "int32", "int64"})
PRIMITIVES: Final = _INTEGERS | {"bool", "float64", "uuid", "string", "bytes", "records"}


def _versions(text: str | None) -> Versions:
    if text is None:
        return ALWAYS
    low, separator, high = text.partition("-")
    if separator:
        return Versions(int(low), int(high))
    return Versions(int(low[:-1]), VERSION_LAST) if low.endswith("+") else Versions(int(low), int(low))


def _default(type_name: str, is_array: bool, text: str | None) -> float | str | bool | None:
    if text == "null":
        return None
    if is_array:
        return None if text else 0  # 0 stands for the empty array
    if type_name == "bool":
        return text == "true"
    if type_name in _INTEGERS:
        return int(text or 0)
    if type_name == "float64":
        return float(text or 0)
    return None if type_name == "records" else ""


def _field(match: re.Match[str], prefix: str, fields: tuple[Field, ...]) -> Field:
    group = match.group
    type_name, is_array, tag = group("type"), bool(group("array")), group("tag")
    is_structure = type_name not in PRIMITIVES
    if is_structure != bool(fields) or (is_structure and not type_name[0].isupper()):
        raise ValueError(f"{prefix}: {group('name')} has the unknown type {type_name}, or a primitive type and fields")
    if is_structure and not is_array and tag is None and not group("null"):
        raise ValueError(f"{prefix}: {group('name')}: outside arrays only tagged or nullable structures are known")
    return Field(
        name=group("name"),
        type="" if is_structure else type_name,
        is_array=is_array,
        versions=_versions(group("versions")),
        nullable=_versions(group("null_versions")) if group("null") else NEVER,
        default=None if is_structure and not is_array else _default(type_name, is_array, group("default")),
        tag=None if tag is None else int(tag),
        class_name=prefix + type_name if is_structure else "",
        fields=fields,
    )


def _fields(lines: list[str], depth: int, prefix: str) -> tuple[Field, ...]:
    """Parse the fields at `depth`, and remove their lines from the front of `lines`."""
    found = []
    while lines:
        match = _FIELD_LINE.fullmatch(lines[0])
        if match is None:
            raise ValueError(f"{prefix}: not a field: {lines[0]!r}")
        if len(match["indent"]) < depth:
            break
        if len(match["indent"]) > depth:
            raise ValueError(f"{prefix}: too deep: {lines[0]!r}")
        lines.pop(0)
        found.append(_field(match, prefix, _fields(lines, depth + 2, prefix)))
    return tuple(found)


def _schema(heading: str, lines: list[str]) -> Schema:
    words = heading.split()
    kind = Kind(words[0])
    if kind is Kind.RECORD:
        flexible = [int(word.removeprefix("flexible:")) for word in words[3:]]
        name, versions, flexible_from = words[1], _versions(words[2]), flexible[0] if flexible else VERSION_LAST
    else:
        api = next(api for api in APIS.values() if api.name == words[1])
        name, versions = words[1] + kind.value.capitalize(), Versions(api.advertised_min, api.version_max)
        flexible_from = api.flexible_from
    return Schema(name, kind, versions, flexible_from, _fields(lines, 2, name))


def parse(text: str) -> Iterator[Schema]:
    """The schemas of one table text. Raises ValueError for a bug in the table."""
    heading, lines = "", list[str]()
    for line in text.splitlines():
        if not line.strip():
            continue
        if line[0] != " ":
            if heading:
                yield _schema(heading, lines)
            heading, lines = line, []
        else:
            lines.append(line)
    if heading:
        yield _schema(heading, lines)


def parse_all(texts: Iterable[str]) -> dict[str, Schema]:
    """All schemas by name, in the order of the table."""
    return {schema.name: schema for text in texts for schema in parse(text)}
