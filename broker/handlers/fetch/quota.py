"""The quotas on one consumer's fetch.

As in Kafka, a throttled fetch gets no records. Its empty response leaves at once with the throttle time, and its
session does not change. A client that fetched nothing in all windows gets the records and is throttled afterwards,
because otherwise a batch above the quota could never be read. The size of a response is estimated before it is encoded.
The estimate is wrong by less than a third of the size of the response's headers. Request time covers the dispatch, its
task, and the attempts of a long poll. Source: Kafka's KafkaApis.handleFetchRequest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.context import Call, Context
from broker.handlers.fetch.attempt import FetchAttempt
from broker.quotas.client_quotas import PERCENT, QuotaKind, QuotaManagers, user_of
from broker.quotas.loop_time import LoopTime

_HEAD_BYTES: Final = 40
_PARTITION_BYTES: Final = 45


class FetchQuota:
    __slots__ = ("_client_id", "_peer", "_quotas", "_time", "_user")

    def __init__(self, quotas: QuotaManagers, call: Call, time: LoopTime) -> None:
        self._quotas = quotas
        self._peer = call.peer
        self._user = user_of(call.peer.principal)
        self._client_id = call.client_id
        self._time = time

    def cap(self, bytes_max: int) -> int:
        """Largest size of the fetch: the bytes that the quota allows in all windows together."""
        most = self._quotas.fetch.most_at_once(self._user, self._client_id)
        return bytes_max if most is None else min(bytes_max, most)

    def timed(self, attempt: Callable[[], FetchAttempt]) -> FetchAttempt:
        """Make an attempt and count its time. Attempts after a partition moved are counted too."""
        starts = self._time.start()
        try:
            return attempt()
        finally:
            if starts:
                self._time.stop()

    def throttle(self, result: FetchAttempt) -> tuple[int, bool]:
        """Throttle the client if it exceeds a quota. Returns the throttle time in ms, and whether it gets the
        records."""
        quotas, user, client_id = self._quotas, self._user, self._client_id
        now_ms = quotas.now_ms()
        took_ms = fetched_ms = 0
        is_served = True
        if quotas.request.is_set:
            took_ms = quotas.request.record(user, client_id, self._time.seconds * PERCENT, now_ms)
            is_served = not took_ms
        if quotas.fetch.is_set:
            size = result.size + _HEAD_BYTES + _PARTITION_BYTES * (len(result.answers) + len(result.unknown))
            fetched_ms, is_fetched = quotas.fetch.reserve(user, client_id, size, now_ms, is_wanted=is_served)
            is_served = is_served and is_fetched
        throttle_ms = max(took_ms, fetched_ms)
        if throttle_ms:
            quotas.throttle(self._peer, QuotaKind.FETCH if fetched_ms > took_ms else QuotaKind.REQUEST, throttle_ms)
        return throttle_ms, is_served


def fetch_quota(context: Context, call: Call, *, is_of_replica: bool) -> FetchQuota | None:
    """The quotas on a fetch; None: no quota is set, or a broker fetches."""
    quotas = context.quotas
    if not quotas.is_set or is_of_replica or quotas.is_free(call.peer):
        return None
    return FetchQuota(quotas, call, call.time or LoopTime(context.world.clock.monotonic_s))
