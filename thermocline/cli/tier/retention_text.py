"""Retention of a topic as one sentence: when data is deleted from the disk, and when from the bucket. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from broker.config.units import show_duration
from thermocline.units import show_size


def retention_sentence(configs: Mapping[str, str | None]) -> str:
    """`configs`: `cleanup.policy`, `retention.*`, `local.retention.*`, `remote.storage.enable`, as from
    DescribeConfigs."""
    policy = (configs.get("cleanup.policy") or "").split(",") if "cleanup.policy" in configs else ["delete"]
    if "delete" not in policy:
        configs = {**configs, "retention.ms": "-1", "retention.bytes": "-1"}
    compacted, data = ("compacted, ", "the newest record of each key") if "compact" in policy else ("", "data")
    total = _limits(configs, "retention.ms", "retention.bytes")
    if configs.get("remote.storage.enable") != "true":
        return f"{compacted}not tiered: {data} stays on the disk {total}"
    local = _limits(configs, "local.retention.ms", "local.retention.bytes")
    if local == total:
        return f"{compacted}tiered: {data} stays on the disk and in the bucket {total}"
    sealed = f"{compacted}tiered: sealed segments are copied to the bucket, stay on the disk {local}"
    return f"{sealed}, and in the bucket {total}"


def _limits(configs: Mapping[str, str | None], time_name: str, size_name: str) -> str:
    time_ms, size_bytes = _number(configs, time_name), _number(configs, size_name)
    parts = []
    if time_ms is not None and time_ms >= 0:
        parts.append(f"for {show_duration(time_ms)}")
    if size_bytes is not None and size_bytes >= 0:
        parts.append(f"up to {show_size(size_bytes)} a partition")
    return ", ".join(parts) or "for ever"


def _number(configs: Mapping[str, str | None], name: str) -> int | None:
    """The limit's value; -2 in `local.retention.*` means the total limit."""
    text = configs.get(name)
    value = None if text is None else int(text)
    if value == -2 and name.startswith("local."):
        return _number(configs, name.removeprefix("local."))
    return value
