"""Writes `broker/wire/generated/messages.py`: `python -m broker.wire.generate`. A test compares the file with its
output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.wire.schema import ALWAYS, Field, Kind, Schema, Versions
from broker.wire.table import MESSAGES

TARGET: Final = __file__.removesuffix("generate.py") + "generated/messages.py"
_HEADER: Final = '''"""Message classes, made from `broker.wire.table` by `python -m broker.wire.generate`: do not edit.

A comment behind a field names the versions that carry it; a field without one is in all of them.
"""
# ruff: noqa: RUF012  # msgspec copies an empty list default for every instance

from __future__ import annotations

from uuid import UUID

from broker.wire.message import Message
from broker.wire.primitives import ZERO_UUID
from broker.wire.scatter import RecordsField
'''
_TYPES: Final = {"bool": "bool", "float64": "float", "uuid": "UUID", "string": "str", "bytes": "bytes"}
_EMPTY: Final = {"string": '""', "bytes": 'b""', "uuid": "ZERO_UUID"}


def _annotation(field: Field, schema: Schema) -> str:
    if field.type == "records":
        # A broker receives requests and sends responses. Clients wrap produced records in a memoryview.
        return "memoryview | None" if schema.kind is Kind.REQUEST else "RecordsField"
    name = field.class_name or _TYPES.get(field.type, "int")
    if field.is_array:
        name = f"list[{name}]"
    nullable = field.default is None or field.nullable.low <= min(field.nullable.high, schema.versions.high)
    return f"{name} | None" if nullable else name


def _default(field: Field) -> str:
    if field.default is None:
        return "None"
    if field.is_array:
        return "[]"
    return _EMPTY.get(field.type) or repr(field.default)


def _comment(versions: Versions) -> str:
    return "" if versions == ALWAYS else f"  # {versions}"


def _classes(name: str, doc: str, fields: tuple[Field, ...], schema: Schema) -> Iterator[str]:
    for field in fields:
        if field.fields:
            inner = f"`{field.name}` of {name}" if field.is_array else f"Tagged `{field.name}` of {name}"
            yield from _classes(field.class_name, f"{inner}.", field.fields, schema)
    lines = [f"class {name}(Message):", f'    """{doc}"""', ""]
    for field in fields:
        lines.append(f"    {field.name}: {_annotation(field, schema)} = {_default(field)}{_comment(field.versions)}")
    yield "\n".join(lines) + "\n"


def render() -> str:
    parts = [_HEADER]
    for schema in MESSAGES.values():
        flexible = f", flexible from {schema.flexible_from}" if schema.flexible_from <= schema.versions.high else ""
        doc = f"Versions {schema.versions}{flexible}."
        parts += _classes(schema.name, doc, schema.fields, schema)
    return "\n\n".join(parts)


def main() -> None:
    """Replace the checked-in file."""
    with open(TARGET, "w", encoding="utf-8") as file:
        file.write(render())


if __name__ == "__main__":
    main()
