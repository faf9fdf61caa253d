"""Generates the Python source that decodes one message in one version.

In the generated code:
* every length and count is compared with the remaining bytes before use;
* all arrays of a message together have at most `ARRAY_ELEMENTS_MAX` elements (a request `REQUEST_UNITS_MAX` units);
* unknown tagged fields count as structures;
* a string of a request has at most `STRING_BYTES_MAX` bytes, because handlers take time for each byte of a name;
* every byte of the body is consumed;
* `records` are views of the frame; all other fields are copied;

Hot path: a run of fixed-size fields is one `unpack_from`; structures are decoded in line, without a call per field or
element; objects are made with positional arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from uuid import UUID

from broker.wire.emit import FORMATS, INT_ARRAYS_MAX, SIZES, SourceCode, present, size_min, tagged
from broker.wire.errors import MalformedFrame
from broker.wire.generated import messages as classes
from broker.wire.message import Message
from broker.wire.primitives import (
    ARRAY_ELEMENTS_MAX,
    REQUEST_UNITS_MAX,
    STRING_BYTES_MAX,
    STRING_UNITS,
    STRUCTURE_UNITS,
    ZERO_UUID,
    bad_count,
    bad_length,
    read_tag,
    read_tag_count,
    read_uvarint,
    skip_counted_tags,
)
from broker.wire.schema import Field, Kind, Schema

Decoder = Callable[[memoryview], Message]

_RUNTIME = {
    "MalformedFrame": MalformedFrame,
    "struct_error": struct.error,
    "unpack_from": struct.unpack_from,
    "UUID": UUID,
    "ZERO_UUID": ZERO_UUID,
    "ZERO_BYTES": ZERO_UUID.bytes,
    "bad_count": bad_count,
    "bad_length": bad_length,
    "read_tag": read_tag,
    "read_tag_count": read_tag_count,
    "read_uvarint": read_uvarint,
    "skip_counted_tags": skip_counted_tags,
}


def has_records(fields: tuple[Field, ...]) -> bool:
    """Whether the fields, or structures in them, have a `records` field."""
    return any(field.type == "records" or has_records(field.fields) for field in fields)


def _empty(field: Field) -> str:
    """The source of a field's default, for versions without the field."""
    if field.default is None:
        return "None"
    if field.is_array:
        return "[]"
    return {"uuid": "ZERO_UUID", "bytes": 'b""'}.get(field.type) or repr(field.default)


# librdkafka 2.16 requests all topics (Metadata 12) by a null array that is not in compact form: three stray bytes
# follow the request. It also ends AlterUserScramCredentials 0 with two tag sections. As in Kafka these bytes are
# ignored. In all other requests bytes after the last field are an error.
TRAILING_BYTES_TAKEN: Final = frozenset({"MetadataRequest", "AlterUserScramCredentialsRequest"})


class _DecoderSource:
    """Emits one decode function. Its locals: `buf`, `pos`, `end`, and `budget` (units of array elements still
    allowed)."""

    def __init__(self, schema: Schema, version: int) -> None:
        self.schema = schema
        self.version = version
        self.flexible = version >= schema.flexible_from
        self.views = has_records(schema.fields)
        self.is_request = schema.kind is Kind.REQUEST
        self.source = SourceCode(f"decode {schema.name} v{version}")
        self.source.names.update(_RUNTIME)
        self._layout = ""  # the pending run of fixed-size fields, and its target names
        self._targets: list[str] = []
        self._uuids: list[str] = []

    def build(self) -> Decoder:
        line, block = self.source.line, self.source.block
        title = f"{self.schema.name} v{self.version}"
        with block("def decode(body)"):
            # Messages without records are read from bytes: indexing and slicing is faster than with a view. Those with
            # records are read from the view, so that records are not copied.
            line("buf = body" if self.views else "buf = bytes(body)")
            line("pos = 0")
            line("end = len(buf)")
            line(f"budget = {REQUEST_UNITS_MAX if self.is_request else ARRAY_ELEMENTS_MAX}")
            with block("try"):
                value = self._structure(self.schema.name, self.schema.fields, self.schema.name)
                self._flush()
                if self.schema.name not in TRAILING_BYTES_TAKEN:
                    with block("if pos != end"):
                        line(f'raise MalformedFrame(f"{title}: {{end - pos}} bytes after the last field")')
                line(f"return {value}")
            with block("except (struct_error, IndexError)"):
                line(f'raise MalformedFrame(f"{title}: its {{end}} bytes end before its last field") from None')
            with block("except UnicodeDecodeError"):
                line(f'raise MalformedFrame("{title}: a string is not UTF-8") from None')
        return self.source.function("decode")

    def _structure(self, class_name: str, fields: tuple[Field, ...], path: str) -> str:
        """Emit the reads of a structure's fields. Returns the expression that makes its object. The caller has to flush
        before using it."""
        values: dict[str, str] = {}
        for field in present(fields, self.version):
            values[field.name] = self._field(field, f"{path}.{field.name}")
        if self.flexible:
            self._tagged_section(tagged(fields, self.version), values, path)
        self.source.names[class_name] = getattr(classes, class_name)
        arguments = [values.get(field.name) or _empty(field) for field in fields]
        return f"{class_name}({', '.join(arguments)})"

    def _field(self, field: Field, path: str) -> str:
        """Emit the read of one field. Returns its local variable, which is set after the next flush."""
        if field.is_array:
            return self._array(field, path)
        return self._optional(field, path) if field.is_optional else self._value(field, path)

    def _optional(self, field: Field, path: str) -> str:
        """Emit the read of a structure behind a byte. The byte is negative if there is no structure."""
        line, block = self.source.line, self.source.block
        marker, target = self.source.fresh("m"), self.source.fresh("o")
        self._run("b", marker)
        self._flush()
        line(f"{target} = None")
        with block(f"if {marker} >= 0"):
            value = self._structure(field.class_name, field.fields, path)
            self._flush()
            line(f"{target} = {value}")
        return target

    def _value(self, field: Field, path: str) -> str:
        if field.fields:
            return self._structure(field.class_name, field.fields, path)
        target = self.source.fresh("v")
        if field.type in FORMATS:
            self._run(FORMATS[field.type], target)
        elif field.type == "uuid":
            self._run("16s", target)
            self._uuids.append(target)
        else:
            self._sized(field, path, target)
        return target

    # -- runs of fixed-size fields

    def _run(self, layout: str, target: str) -> None:
        self._layout += layout
        self._targets.append(target)

    def _flush(self) -> None:
        if not self._layout:
            return
        line = self.source.line
        if self._layout == "B":
            line(f"{self._targets[0]} = buf[pos]")
        else:
            unpack = self.source.struct_method("unpack_from", self._layout)
            line(f"{', '.join(self._targets)}, = {unpack}(buf, pos)")
        line(f"pos += {struct.calcsize('>' + self._layout)}")
        for target in self._uuids:
            line(f"{target} = UUID(bytes={target}) if {target} != ZERO_BYTES else ZERO_UUID")
        self._layout = ""
        self._targets.clear()
        self._uuids.clear()

    # -- lengths and counts: -1 is null, in both encodings

    def _length(self, layout: str) -> str:
        """Emit the read of a length or count. Returns its local variable."""
        count = self.source.fresh("n")
        line = self.source.line
        if not self.flexible:
            self._run(layout, count)
            self._flush()
            return count
        self._flush()
        line(f"{count} = buf[pos]")
        line("pos += 1")
        with self.source.block(f"if {count} > 127"):
            line(f"{count}, pos = read_uvarint(buf, pos - 1)")
        line(f"{count} -= 1")
        return count

    def _sized(self, field: Field, path: str, target: str) -> None:
        """Emit the read of a string, bytes or records field."""
        count = self._length("h" if field.type == "string" else "i")
        line, block = self.source.line, self.source.block
        if field.type == "string":
            value = 'str(buf[pos:stop], "utf-8")' if self.views else "buf[pos:stop].decode()"
        elif field.type == "bytes" and self.views:
            value = "bytes(buf[pos:stop])"
        else:
            value = "buf[pos:stop]"

        is_bounded = self.is_request and self.flexible and field.type == "string"
        too_long = f" or {count} > {STRING_BYTES_MAX}" if is_bounded else ""

        def take() -> None:
            line(f"stop = pos + {count}")
            with block(f"if {count} < 0 or stop > end{too_long}"):
                line(f"raise bad_length({path!r}, {count}, end - pos)")
            line(f"{target} = {value}")
            line("pos = stop")

        if self.version in field.nullable:
            with block(f"if {count} == -1"):
                line(f"{target} = None")
            with block("else"):
                take()
        else:
            take()

    # -- arrays

    def _array(self, field: Field, path: str) -> str:
        target = self.source.fresh("a")
        count = self._length("i")
        line, block = self.source.line, self.source.block

        def take() -> None:
            element_min = size_min(field, self.version, self.flexible)
            units = self._units(field)
            cost = count if units == 1 else f"{count} * {units}"
            with block(f"if {count} < 0 or {cost} > budget or {count} * {element_min} > end - pos"):
                line(f"raise bad_count({path!r}, {count}, end - pos, budget // {units})")
            line(f"budget -= {cost}")
            if field.type in FORMATS:
                self._integers(FORMATS[field.type], SIZES[field.type], count, target)
            else:
                self._elements(field, path, count, target)

        if self.version in field.nullable:
            with block(f"if {count} == -1"):
                line(f"{target} = None")
            with block("else"):
                take()
        else:
            take()
        return target

    def _integers(self, layout: str, size: int, count: str, target: str) -> None:
        ready = f"unpack_{layout}"
        self.source.names[ready] = tuple(struct.Struct(f">{n}{layout}").unpack_from for n in range(INT_ARRAYS_MAX + 1))
        many = f'unpack_from(f">{{{count}}}{layout}", buf, pos)'
        few = f"{ready}[{count}](buf, pos)"
        self.source.line(f"{target} = list({few} if {count} <= {INT_ARRAYS_MAX} else {many})")
        self.source.line(f"pos += {size} * {count}")

    def _units(self, field: Field) -> int:
        """The units of one element. In responses and records every element is one unit, because only requests can hold
        the event loop."""
        if not self.is_request or field.type in FORMATS:
            return 1
        return STRUCTURE_UNITS if field.fields else STRING_UNITS

    def _elements(self, field: Field, path: str, count: str, target: str) -> None:
        line = self.source.line
        line(f"{target} = []")
        with self.source.block(f"for _ in range({count})"):
            value = self._value(field, path)
            self._flush()
            line(f"{target}.append({value})")

    # -- tagged fields

    def _tagged_section(self, fields: tuple[Field, ...], values: dict[str, str], path: str) -> None:
        line, block = self.source.line, self.source.block
        count = self.source.fresh("t")
        self._run("B", count)
        self._flush()
        for field in fields:
            values[field.name] = self.source.fresh("o")
            line(f"{values[field.name]} = {_empty(field)}")
        with block(f"if {count}"):
            # Known fields are free: they occur once a structure, which was counted.
            units, known = STRUCTURE_UNITS if self.is_request else 1, len(fields)
            line(f"{count}, pos = read_tag_count(buf, pos - 1, end, budget // {units} + {known})")
            with block(f"if {count} > {known}"):
                line(f"budget -= ({count} - {known}) * {units}")
            if not fields:
                line(f"pos = skip_counted_tags(buf, pos, end, {count})")
                return
            tag, stop = self.source.fresh("tag"), self.source.fresh("stop")
            line(f"{tag} = -1")
            with block(f"for _ in range({count})"):
                line(f"{tag}, pos, {stop} = read_tag(buf, pos, end, {tag})")
                for field in fields:
                    with block(f"if {tag} == {field.tag}"):
                        value = self._field(field, f"{path}.{field.name}")
                        self._flush()
                        line(f"{values[field.name]} = {value}")
                        with block(f"if pos != {stop}"):
                            line(f'raise MalformedFrame("{path}.{field.name}: not as long as its tag says")')
                line(f"pos = {stop}")


def build_decoder(schema: Schema, version: int) -> Decoder:
    """A function from a body to its message. The body must be one-dimensional bytes and nothing but the body."""
    return _DecoderSource(schema, version).build()
