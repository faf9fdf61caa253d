"""Generates the Python source that encodes one message in one version.

The parts of `records` are not copied. All other fields between them are joined into one `bytes`, or into one for each
step. Fields that the version lacks are ignored. A message that does not fit its types (None where null is not allowed,
a number too large) is a bug and raises TypeError, AttributeError or struct.error.

Hot path: a run of fixed-size fields is one `pack`; structures are encoded in line.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, cast

from broker.wire.decoder import has_records
from broker.wire.emit import FORMATS, INT_ARRAYS_MAX, SourceCode, present, tagged
from broker.wire.message import EncodedElements
from broker.wire.primitives import uvarint
from broker.wire.scatter import Part, scatter
from broker.wire.schema import Field, Schema

Encoder = Callable[[Any], list[Part]]
SteppedEncoder = Callable[[Any], Generator[None, None, list[Part]]]
"""Pauses after every `STEP_ELEMENTS` array elements and returns the parts."""

STEP_ELEMENTS: Final = 4_000
"""1 to 2 ms of encoding."""

_RUNTIME = {
    "EncodedElements": EncodedElements,
    "pack": struct.pack,
    "scatter": scatter,
    "uvarint": uvarint,
    "UVARINTS": tuple(uvarint(n) for n in range(128)),
}


class _EncoderSource:
    """Emits one encode function. Its locals: `parts` (finished parts), `chunks` (bytes to be joined), `add`."""

    def __init__(self, schema: Schema, version: int, *, steps: bool = False) -> None:
        self.schema = schema
        self.version = version
        self.steps = steps
        self.flexible = version >= schema.flexible_from
        self.source = SourceCode(f"encode {schema.name} v{version}")
        self.source.names.update(_RUNTIME)
        self._layout = ""  # the pending run of fixed-size fields, and its source expressions
        self._values: list[str] = []

    def build(self) -> Callable[..., Any]:
        line, block = self.source.line, self.source.block
        with block("def encode(message)"):
            line("chunks = []")
            line("add = chunks.append")
            if self.steps:
                line(f"left = {STEP_ELEMENTS}")
            if not (self.steps or has_records(self.schema.fields)):
                self._structure("message", self.schema.fields)
                self._flush()
                line('return [b"".join(chunks)]')
            else:
                line("parts = []")
                self._structure("message", self.schema.fields)
                self._flush()
                with block("if chunks"):
                    line('parts.append(b"".join(chunks))')
                if self.steps:
                    line("if not left: yield")  # never executed; it makes the function a generator
                line("return parts")
        return self.source.function("encode")

    def _structure(self, holder: str, fields: tuple[Field, ...]) -> None:
        for field in present(fields, self.version):
            self._field(field, f"{holder}.{field.name}")
        if self.flexible:
            self._tagged_section(tagged(fields, self.version), holder)

    def _field(self, field: Field, value: str) -> None:
        if field.is_array:
            self._array(field, value)
        elif field.is_optional:
            self._optional(field, value)
        else:
            self._value(field, value)

    def _optional(self, field: Field, value: str) -> None:
        """Emit a byte and a structure: the byte is 1, or -1 if there is no structure."""
        line, block = self.source.line, self.source.block
        local = self.source.fresh("o")
        self._flush()
        line(f"{local} = {value}")
        with block(f"if {local} is None"):
            line('add(b"\\xff")')
        with block("else"):
            self._run("b", "1")
            self._structure(local, field.fields)
            self._flush()

    def _value(self, field: Field, value: str) -> None:
        if field.fields:
            self._structure(value, field.fields)
        elif field.type in FORMATS:
            self._run(FORMATS[field.type], value)
        elif field.type == "uuid":
            self._run("16s", f"{value}.bytes")
        elif field.type == "records":
            self._records(value)
        else:
            self._sized(field, value)

    # -- runs of fixed-size fields

    def _run(self, layout: str, value: str) -> None:
        self._layout += layout
        self._values.append(value)

    def _pack(self, extra_layout: str = "", extra_value: str = "") -> str:
        layout = self._layout + extra_layout
        values = [value for value in [*self._values, extra_value] if value]
        return f"{self.source.struct_method('pack', layout)}({', '.join(values)})"

    def _flush(self) -> None:
        if self._layout:
            self.source.line('add(b"\\0")' if self._layout == "x" else f"add({self._pack()})")
        self._layout = ""
        self._values.clear()

    # -- lengths and counts

    def _length(self, layout: str, count: str) -> None:
        """Emit the length or count in the local variable `count` (-1 for null), after pending fields."""
        if not self.flexible:
            self._run(layout, count)
            self._flush()
            return
        line = self.source.line
        line(f"{count} += 1")
        if self._layout:
            # The length is nearly always one byte, which is packed together with the pending fields.
            line(f"add({self._pack('B', count)} if {count} < 128 else {self._pack()} + uvarint({count}))")
            self._layout = ""
            self._values.clear()
        else:
            line(f"add(UVARINTS[{count}] if {count} < 128 else uvarint({count}))")

    def _or_null(self, local: str, count: str, empty: str, size: str, convert: str = "") -> None:
        """Emit `count = -1` and an empty value for None, else the length (and a conversion)."""
        line, block = self.source.line, self.source.block
        with block(f"if {local} is None"):
            line(f"{local} = {empty}")
            line(f"{count} = -1")
        with block("else"):
            if convert:
                line(f"{local} = {convert}")
            line(f"{count} = {size}")

    def _sized(self, field: Field, value: str) -> None:
        """Emit a string or bytes field."""
        line = self.source.line
        local, count = self.source.fresh("s"), self.source.fresh("n")
        is_string = field.type == "string"
        if self.version in field.nullable:
            line(f"{local} = {value}")
            self._or_null(local, count, 'b""', f"len({local})", f"{local}.encode()" if is_string else "")
        else:
            line(f"{local} = {value}.encode()" if is_string else f"{local} = {value}")
            line(f"{count} = len({local})")
        self._length("h" if is_string else "i", count)
        line(f"add({local})")

    def _records(self, value: str) -> None:
        line = self.source.line
        local, count = self.source.fresh("r"), self.source.fresh("n")
        line(f"{local} = {value}")
        line(f"{count}, {local} = (-1, ()) if {local} is None else scatter({local})")
        self._length("i", count)
        with self.source.block(f"if {local}"):
            line('parts.append(b"".join(chunks))')
            line(f"parts.extend({local})")
            line("chunks.clear()")

    # -- arrays

    def _array(self, field: Field, value: str) -> None:
        line = self.source.line
        local, count = self.source.fresh("a"), self.source.fresh("n")
        line(f"{local} = {value}")
        if self.version in field.nullable:
            self._or_null(local, count, "()", f"len({local})")
        else:
            line(f"{count} = len({local})")
        self._length("i", count)
        if field.type in FORMATS:
            self._integers(FORMATS[field.type], local)
            return
        if self.steps and field.fields:
            with self.source.block(f"if {local}.__class__ is EncodedElements"):
                line(f"add({local}.body)")
            with self.source.block("else"):
                self._elements(field, local)
        else:
            self._elements(field, local)

    def _elements(self, field: Field, local: str) -> None:
        element = self.source.fresh("e")
        with self.source.block(f"for {element} in {local}"):
            self._value(field, element)
            self._flush()
            if self.steps:
                self.source.line("left -= 1")
                with self.source.block("if not left"):
                    # Each chunk takes 50 bytes besides its own: all of them would take ten times the response.
                    self.source.line('parts.append(b"".join(chunks))')
                    self.source.line("chunks.clear()")
                    self.source.line("yield")
                    self.source.line(f"left = {STEP_ELEMENTS}")

    def _integers(self, layout: str, local: str) -> None:
        ready = f"pack_ready_{layout}"
        self.source.names[ready] = tuple(struct.Struct(f">{n}{layout}").pack for n in range(INT_ARRAYS_MAX + 1))
        size = self.source.fresh("n")
        self.source.line(f"{size} = len({local})")
        many = f'pack(f">{{{size}}}{layout}", *{local})'
        self.source.line(f"add({ready}[{size}](*{local}) if {size} <= {INT_ARRAYS_MAX} else {many})")

    # -- tagged fields

    def _tagged_section(self, fields: tuple[Field, ...], holder: str) -> None:
        if not fields:
            self._layout += "x"  # without tags: one zero byte, packed with the pending fields
            return
        line, block = self.source.line, self.source.block
        self._flush()
        conditions = [self._differs(field, f"{holder}.{field.name}") for field in fields]
        count = self.source.fresh("t")
        line(f"{count} = {' + '.join(f'({condition})' for condition in conditions)}")
        line(f"add(UVARINTS[{count}])")
        with block(f"if {count}"):
            for field, condition in zip(fields, conditions, strict=True):
                with block(f"if {condition}"):
                    self._tagged_field(field, f"{holder}.{field.name}")

    def _tagged_field(self, field: Field, value: str) -> None:
        line = self.source.line
        inner, outer = self.source.fresh("inner"), self.source.fresh("outer")
        line(f"{outer}, {inner} = add, []")
        line(f"add = {inner}.append")
        self._field(field, value)
        self._flush()
        line(f'add, {inner} = {outer}, b"".join({inner})')
        line(f"add(uvarint({field.tag}) + uvarint(len({inner})) + {inner})")

    @staticmethod
    def _differs(field: Field, value: str) -> str:
        """The source of "this tagged field is not at its default", as a bool."""
        if field.default is None:
            return f"{value} is not None"
        if field.is_array:
            return f"len({value}) > 0"
        if field.type == "uuid":
            return f"{value}.int != 0"
        return f"{value} != {field.default!r}"


def build_encoder(schema: Schema, version: int) -> Encoder:
    """A function from a message to the parts of its body."""
    return cast(Encoder, _EncoderSource(schema, version).build())


def build_stepped_encoder(schema: Schema, version: int) -> SteppedEncoder:
    """A function that encodes in steps. Other code may run between them, but must not change the message."""
    return cast(SteppedEncoder, _EncoderSource(schema, version, steps=True).build())
