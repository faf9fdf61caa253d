"""Messages without the fields that are not Kafka's: what another codec can be compared with."""

from __future__ import annotations

from msgspec.structs import replace

from broker.wire.message import Message
from broker.wire.schema import OUR_TAGS, Field, Schema


def kafkas(schema: Schema) -> Schema:
    """The schema, as far as it is Kafka's."""
    return replace(schema, fields=_kafkas(schema.fields))


def _kafkas(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    return tuple(replace(field, fields=_kafkas(field.fields)) for field in fields if (field.tag or 0) < OUR_TAGS)


def clear_ours(message: Message, fields: tuple[Field, ...]) -> None:
    """Take out of `message` what Kafka has not; `fields` are its schema's."""
    plain = type(message)()
    for field in fields:
        value = getattr(message, field.name)
        if (field.tag or 0) >= OUR_TAGS:
            setattr(message, field.name, getattr(plain, field.name))
        elif field.fields and value is not None:
            for each in value if field.is_array else (value,):
                clear_ours(each, field.fields)
