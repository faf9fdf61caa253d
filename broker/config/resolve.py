"""Resolves flags, `--set`, environment and file to one `BrokerConfig`, and checks configs that depend on each other.

Addresses and directories are checked in `places`; precedence is in `sources`. Pure: from texts to a value or
ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from broker.config.authorizer import ALLOWS_WITHOUT_ACLS, CLASS_NAME, SUPER_USERS, authorizer_config
from broker.config.broker_config import BrokerConfig, configs_of
from broker.config.cleaner import check_cleaner_change, cleaner_config, cleaner_refusal
from broker.config.definitions import BROKER, TOPIC, TOPIC_SYNONYMS
from broker.config.groups import GroupConfig
from broker.config.kafka.honoured import RACK_SELECTOR
from broker.config.kafka.without_effect import check_local_retention, check_refused
from broker.config.network.connections import check_of_listeners, of_listeners, per_ip_overrides
from broker.config.network.sasl import brokers_login, first_users, sasl_listeners
from broker.config.places import Launch, addresses, bucket_url, data_dir_of
from broker.config.sources import ConfigError, Explicit, from_environment, from_sets, merge
from broker.config.times import cluster_times
from broker.config.transactions import TransactionConfig
from broker.config.units import parse_size
from coldstore.url import DirectoryUrl
from logformat.errors import InvalidRequest
from logformat.properties import properties_in


def resolve(
    flags: Mapping[str, str],
    sets: Sequence[str],
    env: Mapping[str, str],
    file_text: str | None,
    launch: Launch = Launch(),  # noqa: B008 - immutable
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> BrokerConfig:
    """The broker's configuration. Raises ConfigError for a value that cannot be used.

    `flags`: texts by config name, of the flags that set a config; `sets`: `KEY=VALUE` each; `env`: the whole
    environment; `file_text`: a `server.properties`, or None; `defaults`: values that all other sources override.
    """
    try:
        configured = merge(
            [defaults, dict(properties_in(file_text or "")), from_environment(env), from_sets(sets), flags]
        )
        return _build(Explicit(configured), launch)
    except ConfigError:
        raise
    except InvalidRequest as refused:
        raise ConfigError(str(refused)) from refused


def _inflight_bytes_max(values: Explicit) -> int | None:
    """Bytes of requests in flight; None: no limit."""
    inflight = values.number("queued.max.request.bytes")
    if 0 <= inflight < values.number("socket.request.max.bytes"):
        raise ConfigError(
            "queued.max.request.bytes must be at least socket.request.max.bytes, or one request never fits"
        )
    return None if inflight < 0 else inflight


def _check_read_only(values: Explicit, launch: Launch) -> None:
    if launch.read_only and not values.text("thermocline.bucket"):
        raise ConfigError("--read-only reads the bucket of another cluster: give its URL with --bucket")
    if launch.read_only and launch.take_over:
        raise ConfigError("--take-over cannot be used with --read-only, which never takes a bucket over: leave it out")


def _build(values: Explicit, launch: Launch) -> BrokerConfig:
    check_refused(values.configured)
    _check_read_only(values, launch)
    _check_topic_defaults(values)
    number = values.number
    data_dir = data_dir_of(values, launch)
    bucket = bucket_url(values, data_dir)
    at = addresses(values, launch)
    local_bytes_max, local_space_ratio_max = _local_limit(values.text("thermocline.local.bytes.max"))
    inflight = _inflight_bytes_max(values)
    every = (*at.listeners, *((at.brokers.own,) if at.brokers.own else ()))
    return BrokerConfig(
        node_id=number("broker.id") if "broker.id" in values.configured else number("node.id"),
        rack=values.text("broker.rack") or None,
        selects_by_rack=_selects_by_rack(values.text("replica.selector.class")),
        data_dir=data_dir,
        bucket_url=bucket.printed(),
        bucket_is_default=not values.text("thermocline.bucket"),
        take_over=launch.take_over,
        read_only=launch.read_only,
        listeners=at.listeners,
        brokers_listener=at.brokers.name,
        internal=at.brokers.own,
        authorizer=authorizer_config(
            values.text(CLASS_NAME), values.text(SUPER_USERS), bool(values.value(ALLOWS_WITHOUT_ACLS))
        ),
        http_host=at.http.host if at.http else None,
        http_port=at.http.port if at.http else 0,
        insecure=at.insecure,
        sasl=MappingProxyType(sasl_listeners(values, every)),
        first_users=first_users(values, every),
        brokers_login=brokers_login(values, next(one for one in every if one.name == at.brokers.name)),
        inflight_request_bytes_max=inflight,
        connections_of_listener=of_listeners(values, (one.name for one in every)),
        connections_per_ip_overrides=per_ip_overrides(values.text("max.connections.per.ip.overrides")),
        flush_sync=values.text("thermocline.flush") == "sync",
        local_bytes_max=local_bytes_max,
        local_space_ratio_max=local_space_ratio_max,
        cleaner=cleaner_config(values),
        groups=_groups(values),
        transactions=TransactionConfig(**_read(TransactionConfig, values)),
        times=cluster_times(
            session_ms=number("broker.session.timeout.ms"),
            parked_ms=number("broker.heartbeat.interval.ms"),
            interval_ms=number("thermocline.lease.interval.ms"),
            lease_ms=number("thermocline.lease.ms"),
            is_directory=isinstance(bucket, DirectoryUrl),
        ),
        configured=MappingProxyType(dict(values.configured)),
        static=MappingProxyType(dict(values.configured)),
        cluster_overrides=MappingProxyType({}),
        own_overrides=MappingProxyType({}),
        ignored=values.ignored,
        **_read(BrokerConfig, values),
    )


def _read(kind: type, values: Explicit) -> dict[str, Any]:
    """Values of the fields of `kind` that are annotated with a config's name."""
    return {field: values.value(name) for field, name in configs_of(kind).items()}


def _dynamic(values: Explicit) -> dict[str, Any]:
    """The fields whose configs may change at run time; topic defaults are read from `configured`."""
    found = configs_of(BrokerConfig).items()
    return {field: values.value(name) for field, name in found if BROKER[name].dynamic}


def with_overrides(
    started: BrokerConfig,
    cluster_overrides: Mapping[str, str],
    own_overrides: Mapping[str, str],
    *,
    check: bool = False,
) -> BrokerConfig:
    """The configuration of a broker that started with `started`, after overrides. The broker's own overrides win over
    the overrides of all brokers. Both win over the values of the start.

    Raises InvalidConfig when a value cannot be read. With `check`, InvalidConfig is also raised if the cleaner's values
    contradict each other, or if values that topics inherit contradict each other. Without `check`, the cleaner keeps
    its configuration if its new values contradict each other.
    """
    values = Explicit(merge([started.static, cluster_overrides, own_overrides]))
    bounds = of_listeners(values, (one.name for one in started.every_listener))
    if check:
        check_of_listeners(of_listeners(Explicit({**cluster_overrides, **own_overrides}), bounds))
        _check_topic_defaults(values)
        check_cleaner_change(started.configured, started.cleaner, values)
    return replace(
        started,
        configured=MappingProxyType(dict(values.configured)),
        cluster_overrides=MappingProxyType(dict(cluster_overrides)),
        own_overrides=MappingProxyType(dict(own_overrides)),
        connections_of_listener=bounds,
        cleaner=started.cleaner if cleaner_refusal(values) else cleaner_config(values),
        **_dynamic(values),
    )


def _groups(values: Explicit) -> GroupConfig:
    retention_ms = values.number("offsets.retention.minutes") * 60_000
    return GroupConfig(offsets_retention_ms=retention_ms, **_read(GroupConfig, values))


def _check_topic_defaults(values: Explicit) -> None:
    """Check the broker values that topics inherit: each against the limits of topics, and all together against Kafka's
    rules."""
    for topic_name, synonyms in TOPIC_SYNONYMS.items():
        for synonym in synonyms:
            text = values.configured.get(synonym.name)
            if text is not None and BROKER[synonym.name].honoured and synonym.scale == 1:
                TOPIC[topic_name].parse(text)
    for unit in ("ms", "bytes"):
        local, total = f"log.local.retention.{unit}", f"log.retention.{unit}"
        if local in values.configured and total in values.configured:
            check_local_retention(unit, values.number(local), values.number(total))


def _selects_by_rack(text: str) -> bool:
    """Whether consumers are redirected to replicas in their rack. Kafka's default has no selector."""
    if text.strip() not in ("", RACK_SELECTOR):
        raise ConfigError(
            f"Invalid value {text} for configuration replica.selector.class: no Java class is run here; "
            f"{RACK_SELECTOR} is served, or leave it out: then all consumers read from leaders"
        )
    return bool(text.strip())


def _local_limit(text: str) -> tuple[int | None, float]:
    """`80%` of the file system, or bytes with or without a unit."""
    if not text.endswith("%"):
        return parse_size(text), 1.0
    share = text[:-1].strip()
    if not share.isdigit() or not 1 <= int(share) <= 100:
        raise ConfigError(f"Invalid value {text} for configuration thermocline.local.bytes.max: 1% to 100%, or a size")
    return None, int(share) / 100
