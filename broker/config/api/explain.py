"""Describes configs for `config explain` and docs/configuration.md, from the definitions that also validate them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from broker.config.definitions import (
    BROKER,
    RIVALS,
    TOPIC,
    TOPIC_SYNONYMS,
    broker_definition,
    nearest_name,
    nearest_topic_name,
)
from broker.config.kafka.without_effect import REFUSED
from broker.config.units import show_duration
from broker.config.values import ConfigType, Definition, InvalidConfig, ValidValues

_NO_LIMIT: Final = {ConfigType.LONG: 2**63 - 1, ConfigType.INT: 2**31 - 1}
_SIZES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Scope(Enum):
    TOPIC = "topic"
    BROKER = "broker"


class Effect(Enum):
    HONOURED = "honoured"
    NONE = "no effect"
    REFUSED = "refused"


class Explained(msgspec.Struct, frozen=True):
    """The description of a config. `takes_from`: broker configs that give a topic's default; `gives_to`: the topic
    config whose default this broker config gives."""

    name: str
    scope: Scope
    type: str
    default: str
    valid: str
    changes: str
    effect: Effect
    doc: str
    reason: str
    takes_from: tuple[str, ...]
    gives_to: str | None


def explain(definition: Definition, scope: Scope) -> Explained:
    name = definition.name
    effect = Effect.HONOURED
    if not definition.honoured:
        effect = Effect.REFUSED if scope is Scope.BROKER and name in REFUSED else Effect.NONE
    return Explained(
        name=name,
        scope=scope,
        type=definition.type.name.lower(),
        default=shown_value(definition, definition.default),
        valid=_valid(definition.valid),
        changes="at run time" if definition.dynamic else "at start",
        effect=effect,
        doc=definition.doc,
        reason=definition.reason,
        takes_from=tuple(synonym.name for synonym in TOPIC_SYNONYMS.get(name, ())) if scope is Scope.TOPIC else (),
        gives_to=_GIVES_TO.get(name) if scope is Scope.BROKER else None,
    )


def explain_all(scope: Scope) -> list[Explained]:
    """Every definition, by name. Kafka's internal configs without effect here are left out."""
    table: Mapping[str, Definition] = TOPIC if scope is Scope.TOPIC else BROKER
    return [explain(found, scope) for _, found in sorted(table.items()) if found.honoured or not found.internal]


def explain_name(name: str) -> list[Explained]:
    """The topic config and the broker config of this name. If neither exists, raises InvalidConfig with the nearest
    name."""
    found = [explain(TOPIC[name], Scope.TOPIC)] if name in TOPIC else []
    if (of_broker := broker_definition(name)) is not None:
        found.append(explain(of_broker, Scope.BROKER))
    if not found:
        candidates = [near for near in (nearest_topic_name(name), nearest_name(name)) if near is not None]
        near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)
        raise InvalidConfig(f"unknown config {name!r}" + (f"; the nearest is {near[0]!r}" if near else ""))
    return found


def shown_value(definition: Definition, text: str | None) -> str:
    """`604800000 (7d)`, `134217728 (128MiB)`, `null`; empty for the empty string."""
    limit = _NO_LIMIT.get(definition.type)
    if text is None or limit is None:
        return "null" if text is None else text
    number = int(text)
    words = definition.name.split(".")
    if number == limit:
        return f"{text} (no limit)"
    if "ms" in words and number >= 1000:
        return f"{text} ({show_duration(number)})"
    if "bytes" in words and (size := _exact_size(number)):
        return f"{text} ({size})"
    return text


def _exact_size(number: int) -> str:
    for unit, name in _SIZES:
        if number >= unit and number % unit == 0:
            return f"{number // unit}{name}"
    return ""


def _valid(valid: ValidValues) -> str:
    if valid.one_of:
        return " | ".join(valid.one_of)
    if valid.filled:
        return "not empty"
    if valid.replicas:
        return "* or partition:broker, …"
    if valid.low is None:
        return ""
    low = f"{valid.low:g}" if valid.low != int(valid.low) else str(int(valid.low))
    if valid.high is None:
        spread = f"{low} or more"
    else:
        high = f"{valid.high:g}" if valid.high != int(valid.high) else str(int(valid.high))
        spread = f"{low} to {high}"
    return spread if valid.also is None else f"{spread}, or {valid.also}"


def _topics_of_brokers() -> dict[str, str]:
    gives = {synonym.name: topic for topic, synonyms in TOPIC_SYNONYMS.items() for synonym in synonyms}
    for rivals in RIVALS:
        topic = next((gives[name] for name in rivals if name in gives), None)
        if topic is not None:
            gives |= dict.fromkeys(rivals, topic)
    return gives


_GIVES_TO: Final = _topics_of_brokers()
