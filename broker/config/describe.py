"""Configs as DescribeConfigs shows them: value, where it comes from, and what else would have given one.

Owns entries and their synonyms, in Kafka's order. Always true: sensitive values are never in an entry; internal names
and names without effect on a broker are left out. Must not know the protocol's messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.config.definitions import BROKER, TOPIC, TOPIC_SYNONYMS
from broker.config.topics import Origin, find_value, resolve_topic
from broker.config.values import ConfigType, Definition


class ConfigSource(IntEnum):
    """Where a value comes from; numbers as DescribeConfigs carries them."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigSynonym(NamedTuple):
    """Another name (or the same) that gives the value, strongest first."""

    name: str
    value: str | None
    source: ConfigSource


class Described(NamedTuple):
    """One config of a resource. `value` None: null, or sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    doc: str
    synonyms: tuple[ConfigSynonym, ...]


_SOURCE = {
    Origin.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    Origin.BROKER: ConfigSource.STATIC_BROKER_CONFIG,
    Origin.DEFAULT: ConfigSource.DEFAULT_CONFIG,
}

# kafka-ui asks a broker for this name and takes a missing one for 1.0, hiding what newer brokers can (semantics 12).
_PROTOCOL_VERSION = Described(
    "inter.broker.protocol.version",
    "4.0",
    ConfigSource.DEFAULT_CONFIG,
    read_only=True,
    sensitive=False,
    type=ConfigType.STRING,
    doc="Not a config: told to tools that judge a broker's features by it.",
    synonyms=(),
)


def describe_topic(broker: BrokerConfig, overrides: Mapping[str, str], *, internal: bool = False) -> list[Described]:
    """Every config of a topic, sorted by name."""
    return [
        _topic_entry(broker, overrides, definition, internal=internal)
        for name, definition in sorted(TOPIC.items())
        if not definition.internal or name in overrides
    ]


def _topic_entry(
    broker: BrokerConfig, overrides: Mapping[str, str], definition: Definition, *, internal: bool
) -> Described:
    name = definition.name
    found = find_value(broker, overrides, name, internal=internal)
    value = found.text
    if found.origin is not Origin.TOPIC:
        value = _yielding(broker, overrides, name, value, internal=internal)
    return Described(
        name,
        value,
        _SOURCE[found.origin],
        read_only=False,
        sensitive=definition.sensitive,
        type=definition.type,
        doc=definition.full_doc,
        synonyms=tuple(_topic_synonyms(broker, overrides, name)),
    )


def _yielding(
    broker: BrokerConfig, overrides: Mapping[str, str], name: str, text: str | None, *, internal: bool
) -> str | None:
    """The defaults that yield to explicit values, as they are in effect."""
    if name == "remote.storage.enable":
        return str(resolve_topic(broker, overrides, internal=internal).remote_storage_enable).lower()
    if name in ("local.retention.ms", "local.retention.bytes") and text != "-2":
        config = resolve_topic(broker, overrides, internal=internal)
        return str(config.local_retention_ms if name.endswith("ms") else config.local_retention_bytes)
    return text


def _topic_synonyms(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> Iterator[ConfigSynonym]:
    if name in overrides:
        yield ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG)
    for synonym in TOPIC_SYNONYMS.get(name, ()):
        if (text := broker.configured.get(synonym.name)) is not None:
            yield ConfigSynonym(synonym.name, text, ConfigSource.STATIC_BROKER_CONFIG)
    for synonym in TOPIC_SYNONYMS.get(name, ()):
        if (default := BROKER[synonym.name].default) is not None:
            yield ConfigSynonym(synonym.name, default, ConfigSource.DEFAULT_CONFIG)


def describe_broker(broker: BrokerConfig, live: Mapping[str, str] | None = None) -> list[Described]:
    """Every config that has an effect on a broker, sorted by name; all read-only.

    `live`: values only the running broker knows, such as `thermocline.http` and `listeners` with the port really bound.
    """
    live = live or {}
    entries = [_broker_entry(broker, live, BROKER[name]) for name in BROKER if BROKER[name].honoured]
    return sorted([*entries, _PROTOCOL_VERSION])


def _broker_entry(broker: BrokerConfig, live: Mapping[str, str], definition: Definition) -> Described:
    name = definition.name
    explicit = broker.configured.get(name)
    value = live.get(name, _in_effect(broker, name, explicit))
    source = ConfigSource.DEFAULT_CONFIG if explicit is None else ConfigSource.STATIC_BROKER_CONFIG
    synonyms = [ConfigSynonym(name, value, source)]
    if explicit is not None and definition.default is not None:
        synonyms.append(ConfigSynonym(name, definition.default, ConfigSource.DEFAULT_CONFIG))
    if definition.sensitive:
        value, synonyms = None, []
    return Described(
        name,
        value,
        source,
        read_only=True,
        sensitive=definition.sensitive,
        type=definition.type,
        doc=definition.full_doc,
        synonyms=tuple(synonyms),
    )


def _in_effect(broker: BrokerConfig, name: str, explicit: str | None) -> str | None:
    """The value a broker runs with, also where it follows from other names."""
    match name:
        case "thermocline.bucket":
            return broker.bucket_url
        case "log.dirs" | "log.dir":
            return broker.data_dir
        case "node.id" | "broker.id":
            return str(broker.node_id)
    return BROKER[name].default if explicit is None else explicit
