"""Throttles clients that are over a quota (KIP-219).

The request is served, and its response leaves at once with the throttle time. The connection is not read until that
time is over.

Brokers and super users have no quotas. `fetch.quota` throttles fetches, because a throttled fetch has no records. The
quotas measure:
* produced bytes: the body of a request. It counts when the request was taken, even while its batches wait for acks;
* request time: seconds of the event loop, from the dispatch of a request to its response or its first wait, and in the
  task that continues the request. Time in workers, on the disk and of other tasks does not count. 100 % is the whole
  loop.
* controller mutations: counted by the controller, whose throttle time is in its response; for topics that Metadata
  creates, by the client's broker.

Hot path while a quota is set: a run of produce requests costs 1.7 µs if no quota applies to its client, 2.6 µs with a
quota on bytes, 7 µs with quotas on bytes and time. Without any quota it costs 13 ns (`QuotaManagers.is_set`).

In a run of produce requests the last response has the throttle time. ApiVersions from version 3 on never has a throttle
time, but its client is muted. Source: Kafka's RequestHandlerHelper, KafkaApis.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial
from typing import Final

from broker.handlers.produce.routes import ProduceRoute
from broker.net.dispatch import Answer, Later, Part, Peer
from broker.quotas.client_quotas import PERCENT, QuotaKind, QuotaManagers, user_of
from broker.quotas.loop_time import LoopTime
from broker.wire.apis import ApiKey, api_of, is_flexible, is_served, response_header_version
from broker.wire.emit import SIZES, present
from broker.wire.framing import FRAME_PREFIX_SIZE, parse_request_header
from broker.wire.table import MESSAGES
from seams.files.disk import FileRange

_INT32: Final = struct.Struct(">i")
_FIELD: Final = "throttle_time_ms"
_MUTATES: Final = frozenset(
    map(int, (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.METADATA))
)


class RequestThrottle:
    """Throttles clients after their requests. Called only while a quota is set (`QuotaManagers.is_set`)."""

    def __init__(self, quotas: QuotaManagers) -> None:
        self._quotas = quotas

    def after(self, peer: Peer, frame: memoryview, answer: Answer, time: LoopTime) -> Answer:
        """Count the request in `frame` with its response `answer`, and throttle the client."""
        header, body_at = parse_request_header(frame)
        api_key, version = header.api_key, header.api_version
        if api_key == ApiKey.FETCH or self._quotas.is_free(peer) or not is_served(api_key, version):
            return answer
        user, client_id = user_of(peer.principal), header.client_id or ""
        produced_ms = 0
        if api_key == ApiKey.PRODUCE:
            produced_ms = self._produced(peer, user, client_id, len(frame) - body_at)
        if answer is None:
            return None  # acks=0: the quota on request time does not apply, as in Kafka
        end = partial(self._end, peer, user, client_id, api_key, version, time, produced_ms)
        if isinstance(answer, Later):
            answer.when_done(partial(_end_later, end))
        else:
            end(answer)
        return answer

    def after_run(self, peer: Peer, count: int, size: int, answer: Answer, seconds: float) -> Answer:
        """As `after`, for `count` produce requests of `size` bytes together."""
        route = peer.produce_route
        if self._quotas.is_free(peer) or not isinstance(route, ProduceRoute):
            return answer
        user, client_id, head = user_of(peer.principal), route.client_id, route.head
        throttle_ms = self._produced(peer, user, client_id, size - count * head.header_size)
        if head.acks != 0:
            throttle_ms = max(throttle_ms, self._took_time(peer, user, client_id, seconds))
        if not throttle_ms or answer is None:
            return answer
        set_ms = partial(_set, api_key=int(ApiKey.PRODUCE), version=head.version, throttle_ms=throttle_ms)
        if isinstance(answer, Later):
            answer.when_done(partial(_end_later, set_ms))
        else:
            set_ms(answer)
        return answer

    def _end(
        self,
        peer: Peer,
        user: str,
        client_id: str,
        api_key: int,
        version: int,
        time: LoopTime,
        produced_ms: int,
        parts: list[Part],
    ) -> None:
        throttle_ms = max(produced_ms, self._took_time(peer, user, client_id, time.seconds))
        if api_key in _MUTATES and (mutated_ms := _get(parts, api_key, version)):
            self._quotas.throttle(peer, QuotaKind.CONTROLLER_MUTATION, mutated_ms)
            throttle_ms = max(throttle_ms, mutated_ms)
        if throttle_ms:
            _set(parts, api_key=api_key, version=version, throttle_ms=throttle_ms)

    def _produced(self, peer: Peer, user: str, client_id: str, size: int) -> int:
        quotas = self._quotas
        if not quotas.produce.is_set:
            return 0
        return self._quotas.throttle(
            peer, QuotaKind.PRODUCE, quotas.produce.record(user, client_id, size, quotas.now_ms())
        )

    def _took_time(self, peer: Peer, user: str, client_id: str, seconds: float) -> int:
        quotas = self._quotas
        if not quotas.request.is_set:
            return 0
        throttle_ms = quotas.request.record(user, client_id, seconds * PERCENT, quotas.now_ms())
        return self._quotas.throttle(peer, QuotaKind.REQUEST, throttle_ms)


def _end_later(end: Callable[[list[Part]], None], later: Later) -> None:
    if later.parts is not None:
        later.parts = list(later.parts)
        end(later.parts)


@cache
def _place(api_key: int, version: int) -> int | None:
    """Position of the throttle time in a response frame, from the start or, if negative, from the end. None: there is
    no such field, or it follows fields of variable size. This broker's Produce responses have no tagged fields."""
    api = api_of(api_key)
    assert api is not None
    fields = present(MESSAGES[f"{api.name}Response"].fields, version)
    at = FRAME_PREFIX_SIZE + _INT32.size + response_header_version(api_key, version)
    for field in fields:
        if field.name == _FIELD:
            return at
        if field.is_array or field.type not in SIZES:
            break
        at += SIZES[field.type]
    if fields and fields[-1].name == _FIELD and (api_key == ApiKey.PRODUCE or not is_flexible(api_key, version)):
        return -_INT32.size - is_flexible(api_key, version)
    return None


def _get(parts: list[Part], api_key: int, version: int) -> int:
    place, first = _place(api_key, version), parts[0]
    if place is None:
        return 0  # Metadata below version 3
    assert not isinstance(first, FileRange)
    (throttle_ms,) = _INT32.unpack_from(first, place)
    return int(throttle_ms)


def _set(parts: list[Part], *, api_key: int, version: int, throttle_ms: int) -> None:
    """Put the throttle time into an encoded response."""
    place = _place(api_key, version)
    if place is None:
        return
    index = 0 if place >= 0 else -1
    part = parts[index]
    assert not isinstance(part, FileRange)
    changed = bytearray(part)
    _INT32.pack_into(changed, place if place >= 0 else len(changed) + place, throttle_ms)
    parts[index] = bytes(changed)
