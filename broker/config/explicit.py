"""What was set, over what was not: typed reading of a broker's configs.

Owns that a config nobody set has its default. Always true: a text that cannot be read raises InvalidConfig with the
config's name. Must not know which configs go together.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.definitions import BROKER, broker_definition
from broker.config.values import Value


class Explicit:
    """Typed access to explicit values over defaults."""

    def __init__(self, configured: Mapping[str, str]) -> None:
        self.configured = configured

    def value(self, name: str) -> Value:
        return BROKER[name].parse(self.configured.get(name, BROKER[name].default))

    def number(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def ratio(self, name: str) -> float:
        value = self.value(name)
        assert isinstance(value, float), name
        return value

    def flag(self, name: str) -> bool:
        return self.value(name) is True

    def text(self, name: str) -> str:
        value = self.value(name)
        return value if isinstance(value, str) else ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        return value if isinstance(value, tuple) else ()

    @property
    def ignored(self) -> tuple[str, ...]:
        unhonoured = (name for name in self.configured if not (found := broker_definition(name)) or not found.honoured)
        return tuple(sorted(unhonoured))
