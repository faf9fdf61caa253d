"""Decides client quotas (KIP-546). Pure.

Each entity is validated separately; a refused entity does not affect the other entities of the request. An alteration
without effect writes nothing.

Source: Kafka's ClientQuotaControlManager; refusals have its messages. Infinite values and NaN are also refused, because
the metadata is JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from broker.controller.decisions.decision import Decision, check_room
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.records import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    QuotaEntity,
)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_LARGEST: Final[Mapping[str, tuple[str, float]]] = {"LONG": ("a", 2.0**63), "INT": ("an", 2.0**31 - 1)}
_OF_CLIENTS: Final[Mapping[str, str]] = {
    PRODUCER_BYTE_RATE: "LONG",
    CONSUMER_BYTE_RATE: "LONG",
    REQUEST_PERCENTAGE: "DOUBLE",
    CONTROLLER_MUTATION_RATE: "DOUBLE",
}
_OF_ADDRESSES: Final[Mapping[str, str]] = {CONNECTION_CREATION_RATE: "INT"}
"""Kafka's type of each key."""


class Alteration(msgspec.Struct, frozen=True):
    """The alteration of one entity: pairs of type and name (None: the default), and pairs of key and value (None:
    remove the quota).
    """

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[tuple[str, float | None], ...]


Refusals: TypeAlias = Mapping[QuotaEntity, ApiError]
"""Refusals by entity; an entity without one was altered."""


def sorted_entity(entity: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity in the form of records. If a type occurs twice, the last name counts, as in Kafka."""
    return tuple(sorted(dict(entity).items()))


def alter(
    image: ClusterImage, alterations: Sequence[Alteration], is_address: Callable[[str], bool], image_bytes: int
) -> Decision[Refusals]:
    """Alter quotas; the refusal of each refused entity. `is_address`: whether the name of an `ip` entity is an address,
    or a host that has one."""
    existing = {each.entity: each.quotas for each in image.quotas}
    records: dict[QuotaEntity, ClientQuotas] = {}
    refusals: dict[QuotaEntity, ApiError] = {}
    seen: set[QuotaEntity] = set()
    for alteration in alterations:
        entity = sorted_entity(alteration.entity)
        try:
            if entity in seen or len(dict(alteration.ops)) < len(alteration.ops):
                raise _invalid(f"Ignoring duplicate entity {_printed(entity)}")
            quotas = _altered(existing.get(entity, {}), alteration.ops, _keys_of(entity, is_address))
            if quotas and entity not in existing:
                check_room(image_bytes)
        except ApiError as refused:
            refusals[entity] = refused
        else:
            if quotas != existing.get(entity, {}):
                records[entity] = ClientQuotas(entity, quotas)
        seen.add(entity)
    return Decision(tuple(records.values()), refusals)


def _keys_of(entity: QuotaEntity, is_address: Callable[[str], bool]) -> Mapping[str, str]:
    """The keys that may be set on the entity, with their types."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    names = dict(entity)
    if IP not in names:
        return _OF_CLIENTS
    if len(names) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    host = names[IP]
    if host is not None and not is_address(host):
        raise _invalid(f"{host} is not a valid IP or resolvable host.")
    return _OF_ADDRESSES


def _altered(
    existing: Mapping[str, float], ops: Sequence[tuple[str, float | None]], keys: Mapping[str, str]
) -> dict[str, float]:
    quotas = dict(existing)
    for key, value in ops:
        if value is None:
            quotas.pop(key, None)
        else:
            _check_value(key, value, keys)
            quotas[key] = value
    return quotas


def _check_value(key: str, value: float, keys: Mapping[str, str]) -> None:
    kind = keys.get(key)
    if kind is None:
        raise _invalid(f"Invalid configuration key {key}")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if kind in _LARGEST and value > _LARGEST[kind][1]:
        raise _invalid(f"Proposed value for {key} is too large for {_LARGEST[kind][0]} {kind}.")
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a finite number; remove it to set no limit")
    if kind in _LARGEST and value % 1.0 > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")


def _printed(entity: QuotaEntity) -> str:
    """The number in Kafka's format."""
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _invalid(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, why)
