"""Performs the effects of the groups' state machines: responses, timers, records to store.

A waiting request is a future, which serves as the machine's token. No other code runs between an event and its effects.
One task serves all timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.commit_outcome import deadline, group_code_of
from broker.groups.machine.events import (
    Effect,
    Event,
    Reply,
    Result,
    StartTimer,
    StopTimer,
    Store,
    Stored,
    TimedOut,
    Timer,
)
from broker.groups.machine.timers import Timers
from broker.groups.records import group_record
from broker.groups.shard import Group, GroupShard
from broker.internal_topics.batches import KeyValue
from seams.clock import Clock
from seams.loop.turns import next_turn

_TIMERS_AT_ONCE: Final = 200  # timers in a turn of the loop: about 5 ms of expiries
_NOT_READY_S: Final = 1.0  # delay of a timer that fires while its shard loads


class _TimerKey(NamedTuple):
    shard: GroupShard  # the shard instead of the partition, so that timers of another leader epoch are ignored
    group_id: str
    timer: Timer


class GroupEffects:
    def __init__(self, clock: Clock, config: GroupConfig) -> None:
        self._clock = clock
        self._config = config
        self._timers: Timers[_TimerKey] = Timers()
        self._timer_set = asyncio.Event()

    def give(self, shard: GroupShard, group: Group, event: Event) -> None:
        """Handle an event, perform its effects, and remove the group if it is empty."""
        self.step(shard, group, event)
        shard.settle(group)

    def step(self, shard: GroupShard, group: Group, event: Event) -> None:
        """As `give`, but the group stays."""
        self.perform(shard, group, group.machine.step(event, self._clock.wall_ms()))

    def perform(self, shard: GroupShard, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, result):
                    future = cast("asyncio.Future[Result]", token)
                    if not future.done():  # the request's connection may be closed
                        future.set_result(result)
                case StartTimer(timer, delay_ms):
                    self._start_timer(_TimerKey(shard, group.group_id, timer), delay_ms / 1000)
                case StopTimer(timer):
                    self._timers.stop(_TimerKey(shard, group.group_id, timer))
                case Store(ticket, metadata):
                    self._store(shard, group, ticket, group_record(group.group_id, metadata))

    def _store(self, shard: GroupShard, group: Group, ticket: int, record: KeyValue) -> None:
        """Store the record of a group. The members wait at most as long as for a commit (as in Kafka). A later outcome
        does not matter, because the record of the next generation replaces this record."""
        is_decided, machine = False, group.machine

        def decided(failure: Exception | None) -> None:
            nonlocal is_decided
            if is_decided:
                return
            is_decided = True
            timer.cancel()
            error = ErrorCode.NONE if failure is None else group_code_of(failure, ErrorCode.UNKNOWN_SERVER_ERROR)
            if group.machine is machine:  # after a failed deletion the new machine has no such ticket
                self.step(shard, group, Stored(ticket, error))

        def late() -> None:
            decided(TimeoutError("the group was not stored in time"))
            shard.settle(group)

        timer = asyncio.get_running_loop().call_at(deadline(self._config), late)
        shard.write_group(group, record, decided)

    # ---- timers ----------------------------------------------------------------------------------------------------

    def _start_timer(self, key: _TimerKey, delay_s: float) -> None:
        before = self._timers.next_s()
        self._timers.start(key, self._clock.monotonic_s() + delay_s)
        after = self._timers.next_s()
        if after is not None and (before is None or after < before):
            self._timer_set.set()

    async def run_timers(self) -> None:
        while True:
            self._timer_set.clear()
            next_s = self._timers.next_s()
            wait_s = None if next_s is None else max(next_s - self._clock.monotonic_s(), 0)
            try:
                async with asyncio.timeout(wait_s):
                    await self._timer_set.wait()
            except TimeoutError:
                self._fire_timers()
                await next_turn()

    def _fire_timers(self) -> None:
        for key in self._timers.due(self._clock.monotonic_s(), _TIMERS_AT_ONCE):
            group = key.shard.groups.get(key.group_id)  # a dropped shard has no groups
            if group is None:
                continue
            if key.shard.is_ready:
                self.give(key.shard, group, TimedOut(key.timer))
            else:
                self._start_timer(key, _NOT_READY_S)
