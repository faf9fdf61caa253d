"""Configs as in DescribeConfigs: values, sources and synonyms, in Kafka's order.

Sensitive values are never shown. Internal configs, and broker configs without effect, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.config.definitions import BROKER, DYNAMIC_ONLY, RIVALS, TOPIC, TOPIC_SYNONYMS, broker_definition
from broker.config.topic.topic_config import Origin, find_value, resolve_topic
from broker.config.values import ConfigType, Definition


class ConfigSource(IntEnum):
    """The source of a value; numbers as in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigSynonym(NamedTuple):
    """One name under which the value can be set: the config itself or a synonym."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """One config of a resource. `value` None: null, or sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    doc: str
    synonyms: tuple[ConfigSynonym, ...]


# kafka-ui reads this config. If the config is missing, kafka-ui assumes version 1.0 and hides newer features.
_PROTOCOL_VERSION = DescribedConfig(
    "inter.broker.protocol.version",
    "4.0",
    ConfigSource.DEFAULT_CONFIG,
    read_only=True,
    sensitive=False,
    type=ConfigType.STRING,
    doc="Not a real config. Tools read it to derive the features of a broker.",
    synonyms=(),
)


def _entry(
    definition: Definition, value: str | None, source: ConfigSource, synonyms: tuple[ConfigSynonym, ...]
) -> DescribedConfig:
    return DescribedConfig(
        definition.name,
        definition.canonical(value),
        source,
        read_only=not definition.dynamic,
        sensitive=definition.sensitive,
        type=definition.type,
        doc=definition.full_doc,
        synonyms=synonyms,
    )


def describe_topic(
    broker: BrokerConfig, overrides: Mapping[str, str], *, internal: bool = False
) -> list[DescribedConfig]:
    """Every config of a topic, sorted by name."""
    return [
        _topic_entry(broker, overrides, definition, internal=internal)
        for name, definition in sorted(TOPIC.items())
        if not definition.internal or name in overrides
    ]


def _topic_entry(
    broker: BrokerConfig, overrides: Mapping[str, str], definition: Definition, *, internal: bool
) -> DescribedConfig:
    name = definition.name
    found = find_value(broker, overrides, name, internal=internal)
    value = found.text
    synonyms = list(_topic_synonyms(broker, overrides, name))
    source = ConfigSource.DEFAULT_CONFIG if found.origin is Origin.DEFAULT else synonyms[0].source
    if found.origin is not Origin.TOPIC:
        value = _yielding(broker, overrides, name, value, internal=internal)
    return _entry(definition, value, source, tuple(synonyms))


def _yielding(
    broker: BrokerConfig, overrides: Mapping[str, str], name: str, text: str | None, *, internal: bool
) -> str | None:
    """Effective values of configs whose default depends on explicit values."""
    if name == "remote.storage.enable":
        return str(resolve_topic(broker, overrides, internal=internal).remote_storage_enable).lower()
    if name in ("local.retention.ms", "local.retention.bytes") and text != "-2":
        config = resolve_topic(broker, overrides, internal=internal)
        return str(config.local_retention_ms if name.endswith("ms") else config.local_retention_bytes)
    return text


def _topic_synonyms(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> Iterator[ConfigSynonym]:
    if name in overrides:
        yield ConfigSynonym(name, TOPIC[name].canonical(overrides[name]), ConfigSource.DYNAMIC_TOPIC_CONFIG)
    if names := tuple(synonym.name for synonym in TOPIC_SYNONYMS.get(name, ())):
        yield from _broker_synonyms(broker, names)


def _broker_synonyms(broker: BrokerConfig, names: tuple[str, ...]) -> list[ConfigSynonym]:
    """The values for the first of `names`, by source, then the defaults, as Kafka lists them."""
    found = [
        ConfigSynonym(name, values[name], source)
        for source, values in _layers(broker)
        for name in names
        if name in values
    ]
    defaults = [(name, _known(name).default) for name in names if name not in DYNAMIC_ONLY]
    if not defaults:
        return found
    if not found and defaults[0][1] is None:
        return []  # Kafka lists no synonyms if the first name has no value
    return found + [
        ConfigSynonym(name, text, ConfigSource.DEFAULT_CONFIG) for name, text in defaults if text is not None
    ]


def _layers(broker: BrokerConfig) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
    """Explicit values by source, strongest first."""
    return (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.own_overrides),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.cluster_overrides),
        (ConfigSource.STATIC_BROKER_CONFIG, broker.static),
    )


def describe_every_broker(broker: BrokerConfig) -> list[DescribedConfig]:
    """Values set at run time for all brokers (the resource without a name), sorted by name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _entry(_known(name), text, source, (ConfigSynonym(name, text, source),))
        for name, text in sorted(broker.cluster_overrides.items())
    ]


def describe_broker(broker: BrokerConfig, live: Mapping[str, str] | None = None) -> list[DescribedConfig]:
    """Every config with an effect on a broker, and every config that was set at run time, sorted by name.

    `live`: values that only the running broker knows, such as `thermocline.http` and `listeners` with the bound port.
    """
    live = live or {}
    altered = broker.own_overrides.keys() | broker.cluster_overrides.keys()
    shown = [n for n in BROKER if n in altered or (n in broker.configured if n in DYNAMIC_ONLY else BROKER[n].honoured)]
    of_listeners = sorted(altered - BROKER.keys())
    entries = [_broker_entry(broker, live, _known(name)) for name in (*shown, *of_listeners)]
    return sorted([*entries, _PROTOCOL_VERSION])


def _known(name: str) -> Definition:
    """The definition of a config, which may belong to one listener. Every override has a definition, because an unknown
    override is not applied.
    """
    found = broker_definition(name)
    assert found is not None, name
    return found


def _broker_entry(broker: BrokerConfig, live: Mapping[str, str], definition: Definition) -> DescribedConfig:
    name = definition.name
    synonyms = _broker_synonyms(broker, _names_of(name))
    own = next((synonym for synonym in synonyms if synonym.name == name), None)
    source = ConfigSource.DEFAULT_CONFIG if own is None else own.source
    explicit = None if own is None or own.source is ConfigSource.DEFAULT_CONFIG else own.value
    value = live.get(name, _in_effect(broker, name, explicit))
    if definition.sensitive:
        value, synonyms = None, []
    return _entry(definition, value, source, tuple(synonyms))


def _names_of(name: str) -> tuple[str, ...]:
    """A broker config and its synonyms, which are Kafka's names for the same time in coarser units."""
    for rivals in RIVALS:
        if name in rivals and rivals[0].endswith(".ms"):
            return rivals[rivals.index(name) :]
    return (name,)


def _in_effect(broker: BrokerConfig, name: str, explicit: str | None) -> str | None:
    """The effective value, also if it is derived from other configs."""
    match name:
        case "thermocline.bucket":
            return broker.bucket_url
        case "log.dirs" | "log.dir":
            return broker.data_dir
        case "node.id" | "broker.id":
            return str(broker.node_id)
    return _known(name).default if explicit is None else explicit
