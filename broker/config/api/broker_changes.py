"""What may be set on running brokers, on all of them or on one: with Kafka's rules and words.

Owns the judgement of such values, alone and together with those they stand over. Always true: what these functions
return names only configs whose definition says `dynamic`, in canonical text, and gives a configuration that works.
Must not know requests or where the overrides are kept. Source: KIP-226, KIP-339.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.config.api.alterations import Alteration, AlterOperation, altered, replaced
from broker.config.broker_config import BrokerConfig
from broker.config.definitions import BROKER
from broker.config.resolve import with_overrides
from broker.config.values import ConfigType, InvalidConfig
from logformat.errors import InvalidRequest


def altered_overrides(
    broker: BrokerConfig, existing: Mapping[str, str], alterations: Sequence[Alteration], *, own: bool
) -> dict[str, str]:
    """The overrides after the alterations, judged whole. `own`: of this broker alone, else of every broker.

    InvalidRequest in Kafka's words; InvalidConfig where an operation does not fit a config.
    """
    return _accept(broker, altered(existing, alterations, _list_before), own=own)


def replaced_overrides(broker: BrokerConfig, given: Sequence[tuple[str, str | None]], *, own: bool) -> dict[str, str]:
    """The overrides when `given` takes the place of all there were (AlterConfigs). Raises as above."""
    return _accept(broker, replaced(given), own=own)


def _list_before(name: str, operation: AlterOperation) -> str:
    definition = BROKER.get(name)
    if definition is None or definition.type is not ConfigType.LIST:
        raise InvalidConfig(f"Config value {operation.name.lower()} is not allowed for config key: {name}")
    return definition.default or ""


def _accept(broker: BrokerConfig, explicit: Mapping[str, str], *, own: bool) -> dict[str, str]:
    fixed = sorted(name for name in explicit if name not in BROKER or not BROKER[name].dynamic)
    if fixed:
        raise InvalidRequest(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    try:
        accepted = {name: _canonical(name, text) for name, text in explicit.items()}
        if own:
            with_overrides(broker, broker.cluster_overrides, accepted, judge=True)
        else:
            with_overrides(broker, accepted, broker.own_overrides, judge=True)
    except InvalidConfig as refused:
        raise InvalidRequest(str(refused)) from refused  # Kafka's code for a broker's value, unlike a topic's
    return accepted


def _canonical(name: str, text: str) -> str:
    value = BROKER[name].parse(text)
    return ",".join(dict.fromkeys(value)) if isinstance(value, tuple) else text.strip()
