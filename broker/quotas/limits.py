"""The quota that applies to a client: the most specific of eight levels (KIP-13, KIP-55).

1. user and client id
2. user and default client id
3. user
4. default user and client id
5. default user and default client id
6. default user
7. client id
8. default client id

Levels 3 and 6 have one rate for all clients of a user. Levels 7 and 8 have one rate for all users of a client id.
Source: Kafka's ClientQuotaManager.DefaultQuotaCallback. It first selects the rate to measure, then the quota of that
rate. If level 2 or 5 applies to a client without an id, the client thus has the quota of its user.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, TypeAlias

from broker.metadata.records import ClientQuotas

_DEFAULT: Final = ""  # an empty name is refused, so no entity has it

_FOUND_MAX: Final = 10_000  # clients whose quota is remembered, 0.3 KB each
_ID_CHARS_MAX: Final = 256
"""Longest client id stored in full; of a longer id the digest is stored. Real clients have none, but any client may
send any number of ids of 32 KB, some before a login."""

SensorKey: TypeAlias = tuple[str, str]
"""User and client id whose use is measured together; empty: any user or client id."""


class Limits:
    """The quotas of one key, such as `producer_byte_rate`."""

    __slots__ = ("_by_entity", "_found")

    def __init__(self, quotas: Iterable[ClientQuotas], key: str) -> None:
        self._found: dict[SensorKey, tuple[SensorKey, float] | None] = {}
        self._by_entity: dict[tuple[str | None, str | None], float] = {}
        for each in quotas:
            if key in each.quotas:
                names = {kind: _DEFAULT if name is None else name for kind, name in each.entity}
                self._by_entity[names.get("user"), names.get("client-id")] = each.quotas[key]

    def __bool__(self) -> bool:
        return bool(self._by_entity)

    def of(self, user: str, client_id: str) -> tuple[SensorKey, float] | None:
        """The key of the rate that this client shares with others, and the quota of that rate. None if there is no
        quota."""
        client = user, client_id
        if client in self._found:
            return self._found[client]
        key = self._measured(user, client_id)
        bound = self._bound(*key)
        found = None if bound is None else ((key[0], _short(key[1])), bound)
        if len(client_id) > _ID_CHARS_MAX:
            return found
        if len(self._found) >= _FOUND_MAX:
            self._found.clear()
        self._found[client] = found
        return found

    def _measured(self, user: str, client_id: str) -> SensorKey:
        known = self._by_entity
        # An empty user or id does not stand for the default entity, so it is not looked up.
        if (user and client_id and (user, client_id) in known) or (user and (user, _DEFAULT) in known):
            return user, client_id
        if user and (user, None) in known:
            return user, ""
        if (client_id and (_DEFAULT, client_id) in known) or (_DEFAULT, _DEFAULT) in known:
            return user, client_id
        if (_DEFAULT, None) in known:
            return user, ""
        return "", client_id

    def _bound(self, user: str, client_id: str) -> float | None:
        if user and client_id:
            return self._first((user, client_id), (user, _DEFAULT), (_DEFAULT, client_id), (_DEFAULT, _DEFAULT))
        if user:
            return self._first((user, None), (_DEFAULT, None))
        return self._first((None, client_id), (None, _DEFAULT)) if client_id else None

    def _first(self, *entities: tuple[str | None, str | None]) -> float | None:
        return next((self._by_entity[entity] for entity in entities if entity in self._by_entity), None)


def _short(client_id: str) -> str:
    return client_id if len(client_id) <= _ID_CHARS_MAX else sha256(client_id.encode()).hexdigest()
