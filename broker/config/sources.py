"""Where a broker's config values come from, and which one wins: flag > --set > environment > file > default.

Owns precedence and the refusal of unknown names. Pure: texts come in, canonical texts or ConfigError come out. Must not
know what a value means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.config.definitions import BROKER, RIVALS, broker_definition, nearest_name
from broker.config.values import InvalidConfig
from broker.config.without_effect import TAKEN_OUT

_ENVIRONMENT_PREFIX: Final = "THERMOCLINE_"


class ConfigError(InvalidConfig):
    """The configuration cannot be used: exit 2. The message names the config, its value, and what to write."""


def environment_names() -> dict[str, str]:
    """Environment variable → config: `THERMOCLINE_` and the name in capitals with `_`; ours also without doubling."""
    names = {_ENVIRONMENT_PREFIX + _capitals(name.removeprefix("thermocline.")): name for name in BROKER}
    return names | {_ENVIRONMENT_PREFIX + _capitals(name): name for name in BROKER}


def _capitals(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").upper()


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[variable] for variable, name in environment_names().items() if variable in env}


def from_sets(sets: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in sets:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {pair!r}: write --set KEY=VALUE")
        found[name.strip()] = value
    return found


def merge(sources: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """All explicit values in canonical text, weakest source first. A name hides its rivals in weaker sources."""
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
