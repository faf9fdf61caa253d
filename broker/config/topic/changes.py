"""Explicit configs of a topic after CreateTopics, AlterConfigs and IncrementalAlterConfigs, checked by Kafka's rules.

The size of explicit configs is limited, because a partition's root in the bucket stores them. The explicit configs of a
tiered topic contain `remote.storage.enable`, so that a later change of broker configs does not switch its tiering off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from broker.config.api.alterations import (
    CONFIGS_BYTES_MAX,
    Alteration,
    AlterOperation,
    altered,
    check_size,
    replaced,
    size_of,
)
from broker.config.broker_config import BrokerConfig
from broker.config.definitions import topic_definition
from broker.config.kafka.without_effect import check_local_retention
from broker.config.topic.topic_config import TopicConfig, find_value, resolve_topic, tiered
from broker.config.values import ConfigType, InvalidConfig

_TIERED = "remote.storage.enable"


def configs_at_creation(
    broker: BrokerConfig, requested: Mapping[str, str | None], *, internal: bool = False
) -> dict[str, str]:
    """The explicit configs of a new topic. Raises InvalidConfig.

    A null value is refused as in Kafka. A topic that is tiered by default gets `remote.storage.enable=true`.
    """
    check_size(requested, CONFIGS_BYTES_MAX)
    for name, value in requested.items():
        if value is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {name}")
    return _accept(
        broker, {}, {name: value for name, value in requested.items() if value is not None}, internal=internal
    )


def altered_configs(
    broker: BrokerConfig, existing: Mapping[str, str], alterations: Sequence[Alteration], *, internal: bool = False
) -> dict[str, str]:
    """The explicit configs after the alterations. Raises InvalidConfig, or InvalidRequest for a malformed request."""
    changed = altered(existing, alterations, partial(_list_before, broker))
    return _accept(broker, existing, changed, internal=internal)


def replaced_configs(
    broker: BrokerConfig,
    existing: Mapping[str, str],
    given: Sequence[tuple[str, str | None]],
    *,
    internal: bool,
) -> dict[str, str]:
    """The explicit configs after `given` replaced all existing configs (AlterConfigs). Raises as `altered_configs`."""
    return _accept(broker, existing, replaced(given), internal=internal)


def _list_before(broker: BrokerConfig, name: str, operation: AlterOperation) -> str:
    if topic_definition(name).type is not ConfigType.LIST:
        raise InvalidConfig(f"Can't {operation.name} to key {name} because its type is not LIST.")
    return find_value(broker, {}, name).text or ""


def _accept(
    broker: BrokerConfig, existing: Mapping[str, str], explicit: Mapping[str, str], *, internal: bool
) -> dict[str, str]:
    accepted = {}
    for name, text in explicit.items():
        topic_definition(name).parse(text)
        accepted[name] = text.strip()
    # Configs that an earlier version stored may exceed the limit. Such configs may keep their size, but not grow.
    check_size(accepted, max(CONFIGS_BYTES_MAX, size_of(existing)))
    config = resolve_topic(broker, accepted, internal=internal)
    _check_compaction_lag(broker, accepted)
    if internal:
        return accepted
    if config.remote_storage_enable:
        _check_tiered(broker, accepted, config)
    elif existing and tiered(broker, existing) and not config.remote_log_delete_on_disable:
        raise InvalidConfig(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote "
            "data and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you "
            "want to disable remote storage and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )
    if config.remote_storage_enable:
        accepted.setdefault(_TIERED, "true")
    return accepted


def _check_compaction_lag(broker: BrokerConfig, explicit: Mapping[str, str]) -> None:
    if not explicit:
        return  # as in Kafka: the broker's own values may contradict each other
    low, high = (
        int(find_value(broker, explicit, name).text or 0) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if low > high:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )


def _check_tiered(broker: BrokerConfig, explicit: Mapping[str, str], config: TopicConfig) -> None:
    if not broker.tiering_enabled:
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker (remote.log.storage.system.enable=false). "
            "Topic cannot be configured with remote log storage."
        )
    for unit in ("ms", "bytes"):
        retention = int(find_value(broker, explicit, f"retention.{unit}").text or -1)
        local = explicit.get(f"local.retention.{unit}")
        if local is not None:
            check_local_retention(unit, int(local), retention)
            _check_copy_disabled(unit, int(local), retention, config)


def _check_copy_disabled(unit: str, local: int, retention: int, config: TopicConfig) -> None:
    if config.remote_log_copy_disable and local not in (-2, retention):
        raise InvalidConfig(
            f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and `retention.{unit}` must "
            "be set to the identical value because there will be no more logs copied to the remote storage."
        )
