"""The log cleaner's configs (`log.cleaner.*`): their values, and the rules for their combinations (Kafka's
`LogCleaner`, `KafkaConfig`). Pure. Kafka accepts a negative load factor or rate, but its cleaner then fails or does
nothing. This broker refuses negative values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.config.sources import Explicit
from broker.config.values import InvalidConfig
from hotstore.cleaning.cleaner_config import CleanerConfig

_MAP_BYTES_MIN: Final = 1 << 20
_LOAD_FACTOR: Final = "log.cleaner.io.buffer.load.factor"
_RATE: Final = "log.cleaner.io.max.bytes.per.second"


def cleaner_config(values: Explicit) -> CleanerConfig:
    """The cleaner's configuration, start-time and dynamic values together. Raises InvalidConfig, in Kafka's words if
    Kafka has the rule."""
    number, fraction = values.number, values.fraction
    threads = number("log.cleaner.threads")
    if threads < 1:
        raise InvalidConfig("Log cleaner threads should be at least 1")
    buffer_bytes = number("log.cleaner.dedupe.buffer.size")
    if buffer_bytes // threads <= _MAP_BYTES_MIN:
        raise InvalidConfig(
            "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
        )
    load_factor, rate = fraction(_LOAD_FACTOR), fraction(_RATE)
    if not 0 < load_factor <= 1:
        raise InvalidConfig(f"Invalid value {load_factor} for configuration {_LOAD_FACTOR}: above 0, at most 1")
    if not rate > 0:
        raise InvalidConfig(f"Invalid value {rate} for configuration {_RATE}: Value must be more than 0")
    return CleanerConfig(
        threads=threads,
        dedupe_buffer_bytes=buffer_bytes,
        io_buffer_bytes=number("log.cleaner.io.buffer.size"),
        io_buffer_load_factor=load_factor,
        backoff_ms=number("log.cleaner.backoff.ms"),
        io_bytes_per_s=rate,
        enabled=values.flag("log.cleaner.enable"),
    )


def cleaner_refusal(values: Explicit) -> str | None:
    """The reason why the cleaner's values contradict each other, or None. Values that are set for all brokers may
    contradict the values of one broker.
    """
    try:
        cleaner_config(values)
    except InvalidConfig as refused:
        return str(refused)
    return None


def check_cleaner_change(configured: Mapping[str, str], now: CleanerConfig, values: Explicit) -> None:
    """Check the change of the cleaner's configs from `configured` to `values` at run time. Raises InvalidConfig if the
    change breaks a rule of `cleaner_config`. Raises InvalidConfig, in Kafka's words, if the new number of threads is
    less than half or more than twice the old one."""
    if _cleaners(configured) == _cleaners(values.configured):
        return
    threads = cleaner_config(values).threads
    if threads < now.threads // 2:
        rule = "reduced to less than half"
    elif threads > now.threads * 2:
        rule = "increased to more than double"
    else:
        return
    raise InvalidConfig(
        "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads cannot be "
        f"{rule} the current value {now.threads} for configuration Invalid dynamic configuration"
    )


def _cleaners(configured: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in configured.items() if name.startswith("log.cleaner.")}
