"""Config types and limits of Kafka, and the parser of one value, which accepts the same texts as Kafka."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from enum import IntEnum

import msgspec

from broker.config.units import parse_duration_ms, parse_size
from logformat.errors import InvalidRequest

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigType(IntEnum):
    """The type of a config; numbers as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class InvalidConfig(InvalidRequest):
    """A config name or value that is refused; Kafka's INVALID_CONFIG."""


_INTEGER_BITS = {ConfigType.INT: 32, ConfigType.SHORT: 16, ConfigType.LONG: 64}
_INTEGER = re.compile(r"[+-]?\d{1,25}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_REPLICA = re.compile(r"\d+:\d+", re.ASCII)


def _shown(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else str(limit)


def double_text(number: float) -> str:
    """A double in Java's format: `0.5`, `1.0`, `5.0E-4`, `Infinity`."""
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    digits, _, exponent = f"{Decimal(repr(number)):e}".partition("e")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}E{int(exponent)}"


class ValidValues(msgspec.Struct, frozen=True):
    """The valid values of a config. `also` is one number allowed beside the range (-1 for gzip's own default level)."""

    low: float | None = None
    high: float | None = None
    also: int | None = None
    one_of: tuple[str, ...] = ()
    ignore_case: bool = False
    filled: bool = False
    replicas: bool = False

    @staticmethod
    def read(text: str) -> ValidValues:
        """Valid values in the notation of `kafka.kafka_names`."""
        if text in ("filled", "replicas"):
            return ValidValues(filled=text == "filled", replicas=text == "replicas")
        if ".." in text:
            also, _, spread = text.rpartition(",")
            low, _, high = spread.partition("..")
            return ValidValues(float(low), float(high) if high else None, int(also) if also else None)
        return ValidValues(one_of=tuple(text.lstrip("~").split("/")) if text else (), ignore_case=text.startswith("~"))

    def refusal_of_number(self, number: float) -> str | None:
        """The reason why a number is refused, in Kafka's words, or None."""
        if number == self.also:
            return None
        if self.also is not None and not (self.low or 0) <= number <= (self.high or 0):
            return f"Value must be between {self.low:.0f} and {self.high:.0f} or equal to {self.also}"
        if self.low is not None and number < self.low:
            return f"Value must be at least {_shown(self.low)}"
        if self.high is not None and number > self.high:
            return f"Value must be no more than {_shown(self.high)}"
        return None

    def refusal_of_text(self, text: str) -> str | None:
        """The reason why a string (or an element of a list) is refused, or None."""
        if self.filled and not text:
            return "String must be non-empty"
        known = tuple(name.upper() for name in self.one_of) if self.ignore_case else self.one_of
        if known and (text.upper() if self.ignore_case else text) not in known:
            return "String must be one of: " + ", ".join(self.one_of)
        return None


class Definition(msgspec.Struct, frozen=True):
    """One config: its type, default (as text, None = null), limits and doc.

    `honoured` False: a config of Kafka that is accepted without effect. `reason`: why the default differs from Kafka's.
    `dynamic`: may change at run time (KIP-226); all topic configs may.
    """

    name: str
    type: ConfigType
    default: str | None
    valid: ValidValues = msgspec.field(default_factory=ValidValues)
    doc: str = ""
    honoured: bool = False
    internal: bool = False
    reason: str = ""
    dynamic: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def full_doc(self) -> str:
        """The doc, with the reason if the default differs from Kafka's."""
        return f"{self.doc} {self.reason}" if self.reason else self.doc

    def with_units(self, text: str) -> str:
        """`1h` → `3600000`, `64MiB` → `67108864`, by the name's ending; other texts unchanged (flags and files)."""
        if self.type not in _INTEGER_BITS or _INTEGER.fullmatch(text.strip()):
            return text
        words = self.name.split(".")
        try:
            if "ms" in words:
                return str(parse_duration_ms(text))
            if "bytes" in words:
                return str(parse_size(text))
        except InvalidRequest as refused:
            raise self._refuse(text, str(refused)) from None
        return text

    def parse(self, text: str | None) -> Value:
        """The typed value. InvalidConfig names value, config and reason. Surrounding blanks are ignored."""
        if text is None:
            return None
        text = text.strip()
        if self.type is ConfigType.BOOLEAN:
            return self._boolean(text)
        if self.type in _INTEGER_BITS:
            return self._integer(text)
        if self.type is ConfigType.DOUBLE:
            return self._double(text)
        if self.type is ConfigType.LIST:
            return self._list(text)
        if refusal := self.valid.refusal_of_text(text):
            raise self._refuse(text, refusal)
        return text

    def canonical(self, text: str | None) -> str | None:
        """The text in the form in which Kafka shows a double or a list. A text of another type, or an unreadable text,
        stays as it is."""
        try:
            value = self.parse(text) if self.type in (ConfigType.DOUBLE, ConfigType.LIST) else None
        except InvalidConfig:
            return text
        if isinstance(value, tuple):
            return ",".join(dict.fromkeys(value))
        return double_text(value) if isinstance(value, float) else text

    def _boolean(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise self._refuse(text, "Expected value to be either true or false")
        return text.lower() == "true"

    def _integer(self, text: str) -> int:
        number = int(text) if _INTEGER.fullmatch(text) else None
        half = 1 << (_INTEGER_BITS[self.type] - 1)
        if number is None or not -half <= number < half:
            raise self._refuse(text, f"Not a number of type {self.type.name}")
        if refusal := self.valid.refusal_of_number(number):
            raise self._refuse(text, refusal)
        return number

    def _double(self, text: str) -> float:
        if not _FLOAT.fullmatch(text):
            raise self._refuse(text, "Not a number of type DOUBLE")
        number = float(text)
        if refusal := self.valid.refusal_of_number(number):
            raise self._refuse(double_text(number), refusal)
        return number

    def _list(self, text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        if self.valid.replicas and items and items != ("*",) and not all(map(_REPLICA.fullmatch, items)):
            raise self._refuse(text, "must be the literal '*' or a list of partition:broker pairs")
        if self.valid.one_of and "" in items:
            raise InvalidConfig(f"Configuration '{self.name}' values must not be empty.")
        for item in items:
            if refusal := self.valid.refusal_of_text(item):
                raise self._refuse(item, refusal)
        return items

    def _refuse(self, text: str, why: str) -> InvalidConfig:
        shown = "[hidden]" if self.sensitive else text
        return InvalidConfig(f"Invalid value {shown} for configuration {self.name}: {why}")
