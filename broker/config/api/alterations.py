"""Applies AlterConfigs and IncrementalAlterConfigs to the configs of a topic or of brokers (KIP-226, KIP-339). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.config.definitions import BROKER, broker_definition, is_of_one_broker
from broker.config.kafka.at_run_time import OF_A_LISTENER, OF_ONE
from broker.config.network.key_stores import check_key_store
from broker.config.resolve import with_overrides
from broker.config.values import ConfigType, InvalidConfig
from logformat.errors import InvalidRequest

CONFIGS_BYTES_MAX: Final = 4096
"""Largest size of a topic's explicit configs, as JSON. They are stored in `cluster.json` and in the root of each
partition, which keeps 8 of its 64 KiB free for a claim. All of Kafka's configs with their longest numbers take 2 KiB.
"""
_SHOWN_CHARS: Final = 80


class AlterOperation(IntEnum):
    """An operation on a config; numbers as in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One change of one config; `value` is None for DELETE only."""

    name: str
    operation: AlterOperation
    value: str | None


ListBefore: TypeAlias = Callable[[str, AlterOperation], str]
"""Returns the text of a list config that is not set; raises InvalidConfig when the operation does not fit the
config."""


def altered(existing: Mapping[str, str], alterations: Sequence[Alteration], list_before: ListBefore) -> dict[str, str]:
    """The texts after the alterations. Their size is checked, but not their values. Raises InvalidRequest for a
    malformed request, InvalidConfig for texts that are too large."""
    # The size of the request is checked first, so that a request that is too large takes no time of the event loop.
    check_size({name: value for name, _, value in alterations}, CONFIGS_BYTES_MAX)
    names = [alteration.name for alteration in alterations]
    if len(set(names)) != len(names):
        raise _named_twice()
    changed = dict(existing)
    for name, operation, value in alterations:
        if operation is AlterOperation.DELETE:
            changed.pop(name, None)  # an unknown name is not an error, as in Kafka
        elif value is None:
            raise _null(name)
        elif operation is AlterOperation.SET:
            changed[name] = value
        else:
            before = list_before(name, operation)
            changed[name] = _list_after(changed.get(name, before), operation, value)
    return changed


def replaced(given: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The texts after `given` replaced all existing configs (AlterConfigs). Raises as `altered`."""
    check_size(dict(given), CONFIGS_BYTES_MAX)
    explicit: dict[str, str] = {}
    for name, value in given:
        if name in explicit:
            raise _named_twice()
        if value is None:
            raise _null(name)
        explicit[name] = value
    return explicit


def _named_twice() -> InvalidRequest:
    return InvalidRequest("Error due to duplicate config keys")


def _null(name: str) -> InvalidRequest:
    return InvalidRequest(f"Null value not supported for : {name}")


def _list_after(current: str, operation: AlterOperation, value: str) -> str:
    items, given = _items(current), _items(value)
    if operation is AlterOperation.APPEND:
        return ",".join(dict.fromkeys(items + given))
    taken = frozenset(given)
    return ",".join(item for item in items if item not in taken)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def size_of(configs: Mapping[str, str | None]) -> int:
    """Size as JSON, in bytes."""
    return len(msgspec.json.encode(configs))


def check_size(configs: Mapping[str, str | None], bytes_max: int) -> None:
    """Raise InvalidConfig if `configs` take more than `bytes_max` bytes as JSON. The error names the longest config."""
    size = size_of(configs)
    if size > bytes_max:
        name = max(configs, key=lambda name: len(name) + len(configs[name] or ""))
        raise InvalidConfig(
            f"These configs take {size} bytes as JSON, names included; a topic or broker may have at most "
            f"{CONFIGS_BYTES_MAX}: shorten the longest, {name[:_SHOWN_CHARS]}"
        )


def altered_overrides(
    broker: BrokerConfig, existing: Mapping[str, str], alterations: Sequence[Alteration], *, own: bool
) -> dict[str, str]:
    """The overrides of running brokers after the alterations: dynamic configs in canonical text, checked together with
    the values that they override. `own`: the overrides are for this broker only, otherwise for every broker.

    Raises InvalidRequest in Kafka's words, InvalidConfig when an operation does not fit a config.
    """
    return _accept(broker, altered(existing, alterations, _broker_list_before), own=own)


def replaced_overrides(broker: BrokerConfig, given: Sequence[tuple[str, str | None]], *, own: bool) -> dict[str, str]:
    """The overrides after `given` replaced all existing overrides (AlterConfigs). Raises as `altered_overrides`."""
    return _accept(broker, replaced(given), own=own)


def _broker_list_before(name: str, operation: AlterOperation) -> str:
    definition = BROKER.get(name)
    if definition is None or definition.type is not ConfigType.LIST:
        raise InvalidConfig(f"Config value {operation.name.lower()} is not allowed for config key: {name}")
    return definition.default or ""


def _accept(broker: BrokerConfig, explicit: Mapping[str, str], *, own: bool) -> dict[str, str]:
    if of_a_listener := sorted(OF_A_LISTENER & explicit.keys()):
        raise InvalidRequest(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"[{', '.join(of_a_listener)}]"
        )
    if not own and (of_one := sorted(OF_ONE & explicit.keys())):
        raise InvalidRequest(
            f"Cannot update these configs at default cluster level, broker id must be specified: [{', '.join(of_one)}]"
        )
    if not own and (of_listeners := sorted(name for name in explicit if is_of_one_broker(name))):
        raise InvalidRequest(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"[{', '.join(of_listeners)}]"
        )
    fixed = sorted(name for name in explicit if (found := broker_definition(name)) is None or not found.dynamic)
    if fixed:
        raise InvalidRequest(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    try:
        accepted = {name: _canonical(name, text) for name, text in explicit.items()}
        for name, text in accepted.items():
            check_key_store(broker.static, name, text)
        if own:
            with_overrides(broker, broker.cluster_overrides, accepted, check=True)
        else:
            with_overrides(broker, accepted, broker.own_overrides, check=True)
    except InvalidConfig as refused:
        raise InvalidRequest(str(refused)) from refused  # Kafka's code for a broker's config
    return accepted


def _canonical(name: str, text: str) -> str:
    definition = broker_definition(name)
    assert definition is not None
    value = definition.parse(text)
    return ",".join(dict.fromkeys(value)) if isinstance(value, tuple) else text.strip()
