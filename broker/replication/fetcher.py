"""Fetches from one leader for all replicas of one lane: one request at a time.

- A fetch is sent when the records of the previous response are flushed (in `os` mode: written). So the fetch offset of
  each replica is its flushed end (R3).
- A replica that was refused or failed does not delay the others. Every wait has an end. A response of an ended session
  is dropped.
- A request visits only replicas that changed: by `follow`, `leave`, `wake`, a response, or the end of a delay.
- A throttled replica is left out while the quota is exceeded (`ThrottledReplicas`). A replica of the other lane moves
  between two requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Protocol

from broker.error_codes import ErrorCode
from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import FetchSessionHandler, Key, Limits, topic_id_of
from broker.replication.follower import FetchPosition
from broker.replication.replication_quota import ThrottledReplicas
from broker.wire.messages import FetchRequest, FetchResponse, FetchResponsePartition
from logformat.errors import ThermoclineError
from seams.loop.turns import Turns, next_turn

log = logging.getLogger(__name__)

_REFUSED_S: Final = 0.1  # pause of a refused replica, because the images of two brokers differ for a moment
_FAILED_S: Final = 1.0  # pause of a replica that could not apply a response
_NOBODY_THERE_S: Final = (0.1, 1.0)  # first and longest wait between requests to a broker that does not answer


class FetchTarget(Protocol):
    """One replica that the fetcher fills. Only `wait_flushed` waits."""

    @property
    def is_flushed(self) -> bool:
        """Whether `wait_flushed` returns at once, as in `os` mode."""

    def next_fetch(self) -> FetchPosition | None:
        """The next fetch position. None while the log is truncated, restarted or offline, and after the end of the
        role. The replica calls `Fetcher.wake` after every change outside `answered` and `refused`."""

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        """Apply the response to `asked`, which was sent in the session of `broker_epoch`. Returns whether
        `wait_flushed` has to wait. Raises ThermoclineError if nothing was applied; then the fetcher repeats the fetch
        later."""

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        """The leader answered `asked` with an error. Returns whether the replica handles the error."""

    async def wait_flushed(self) -> None:
        """Wait until all applied records are flushed, or cannot be flushed any more."""


@dataclass(eq=False, repr=False)
class Fetcher:
    """The fetcher from one broker. `ask` sends a request and raises ConnectionError, TimeoutError. `session` returns
    this broker's id, broker epoch and process by the image. `other`: the fetcher of the other lane, if there is one."""

    leader_id: int
    _ask: Callable[[FetchRequest], Awaitable[FetchResponse]]
    _session: Callable[[], tuple[int, int, str]]
    _limits: Limits
    _throttled: ThrottledReplicas
    _lane: FetchLane

    def __post_init__(self) -> None:
        self.other: Fetcher | None = None
        self._fetch_session = FetchSessionHandler()
        self._copies: dict[Key, FetchTarget] = {}
        self._not_before_s: dict[Key, float] = {}
        self._later: list[tuple[float, Key]] = []  # a heap of the delays; an outdated entry stays until its time
        self._changed: dict[Key, None] = {}  # visited before the next request
        self._moved = asyncio.Event()
        self._is_asking = False

    def has(self, key: Key) -> bool:
        return key in self._copies

    def is_throttled(self, key: Key) -> bool:
        return key in self._throttled

    def is_asking(self, key: Key) -> bool:
        return self._is_asking and key in self._fetch_session.sent

    def follow(self, key: Key, copy: FetchTarget, *, is_throttled: bool = False) -> None:
        """Fetch into `copy` from the next request on."""
        self._copies[key] = copy
        self._fetch_session.resend(key)  # the leader may have answered the previous role at the same position
        self._not_before_s.pop(key, None)
        self._throttled.began(key)
        self.throttle(key, is_throttled=is_throttled)

    def leave(self, key: Key, copy: FetchTarget) -> None:
        """Stop fetching into `copy`, whose role ended. Later responses are dropped."""
        if self._copies.get(key) is copy:
            del self._copies[key]
            self._not_before_s.pop(key, None)
            self.throttle(key, is_throttled=False)

    def throttle(self, key: Key, *, is_throttled: bool) -> None:
        self._throttled.set(key, is_throttled=is_throttled)
        self.wake(key)

    def rate_changed(self) -> None:
        self._moved.set()

    def wake(self, key: Key) -> None:
        """Visit the replica before the next request, because its next fetch position changed."""
        self._changed[key] = None
        self._moved.set()

    async def run(self) -> None:
        pause_s, longest_s = _NOBODY_THERE_S
        self._fetch_session.reset()  # restarted after a failure: whether the last request arrived is unknown
        self._changed |= dict.fromkeys(self._copies)
        while True:
            self._update_request()
            if not self._fetch_session.wants_any:
                self._lane.rest()
                self._moved.clear()
                await _first(self._moved.wait(), self._wait_s())
                continue
            session = self._session()
            asked_s = _now_s()
            limits = self._throttled.limits(self._limits, asked_s)
            limits = self._lane.limits(limits, asked_s, is_only=self.other is None or not self.other._copies)
            self._is_asking = True
            try:
                answer = await self._ask(self._fetch_session.next_request(*session, limits))
            except (ConnectionError, TimeoutError) as nobody:
                log.debug("replicas led by broker %d wait: %s", self.leader_id, nobody)
                self._fetch_session.reset()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            finally:
                self._is_asking = False
            pause_s = _NOBODY_THERE_S[0]
            self._lane.heard(answer.quiet_ms)
            if session != self._session():
                self._fetch_session.reset()  # the response belongs to the previous session of this broker
                continue
            asked = self._fetch_session.sent
            if not self._fetch_session.answered(answer):
                await asyncio.sleep(_REFUSED_S)  # the fetch session is over, or the leader is about to stop
                continue
            came = await self._take(answer, asked, session)
            if rest_s := self._lane.pause_s(came, asked_s, _now_s()):
                await asyncio.sleep(rest_s)

    def _update_request(self) -> None:
        now_s = _now_s()
        self._changed |= dict.fromkeys(self._throttled.look(now_s))
        while self._later and self._later[0][0] <= now_s:
            _, key = heappop(self._later)
            if self._not_before_s.get(key, now_s) <= now_s:
                self._not_before_s.pop(key, None)
                self._changed[key] = None
        copies, delayed, want, holds = self._copies, self._not_before_s, self._fetch_session.want, self._throttled.holds
        for key in self._changed:
            copy = copies.get(key)
            at = None if copy is None or key in delayed else copy.next_fetch()
            want(key, None if at is None or holds(key, at) else at)
        self._changed.clear()

    def _wait_s(self) -> float | None:
        """Seconds until a replica that was left out may be fetched again; None if only a `wake` can change that."""
        held_s = self._throttled.wait_s(_now_s())
        later_s = max(self._later[0][0] - _now_s(), 0.0) if self._later else None
        return held_s if later_s is None else later_s if held_s is None else min(held_s, later_s)

    async def _take(self, answer: FetchResponse, asked: dict[Key, FetchPosition], session: tuple[int, int, str]) -> int:
        unsettled: list[FetchTarget] = []
        told: list[tuple[Key, FetchTarget, int]] = []
        came = 0
        turns = Turns()
        for topic_id, part in ((topic.topic_id, part) for topic in answer.responses for part in topic.partitions):
            key = topic_id.int, part.partition_index
            copy, at = self._copies.get(key), asked.get(key)
            if copy is not None and at is not None and self._take_partition(key, copy, at, part, session[1]):
                came += len(part.records or b"")
                told.append((key, copy, part.high_watermark))
                if not copy.is_flushed:
                    unsettled.append(copy)
            if turns.over():
                await next_turn()
                if session != self._session():  # the fetches of the other partitions belong to the previous session
                    self._fetch_session.reset()
                    break
        for copy in unsettled:  # their syncs already run concurrently
            await copy.wait_flushed()
        for key, copy, high_watermark in told:
            self._move_lane(key, copy, high_watermark)
        return came

    def _move_lane(self, key: Key, copy: FetchTarget, high_watermark: int) -> None:
        """Move the replica to the other lane if it belongs there after a response with this high watermark."""
        at = copy.next_fetch()
        if self.other is None or at is None or self._lane.keeps(key, at, high_watermark):
            return
        if self._copies.get(key) is copy:  # its role may have ended meanwhile
            is_throttled = self.is_throttled(key)
            self.leave(key, copy)
            self.other.follow(key, copy, is_throttled=is_throttled)

    def _take_partition(
        self, key: Key, copy: FetchTarget, at: FetchPosition, part: FetchResponsePartition, broker_epoch: int
    ) -> bool:
        self._changed[key] = None
        if part.error_code == ErrorCode.NONE:
            if key in self._throttled:
                self._throttled.came(key, len(part.records or b""), part.high_watermark, _now_s())
            try:
                is_taken = copy.answered(at, part, broker_epoch)
                if not is_taken and copy.next_fetch() is None:
                    # The log is being truncated or restarted, and may need the same position again.
                    self._fetch_session.resend(key)
                return is_taken
            except ThermoclineError as failure:
                place = f"{topic_id_of(key[0])}-{key[1]}"
                log.warning("%s cannot use the response of broker %d: %s", place, self.leader_id, failure)
                self._delay(key, _FAILED_S)
        elif copy.refused(at, part):
            self._fetch_session.resend(key)
        else:
            self._delay(key, _REFUSED_S)
        return False

    def _delay(self, key: Key, delay_s: float) -> None:
        self._not_before_s[key] = until_s = _now_s() + delay_s
        heappush(self._later, (until_s, key))
        self._fetch_session.resend(key)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _first(moved: Awaitable[object], wait_s: float | None) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await moved
    except TimeoutError:
        pass  # a refused replica may ask again
