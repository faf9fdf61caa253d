"""Common parts of the decoder and encoder generators: source lines, struct formats, sizes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from broker.wire.schema import Field

FORMATS: Final = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}
SIZES: Final = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}

INT_ARRAYS_MAX: Final = 16  # integer arrays up to this length have a prepared struct; replica lists are not longer


class SourceCode:
    """The lines of one generated function, and the objects that its names refer to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._counter = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Add `opening:`. Lines that are emitted inside are one level deeper."""
        self.line(f"{opening}:")
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """A new local name."""
        self._counter += 1
        return f"{stem}{self._counter}"

    def struct_method(self, method: str, layout: str) -> str:
        """The name under which the function can call a method of `struct.Struct('>' + layout)`."""
        name = f"{method}_{layout.replace('?', 'B_')}"
        self.names[name] = getattr(struct.Struct(">" + layout), method)
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def function(self, name: str) -> Callable[..., Any]:
        """Compile the lines and return the function `name`."""
        exec(compile(self.text(), f"<{self.name}>", "exec"), self.names)
        function: Callable[..., Any] = self.names[name]
        return function


def present(fields: tuple[Field, ...], version: int) -> tuple[Field, ...]:
    """The fields of `version` outside the tagged section, in wire order."""
    return tuple(field for field in fields if field.tag is None and version in field.versions)


def tagged(fields: tuple[Field, ...], version: int) -> tuple[Field, ...]:
    """The tagged fields of `version`, by tag."""
    found = [field for field in fields if field.tag is not None and version in field.versions]
    return tuple(sorted(found, key=lambda field: field.tag or 0))


def size_min(field: Field, version: int, flexible: bool) -> int:
    """The least size in bytes of one value (for an array: of one element) of `field`. It bounds claimed counts."""
    if field.fields:
        inner = sum(
            (1 if flexible else 4) if part.is_array else 1 if part.is_optional else size_min(part, version, flexible)
            for part in present(field.fields, version)
        )
        return inner + flexible  # an empty tagged section is one byte
    if field.type in SIZES:
        return SIZES[field.type]
    return 1 if flexible else (2 if field.type == "string" else 4)
