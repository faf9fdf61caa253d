"""Copies what one other broker leads to this broker's replicas: one question at a time, for all of a lane together.

Owns the loop. Always true: a question is asked when everything that the last answer brought is flushed (`os`: written),
so each replica's offset in it is its flushed end (R3); a replica that was refused, or failed, keeps no other waiting;
an answer to a session that is over is dropped; every wait has an end; a question looks only at those replicas that came
(`follow`), went (`leave`), were answered, said that they moved (`wake`), or waited their time; who is throttled is left
out of it while too much came (`ThrottledReplicas`); who belongs in the other lane goes there between two questions.
Must not know how a replica takes what came (`FetchTarget`), who leads what, nor where a broker is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from typing import Final, Protocol

from broker.error_codes import ErrorCode
from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import FetchSessionHandler, Key, Limits, topic_id_of
from broker.replication.follower import FetchPosition
from broker.replication.throttled_replicas import ThrottledReplicas
from broker.wire.messages import FetchRequest, FetchResponse, FetchResponsePartition
from logformat.errors import ThermoclineError
from seams.turns import Turns, next_turn

log = logging.getLogger(__name__)

_REFUSED_S: Final = 0.1  # until a replica that its leader refused is asked for again: images differ for a moment
_FAILED_S: Final = 1.0  # until one that could not take what came tries again
_NOBODY_THERE_S: Final = (0.1, 1.0)  # between questions to a broker that does not answer: first, and at most


class FetchTarget(Protocol):
    """One replica that is fetched into. No call but `settled` waits."""

    @property
    def is_settled(self) -> bool:
        """Whether `settled` has nothing to wait for, as where the page cache counts (`os`)."""
        ...

    def next_fetch(self) -> FetchPosition | None:
        """None while it is cut, begins elsewhere, is offline, or its role is over. Whenever that changes, other than
        within `answered` and `refused`, its fetcher is told (`Fetcher.wake`): it is not asked in between."""
        ...

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        """Take what came for `asked`, which this broker asked in the session of `broker_epoch`; whether there is
        something to wait for. Raises ThermoclineError: nothing of it was taken, ask again later."""
        ...

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        """The leader answered `asked` with an error; whether the replica knows what to do about it."""
        ...

    async def settled(self) -> None:
        """Wait until what was taken is flushed, or never will be."""
        ...


class Fetcher:
    """From one broker. `ask` sends a question: ConnectionError, TimeoutError. `session` is this broker's: its id, and
    its broker epoch and its process as the image has them. `throttled_replicas`: who is held back when too much came.
    `other`: of the other lane to the same broker, None where there is none."""

    def __init__(
        self,
        leader_id: int,
        ask: Callable[[FetchRequest], Awaitable[FetchResponse]],
        session: Callable[[], tuple[int, int, str]],
        limits: Limits,
        throttled: ThrottledReplicas,
        lane: FetchLane,
    ) -> None:
        self.leader_id = leader_id
        self._ask = ask
        self._session = session
        self._limits = limits
        self._throttled = throttled
        self._lane = lane
        self.other: Fetcher | None = None
        self._asking = FetchSessionHandler()
        self._copies: dict[Key, FetchTarget] = {}
        self._not_before_s: dict[Key, float] = {}
        self._later: list[tuple[float, Key]] = []  # a heap of these; those over are in it until their time comes
        self._changed: dict[Key, None] = {}  # to be looked at before the next question
        self._moved = asyncio.Event()
        self._is_asking = False

    def has(self, key: Key) -> bool:
        """Whether it is fetched into, here."""
        return key in self._copies

    def is_throttled(self, key: Key) -> bool:
        """Whether it is held back when too much came."""
        return key in self._throttled

    def is_asking(self, key: Key) -> bool:
        """Whether a question that has it is under way."""
        return self._is_asking and key in self._asking.told

    def follow(self, key: Key, copy: FetchTarget, *, is_throttled: bool = False) -> None:
        """Fetch into it from the next question on."""
        self._copies[key] = copy
        self._not_before_s.pop(key, None)
        self._throttled.began(key)
        self.throttle(key, is_throttled=is_throttled)

    def leave(self, key: Key, copy: FetchTarget) -> None:
        """Its role is over: what comes for it is dropped."""
        if self._copies.get(key) is copy:
            del self._copies[key]
            self._not_before_s.pop(key, None)
            self.throttle(key, is_throttled=False)

    def throttle(self, key: Key, *, is_throttled: bool) -> None:
        """Whether it is held back when too much came."""
        self._throttled.set(key, is_throttled=is_throttled)
        self.wake(key)

    def look_again(self) -> None:
        """The rate is another one."""
        self._moved.set()

    def wake(self, key: Key) -> None:
        """What it asks for next is something else, or nothing, or something at last."""
        self._changed[key] = None
        self._moved.set()

    async def keep(self) -> None:
        """Until cancelled."""
        pause_s, longest_s = _NOBODY_THERE_S
        self._asking.lost()  # begun again after a failure: what its last question told is not known to be heard
        self._changed |= dict.fromkeys(self._copies)
        while True:
            self._look()
            if not self._asking.wants_any:
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
                answer = await self._ask(self._asking.question(*session, limits))
            except (ConnectionError, TimeoutError) as nobody:
                log.debug("replicas led by broker %d wait: %s", self.leader_id, nobody)
                self._asking.lost()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            finally:
                self._is_asking = False
            pause_s = _NOBODY_THERE_S[0]
            self._lane.heard(answer.quiet_ms)
            if session != self._session():
                self._asking.lost()  # what it says of the log start, and of what may be given, was said to another
                continue
            asked = self._asking.told
            if not self._asking.answered(answer):
                await asyncio.sleep(_REFUSED_S)  # a session that is over, or a broker that is about to stop
                continue
            came = await self._take(answer, asked, session)
            if rest_s := self._lane.pause_s(came, asked_s, _now_s()):
                await asyncio.sleep(rest_s)

    def _look(self) -> None:
        """Have the next question ask for what those that changed want now."""
        now_s = _now_s()
        self._changed |= dict.fromkeys(self._throttled.look(now_s))
        while self._later and self._later[0][0] <= now_s:
            _, key = heappop(self._later)
            if self._not_before_s.get(key, now_s) <= now_s:
                self._not_before_s.pop(key, None)
                self._changed[key] = None
        copies, delayed, want, holds = self._copies, self._not_before_s, self._asking.want, self._throttled.holds
        for key in self._changed:
            copy = copies.get(key)
            at = None if copy is None or key in delayed else copy.next_fetch()
            want(key, None if at is None or holds(key, at) else at)
        self._changed.clear()

    def _wait_s(self) -> float | None:
        """Until somebody may ask again who is not asked for now; None: nobody but by a `wake`."""
        held_s = self._throttled.wait_s(_now_s())
        later_s = max(self._later[0][0] - _now_s(), 0.0) if self._later else None
        return held_s if later_s is None else later_s if held_s is None else min(held_s, later_s)

    async def _take(self, answer: FetchResponse, asked: dict[Key, FetchPosition], session: tuple[int, int, str]) -> int:
        """How many bytes of records came. The rest of an answer whose session ended meanwhile is dropped."""
        unsettled: list[FetchTarget] = []
        told: list[tuple[Key, FetchTarget, int]] = []
        came = 0
        turns = Turns()
        for topic_id, part in ((topic.topic_id, part) for topic in answer.responses for part in topic.partitions):
            key = topic_id.int, part.partition_index
            copy, at = self._copies.get(key), asked.get(key)
            if copy is not None and at is not None and self._took(key, copy, at, part, session[1]):
                came += len(part.records or b"")
                told.append((key, copy, part.high_watermark))
                if not copy.is_settled:
                    unsettled.append(copy)
            if turns.over():
                await next_turn()
                if session != self._session():
                    self._asking.lost()
                    break
        for copy in unsettled:  # their syncs run together since each took what came
            await copy.settled()
        for key, copy, high_watermark in told:
            self._sort(key, copy, high_watermark)
        return came

    def _sort(self, key: Key, copy: FetchTarget, high_watermark: int) -> None:
        """It goes to the other lane where it belongs there, after an answer with this high watermark."""
        at = copy.next_fetch()
        if self.other is None or at is None or self._lane.keeps(key, at, high_watermark):
            return
        if self._copies.get(key) is copy:  # its role may be over meanwhile
            is_throttled = self.is_throttled(key)
            self.leave(key, copy)
            self.other.follow(key, copy, is_throttled=is_throttled)

    def _took(
        self, key: Key, copy: FetchTarget, at: FetchPosition, part: FetchResponsePartition, broker_epoch: int
    ) -> bool:
        self._changed[key] = None
        if part.error_code == ErrorCode.NONE:
            if key in self._throttled:
                self._throttled.came(key, len(part.records or b""), part.high_watermark, _now_s())
            try:
                is_taken = copy.answered(at, part, broker_epoch)
                if not is_taken and copy.next_fetch() is None:
                    # It is cut, or begins elsewhere, perhaps to ask for the same again.
                    self._asking.anew(key)
                return is_taken
            except ThermoclineError as failure:
                place = f"{topic_id_of(key[0])}-{key[1]}"
                log.warning("%s takes nothing from broker %d: %s", place, self.leader_id, failure)
                self._delay(key, _FAILED_S)
        elif copy.refused(at, part):
            self._asking.anew(key)
        else:
            self._delay(key, _REFUSED_S)
        return False

    def _delay(self, key: Key, delay_s: float) -> None:
        self._not_before_s[key] = until_s = _now_s() + delay_s
        heappush(self._later, (until_s, key))
        self._asking.anew(key)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _first(moved: Awaitable[object], wait_s: float | None) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await moved
    except TimeoutError:
        pass  # somebody who was refused may ask again
