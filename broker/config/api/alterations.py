"""What AlterConfigs and IncrementalAlterConfigs ask for, whatever it is set on: the texts that would stand then.

Owns the four operations of KIP-339, what no request may say (a name twice, null), and how much is kept. Pure. Always
true: what comes out is bounded and means nothing yet: whoever keeps it judges it (topic_changes, broker_changes). Must
not know topics, brokers or which configs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from broker.config.values import InvalidConfig
from logformat.errors import InvalidRequest

CONFIGS_BYTES_MAX: Final = 4096
"""Of a topic's explicit configs, as JSON: `cluster.json` holds them, and the root of each of its partitions, which has
8 KiB of its 64 to spare for a claim. All of Kafka's configs at their longest numbers take 2 KiB."""
_SHOWN_CHARS: Final = 80


class AlterOperation(IntEnum):
    """What to do with a config; numbers as IncrementalAlterConfigs carries them."""

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
"""The text of a list config where nothing is set on it; InvalidConfig when the operation does not fit the config."""


def altered(existing: Mapping[str, str], alterations: Sequence[Alteration], list_before: ListBefore) -> dict[str, str]:
    """The texts after the alterations. InvalidRequest for a malformed request, InvalidConfig for one too large."""
    # Before anything is read: what does not fit is not worth the time of the loop.
    judge_size({name: value for name, _, value in alterations}, CONFIGS_BYTES_MAX)
    names = [alteration.name for alteration in alterations]
    if len(set(names)) != len(names):
        raise _named_twice()
    changed = dict(existing)
    for name, operation, value in alterations:
        if operation is AlterOperation.DELETE:
            changed.pop(name, None)  # also a name that nobody knows, as in Kafka
        elif value is None:
            raise _null(name)
        elif operation is AlterOperation.SET:
            changed[name] = value
        else:
            before = list_before(name, operation)
            changed[name] = _list_after(changed.get(name, before), operation, value)
    return changed


def replaced(given: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The texts when `given` takes the place of all there were (AlterConfigs). Raises as `altered`."""
    judge_size(dict(given), CONFIGS_BYTES_MAX)
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
    """Bytes, as JSON."""
    return len(msgspec.json.encode(configs))


def judge_size(configs: Mapping[str, str | None], bytes_max: int) -> None:
    """InvalidConfig, naming the longest, when they take more than `bytes_max` bytes as JSON."""
    size = size_of(configs)
    if size > bytes_max:
        name = max(configs, key=lambda name: len(name) + len(configs[name] or ""))
        raise InvalidConfig(
            f"These configs take {size} bytes, at most {CONFIGS_BYTES_MAX} are kept of a topic or broker (as JSON, "
            f"names included): shorten the longest, {name[:_SHOWN_CHARS]}"
        )
