"""Explicit config values: sources, precedence (flag > --set > environment > file > default), and typed access. Pure:
from texts to canonical texts or ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.config.definitions import BROKER, MECHANISM_PREFIXES, RIVALS, broker_definition, nearest_name
from broker.config.kafka.without_effect import TAKEN_OUT
from broker.config.values import InvalidConfig, Value

_ENVIRONMENT_PREFIX: Final = "THERMOCLINE_"
_OF_LISTENER: Final = "THERMOCLINE_LISTENER_NAME_"


class ConfigError(InvalidConfig):
    """The configuration cannot be used; the process exits with 2. The message has the config, its value, and the valid
    form."""


def environment_names() -> dict[str, str]:
    """Environment variable → config: `THERMOCLINE_` and the config's name in capitals with `_`. A config of Thermocline
    also has a variable without the doubled prefix."""
    names = {_ENVIRONMENT_PREFIX + _capitals(name.removeprefix("thermocline.")): name for name in BROKER}
    return names | {_ENVIRONMENT_PREFIX + _capitals(name): name for name in BROKER}


def _capitals(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").upper()


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    found = {name: env[variable] for variable, name in environment_names().items() if variable in env}
    for variable in sorted(env):
        if variable.startswith(_OF_LISTENER) and (name := _listener_config(variable)) is not None:
            found[name] = env[variable]
    return found


def _listener_config(variable: str) -> str | None:
    """The config of one listener: `THERMOCLINE_LISTENER_NAME_INNER_PLAIN_SASL_JAAS_CONFIG` is
    `listener.name.inner.plain.sasl.jaas.config`; None if no config matches. If several configs match, the longest name
    counts.
    """
    text = variable.removeprefix(_OF_LISTENER)
    for name in sorted(BROKER, key=len, reverse=True):
        rest = text.removesuffix("_" + _capitals(name))
        if rest == text:
            continue
        mechanism = next((one for one in MECHANISM_PREFIXES if rest.endswith("_" + _capitals(one))), None)
        listener = rest if mechanism is None else rest.removesuffix("_" + _capitals(mechanism))
        config = f"listener.name.{listener.lower()}.{mechanism + '.' if mechanism else ''}{name}"
        return config if listener and broker_definition(config) is not None else None
    return None


def from_sets(sets: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in sets:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {pair!r}: write --set KEY=VALUE")
        name = name.strip()
        definition = broker_definition(name)
        if definition is not None and definition.sensitive:
            raise ConfigError(
                f"--set {name}: a secret would be shown to every user of this machine; write it in the file of "
                f"--config, or in {_ENVIRONMENT_PREFIX}{_capitals(name.removeprefix('thermocline.'))}"
            )
        found[name] = value
    return found


def merge(sources: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """All explicit values in canonical text; `sources` from the weakest. A name overrides its synonyms in weaker
    sources."""
    merged: dict[str, str] = {}
    for source in sources:
        for rivals in RIVALS:
            if any(name in source for name in rivals):
                for name in rivals:
                    merged.pop(name, None)
        for name, text in source.items():
            merged[name] = _canonical(name, text)
    return merged


def _canonical(name: str, text: str) -> str:
    definition = broker_definition(name)
    if definition is None and name in TAKEN_OUT:
        raise ConfigError(f"unknown config {name!r}: {TAKEN_OUT[name]}")
    if definition is None:
        near = nearest_name(name)
        raise ConfigError(f"unknown config {name!r}" + (f"; the nearest is {near!r}" if near else ""))
    if not definition.honoured:
        return text.strip()
    text = definition.with_units(text.strip())
    definition.parse(text)
    return text


class Explicit:
    """Typed access to explicit values over defaults. Raises InvalidConfig with the config's name for an unreadable
    text."""

    def __init__(self, configured: Mapping[str, str]) -> None:
        self.configured = configured

    def of_listener(self, listener: str) -> Explicit:
        """The values for listener `listener`, under the plain names. Values of `listener.name.LISTENER.` override
        general values.
        """
        return Explicit({**self.configured, **self.own_of_listener(listener).configured})

    def own_of_listener(self, listener: str) -> Explicit:
        """The values of `listener.name.LISTENER.` only, under the plain names."""
        prefix = f"listener.name.{listener.lower()}."
        return Explicit(
            {name[len(prefix) :]: text for name, text in self.configured.items() if name.lower().startswith(prefix)}
        )

    def value(self, name: str) -> Value:
        return BROKER[name].parse(self.configured.get(name, BROKER[name].default))

    def number(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def fraction(self, name: str) -> float:
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
