"""Definitions of all configs of brokers and topics, Kafka's and Thermocline's.

Every config of Kafka 4.3 is defined: honoured (listed in `honoured`) or accepted without effect.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from broker.config.authorizer import ALLOWS_WITHOUT_ACLS, SUPER_USERS
from broker.config.kafka import kafka_names
from broker.config.kafka.at_run_time import OF_A_LISTENER, OF_A_LISTENER_FIXED, OF_ANY, OF_ONE
from broker.config.kafka.honoured import BROKER_NAMES, DYNAMIC_NAMES, TOPIC_NAMES, Honoured
from broker.config.kafka.without_effect import IGNORED_BEGINNINGS, REFUSED, TOPIC_REASONS, reason_of
from broker.config.own import OWN
from broker.config.values import ConfigType, Definition, InvalidConfig, ValidValues

# Kafka's authorizer reads these configs from the broker's file, but Kafka's tables do not list them.
_AUTHORIZER = (
    Definition(
        SUPER_USERS,
        ConfigType.STRING,
        None,
        doc="Principals that may do everything regardless of ACLs, separated by semicolons: "
        "User:admin;User:broker-1. Brokers are among them, or have ClusterAction on the cluster. Only with "
        "authorizer.class.name.",
        honoured=True,
    ),
    Definition(
        ALLOWS_WITHOUT_ACLS,
        ConfigType.BOOLEAN,
        "false",
        doc="true: a resource without an ACL is open to everybody. Only with authorizer.class.name.",
        honoured=True,
    ),
)


class Synonym(msgspec.Struct, frozen=True):
    """A broker config that is a topic config's default: topic value = broker value × `scale`."""

    name: str
    scale: int = 1


def _read_table(
    table: str, honoured: Mapping[str, Honoured], reasons: Callable[[str], str | None]
) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    for line in table.strip().splitlines():
        name, kind, default, limits, *flags = line.split("|")
        plain = Definition(
            name=name,
            type=ConfigType[kind],
            default=None if default == r"\N" else default,
            valid=ValidValues.read(limits),
            doc=_doc_without_effect(name, reasons),
            internal="internal" in flags,
        )
        ours = honoured.get(name)
        found[name] = plain if ours is None else _honour(plain, ours)
    unknown = honoured.keys() - found.keys()
    assert not unknown, f"`honoured` has names that are not Kafka's: {unknown}"
    return found


def _doc_without_effect(name: str, reasons: Callable[[str], str | None]) -> str:
    refusal = REFUSED.get(name)
    return f"Refused: {refusal}." if refusal is not None else f"Accepted without effect: {reasons(name)}"


def _honour(plain: Definition, ours: Honoured) -> Definition:
    default = plain.default if ours.default is None else ours.default
    return replace(plain, honoured=True, doc=ours.doc, default=default, reason=ours.reason, dynamic=ours.dynamic)


def _read_synonyms(table: str) -> dict[str, tuple[Synonym, ...]]:
    found = {}
    for line in table.strip().splitlines():
        topic, _, names = line.partition(" = ")
        pairs = (name.partition("*") for name in names.split())
        found[topic] = tuple(Synonym(name, int(scale or 1)) for name, _, scale in pairs)
    return found


def _registry() -> dict[str, Definition]:
    found = _read_table(kafka_names.BROKER, BROKER_NAMES, reason_of)
    for name, known in _read_table(kafka_names.DYNAMIC, DYNAMIC_NAMES, reason_of).items():
        found[name] = replace(known, dynamic=True)
    for name in OF_ANY | OF_ONE:
        is_said = found[name].dynamic or not found[name].honoured
        assert is_said, f"{name} has an effect: say whether it is dynamic in `honoured`"
        found[name] = replace(found[name], dynamic=True)
    for own in _AUTHORIZER:
        found[own.name] = own
    return found | {own.name: own for own in OWN}


BROKER: Mapping[str, Definition] = MappingProxyType(_registry())
DYNAMIC_ONLY = frozenset(line.partition("|")[0] for line in kafka_names.DYNAMIC.split())
"""Broker configs that Kafka does not read from a file: they can only be set at run time."""
TOPIC: Mapping[str, Definition] = MappingProxyType(
    {
        name: replace(found, dynamic=True)
        for name, found in _read_table(kafka_names.TOPIC, TOPIC_NAMES, TOPIC_REASONS.get).items()
    }
)
TOPIC_SYNONYMS: Mapping[str, tuple[Synonym, ...]] = MappingProxyType(_read_synonyms(kafka_names.SYNONYMS))

# Synonyms of one value, the strongest first. A source that sets one of them overrides all of them in weaker sources.
RIVALS: tuple[tuple[str, ...], ...] = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.dirs", "log.dir"),
    ("node.id", "broker.id"),
)


MECHANISM_PREFIXES = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
_OF_A_LISTENER = re.compile(
    rf"listener\.name\.[^.]+\.(?:(?:{'|'.join(MECHANISM_PREFIXES)})\.)?"
    r"((?:ssl|sasl|principal|connections\.max\.reauth|connection\.failed\.authentication)\..+)"
)
"""`listener.name.NAME.CONFIG`; a config of one SASL mechanism has the mechanism's name before CONFIG."""
_CONNECTIONS_OF_A_LISTENER = re.compile(r"listener\.name\.[^.]+\.(max\.connections|max\.connection\.creation\.rate)")
_OF_ONE_LISTENER = {
    "max.connections": "Limit of this listener's open connections; more connections wait to be accepted. The broker's "
    "max.connections applies as well, except on the brokers' listener.",
    "max.connection.creation.rate": "Limit of the connections that this listener accepts a second; more connections "
    "wait. The broker's max.connection.creation.rate applies as well, except on the brokers' listener.",
}
"""Listener configs that Kafka also accepts for all brokers (`ClusterLevelListenerConfigs`)."""


def broker_definition(name: str) -> Definition | None:
    """The definition of a broker config, including a listener's config and a config that is known only by its prefix.
    None for an unknown name."""
    found = BROKER.get(name)
    if found is None and (own := _CONNECTIONS_OF_A_LISTENER.fullmatch(name)) is not None:
        return replace(BROKER[own[1]], name=name, default=None, doc=_OF_ONE_LISTENER[own[1]], reason="")
    if found is None and (own := _OF_A_LISTENER.fullmatch(name)) and (base := BROKER.get(own[1])) is not None:
        return replace(base, name=name, dynamic=base.dynamic or own[1] in OF_A_LISTENER - OF_A_LISTENER_FIXED)
    if found is None and name.startswith(IGNORED_BEGINNINGS):
        return Definition(name, ConfigType.STRING, None, doc=f"Accepted without effect: {reason_of(name)}")
    return found


def is_of_one_broker(name: str) -> bool:
    """Whether the config can be set for a single broker only, as in Kafka. It is then a listener's config."""
    return name.startswith("listener.name.") and _CONNECTIONS_OF_A_LISTENER.fullmatch(name) is None


def topic_definition(name: str) -> Definition:
    """The definition of a topic config. Raises InvalidConfig, in Kafka's words, when there is none."""
    definition = TOPIC.get(name)
    if definition is None:
        raise InvalidConfig(f"Unknown topic config name: {name}")
    return definition


def nearest_topic_name(name: str) -> str | None:
    """The topic config most like `name`. Takes a millisecond: for command lines, not for requests."""
    close = difflib.get_close_matches(name, TOPIC, n=1, cutoff=0.5)
    return close[0] if close else None


def nearest_name(name: str) -> str | None:
    """The broker config most like `name`, also for a topic config's name (`segment.bytes`)."""
    if name in TOPIC_SYNONYMS:
        return TOPIC_SYNONYMS[name][0].name
    close = difflib.get_close_matches(name, BROKER, n=1, cutoff=0.5)
    return close[0] if close else None
