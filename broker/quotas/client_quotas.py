"""The quotas of clients' requests on one broker: produced and fetched bytes, request time, controller mutations.

Use of a kind is measured only while a quota of that kind is set, so without quotas a request costs one attribute read.
The quotas have changed if `image.quotas` is another object. Source: Kafka's ClientQuotaManager,
ClientRequestQuotaManager, ControllerMutationQuotaManager.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.records import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)
from broker.net.dispatch import Peer
from broker.quotas.limits import Limits
from broker.quotas.rates import Rate, TokenBucket, Windows
from broker.quotas.sensors import Sensors

PERCENT: Final = 100.0  # of request time: one second of the event loop per second

_REFUSED: Final = "The throttling quota has been exceeded."


class QuotaKind(StrEnum):
    """The reason for a throttle; the label of a counter."""

    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"
    CONTROLLER_MUTATION = "controller-mutation"


class RateQuota:
    """One kind of quota on rates. `throttle_ms_max`: longest throttle; for request time one window, as in Kafka."""

    __slots__ = ("_limits", "_sensors", "_throttle_ms_max", "is_set", "windows")

    def __init__(self, windows: Windows, throttle_ms_max: int | None = None) -> None:
        self.windows = windows
        self.is_set = False
        self._throttle_ms_max = throttle_ms_max
        self._limits = Limits((), "")
        self._sensors: Sensors[Rate] = Sensors()

    def set(self, limits: Limits) -> None:
        """Replace the quotas. Earlier use of clients counts against the new ones."""
        self._limits, self.is_set = limits, bool(limits)
        if not limits:
            self._sensors.clear()

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count the client's use. Returns for how long it is throttled, in ms."""
        if (found := self._limits.of(user, client_id)) is None:
            return 0
        key, bound = found
        rate = self._sensors.get(key, now_ms, self._new_rate)
        rate.record(value, now_ms)
        return self._capped(rate.throttle_ms(bound, now_ms))

    def reserve(
        self, user: str, client_id: str, value: float, now_ms: int, *, is_wanted: bool = True
    ) -> tuple[int, bool]:
        """Count a read that may be refused. Returns for how long the client is throttled, in ms, and whether the read
        is allowed. A refused read is not counted. A client without use in the windows may read above its quota, and is
        throttled afterwards; otherwise a batch larger than the quota could never be read. If `is_wanted` is False, the
        caller refuses the read for another reason."""
        if (found := self._limits.of(user, client_id)) is None:
            return 0, True
        key, bound = found
        rate = self._sensors.get(key, now_ms, self._new_rate)
        is_first = rate.total(now_ms) <= 0
        rate.record(value, now_ms)
        throttle_ms = self._capped(rate.throttle_ms(bound, now_ms))
        is_served = is_wanted and (is_first or not throttle_ms)
        if not is_served:
            rate.record(-value, now_ms)
        return throttle_ms, is_served

    def most_at_once(self, user: str, client_id: str) -> int | None:
        """The most that an idle client may use at once; None if there is no quota."""
        found = self._limits.of(user, client_id)
        if found is None:
            return None
        return int(found[1] * self.windows.least_span_ms / 1000)

    def _new_rate(self) -> Rate:
        return Rate(self.windows)

    def _capped(self, throttle_ms: int) -> int:
        return throttle_ms if self._throttle_ms_max is None else min(throttle_ms, self._throttle_ms_max)


class Mutations:
    """The controller mutations of one request (KIP-599). In strict mode changes are refused while the bucket has no
    tokens. In permissive mode, for clients that do not know the error, changes are made and the client is throttled."""

    __slots__ = ("_bound", "_bucket", "_is_strict", "_now_ms", "_throttled_until_ms")

    def __init__(self, bucket: TokenBucket | None, bound: float, now_ms: Callable[[], int], *, is_strict: bool) -> None:
        self._bucket = bucket
        self._bound = bound
        self._now_ms = now_ms
        self._is_strict = is_strict
        self._throttled_until_ms = 0

    def charge(self) -> Callable[[int], None]:
        """A function that counts the partitions of one change. It counts once, even if it is called for several
        attempts of the change. It raises ApiError THROTTLING_QUOTA_EXCEEDED.
        """
        charged = False

        def count(partitions: int) -> None:
            nonlocal charged
            if not charged:
                self._count(partitions)
                charged = True

        return count

    @property
    def throttle_ms(self) -> int:
        """For how long the client is throttled from now on."""
        return max(self._throttled_until_ms - self._now_ms(), 0) if self._throttled_until_ms else 0

    def _count(self, partitions: int) -> None:
        bucket, now_ms = self._bucket, self._now_ms()
        if bucket is None:
            return
        if self._is_strict:
            throttle_ms = bucket.throttle_ms(self._bound, now_ms)
            if throttle_ms:
                self._throttled_until_ms = now_ms + throttle_ms
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _REFUSED)
            bucket.take(partitions, self._bound, now_ms)
            return
        bucket.take(partitions, self._bound, now_ms)
        if throttle_ms := bucket.throttle_ms(self._bound, now_ms):
            self._throttled_until_ms = now_ms + throttle_ms


class QuotaManagers:
    """All kinds of quotas, under Kafka's name. `is_set`: a quota of a user or client id is set. `monotonic_s`: the
    clock. `is_free` says whether quotas do not apply to a peer. They do not apply to brokers and super users. In Kafka
    they apply to super users.
    """

    def __init__(
        self,
        windows: Windows,
        controller_windows: Windows,
        monotonic_s: Callable[[], float],
        is_free: Callable[[Peer], bool],
    ) -> None:
        self.is_set = False
        self.is_free = is_free
        self.produce = RateQuota(windows)
        self.fetch = RateQuota(windows)
        self.request = RateQuota(windows, throttle_ms_max=windows.size_ms)
        self._controller_windows = controller_windows
        self._mutation_limits = Limits((), "")
        self._buckets: Sensors[TokenBucket] = Sensors()
        self._monotonic_s = monotonic_s
        self._quotas: tuple[ClientQuotas, ...] = ()
        self.throttled: dict[QuotaKind, int] = dict.fromkeys(QuotaKind, 0)
        """Answers that throttled their clients, since the start."""
        self.throttled_ms: dict[QuotaKind, int] = dict.fromkeys(QuotaKind, 0)
        """The sum of their throttle times."""

    def apply_image(self, image: ClusterImage) -> None:
        quotas = image.quotas
        if quotas is self._quotas:
            return
        self._quotas = quotas
        self.produce.set(Limits(quotas, PRODUCER_BYTE_RATE))
        self.fetch.set(Limits(quotas, CONSUMER_BYTE_RATE))
        self.request.set(Limits(quotas, REQUEST_PERCENTAGE))
        self._mutation_limits = Limits(quotas, CONTROLLER_MUTATION_RATE)
        if not self._mutation_limits:
            self._buckets.clear()
        rates = self.produce, self.fetch, self.request
        self.is_set = bool(self._mutation_limits) or any(quota.is_set for quota in rates)

    def now_ms(self) -> int:
        return int(self._monotonic_s() * 1000)

    def mutations(self, peer: Peer, client_id: str, *, is_strict: bool) -> Mutations:
        """The mutations of one client's request. The client may be connected to another broker."""
        found = None
        if self._mutation_limits and not self.is_free(peer):
            found = self._mutation_limits.of(user_of(peer.principal), client_id)
        if found is None:
            return Mutations(None, 0.0, self.now_ms, is_strict=is_strict)
        key, bound = found
        now_ms = self.now_ms()
        bucket = self._buckets.get(key, now_ms, lambda: TokenBucket(self._controller_windows, bound, now_ms))
        return Mutations(bucket, bound, self.now_ms, is_strict=is_strict)

    def throttle(self, peer: Peer, kind: QuotaKind, throttle_ms: int) -> int:
        """Mute the peer's connection for the throttle time, if that is above 0."""
        if throttle_ms:
            self.throttled[kind] += 1
            self.throttled_ms[kind] += throttle_ms
            if peer.throttle is not None:
                peer.throttle(throttle_ms)
        return throttle_ms


def user_of(principal: str) -> str:
    """The name in a principal, such as `User:alice`."""
    return principal.partition(":")[2]
