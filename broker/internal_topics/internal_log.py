"""Log of one internal topic: loads and drops the shards that this broker leads, as leadership moves.

When `resign` returns, the shard is dropped: waiting requests are answered and its state is not visible. A load is
discarded if the leader epoch changes before it ends. At most `LOADS_AT_ONCE` shards load at a time; a failing shard
does not delay other shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker.internal_topics.interfaces import LogLimits, ReplayedState, ShardLog
from broker.internal_topics.led_shard import LedShard, Shard
from broker.internal_topics.shard_life import (
    Closed,
    Command,
    Event,
    Led,
    Life,
    Load,
    Loaded,
    Refused,
    Resigned,
    ShardState,
    StopLoading,
    TellOver,
    TellTrouble,
    Unload,
    step,
)
from logformat.errors import Fenced, Retryable, ThermoclineError
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock
from seams.loop.tasks import FailureReport, Tasks, supervise
from seams.rng import Rng

log = logging.getLogger(__name__)

S = TypeVar("S", bound=ReplayedState)

LOADS_AT_ONCE: Final = 4  # a load holds one snapshot and a few MiB of the log in memory
_IDLE_LOOK_S: Final = 0.01


class _Partition(Generic[S]):
    """One partition of the topic, over all its leader epochs."""

    __slots__ = ("life", "loading", "shard", "shard_log")

    def __init__(self) -> None:
        self.life = Life()
        self.shard_log: ShardLog | None = None
        self.shard: LedShard[S] | None = None
        self.loading: asyncio.Task[None] | None = None


@dataclass(eq=False, repr=False)
class InternalLog(Generic[S]):
    """The log of one internal topic. `make` makes an empty state for a shard. `loaded` is called with each state that
    becomes ready. `keep_objects` as in `seams.world`. Everything runs on the loop."""

    name: str
    _clock: Clock
    _rng: Rng
    limits: LogLimits
    _tasks: Tasks
    _report: FailureReport
    _make: Callable[[Shard], S]
    _told_loaded: Callable[[S], None]
    _keep_objects: Callable[[], None]

    def __post_init__(self) -> None:
        self._partitions: dict[int, _Partition[S]] = {}
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._moved = asyncio.Event()  # set when the state of any shard changes

    # ---- leadership ------------------------------------------------------------------------------------------------

    def lead(self, shard_log: ShardLog) -> None:
        """This broker leads that partition in `shard_log.leader_epoch`: load its shard. A repeated call has no
        effect."""
        partition = self._partitions.setdefault(shard_log.index, _Partition())
        if shard_log.leader_epoch > partition.life.leader_epoch:
            partition.shard_log = shard_log
        self._happened(shard_log.index, partition, Led(shard_log.leader_epoch))

    def resign(self, index: int) -> None:
        """This broker no longer leads that partition. The shard is dropped when this returns."""
        partition = self._partitions.get(index)
        if partition is not None:
            self._happened(index, partition, Resigned())

    def forget(self) -> None:
        """The topic was deleted. A new topic of the name may have any leader epochs."""
        for index in tuple(self._partitions):
            self.resign(index)
        self._partitions.clear()

    def marked(self, index: int, leader_epoch: int, marker: TransactionMarker, offset: int) -> None:
        """A marker was appended to that partition at `offset`, in this turn of the loop. A load that begins later reads
        the marker from the log."""
        partition = self._partitions.get(index)
        if partition is not None and partition.shard is not None and partition.shard.leader_epoch == leader_epoch:
            partition.shard.marked(marker, offset)

    # ---- queries ---------------------------------------------------------------------------------------------------

    def state_of(self, index: int) -> ShardState:
        partition = self._partitions.get(index)
        return ShardState.ABSENT if partition is None else partition.life.state

    def ready(self, index: int) -> S | None:
        partition = self._partitions.get(index)
        return (
            partition.shard.state
            if partition is not None and partition.shard is not None and partition.shard.is_ready
            else None
        )

    def all_ready(self) -> list[S]:
        return [shard.state for shard in self.shards() if shard.is_ready]

    def shards(self) -> Iterator[LedShard[S]]:
        """The completely loaded states, also after `close`."""
        for partition in tuple(self._partitions.values()):
            if partition.shard is not None and partition.life.is_whole:
                yield partition.shard

    @property
    def is_loading(self) -> bool:
        return any(partition.life.state is ShardState.LOADING for partition in self._partitions.values())

    async def wait_loaded(self) -> None:
        """Wait until every led shard is loaded or failed."""
        while self.is_loading:
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        """Stop loading and serving; let appends in flight end, for at most `limits.close_timeout_ms`. Snapshots can
        still be taken afterwards: state and log do not change any more."""
        for index, partition in self._partitions.items():
            self._happened(index, partition, Closed())
        deadline_s = self._clock.monotonic_s() + self.limits.close_timeout_ms / 1000
        while any(not shard.is_idle for shard in self.shards()) and self._clock.monotonic_s() < deadline_s:
            await asyncio.sleep(_IDLE_LOOK_S)

    # ---- performing commands ---------------------------------------------------------------------------------------

    def _happened(self, index: int, partition: _Partition[S], event: Event) -> None:
        partition.life, commands = step(partition.life, event)
        for command in commands:
            self._perform(index, partition, command)
        if partition.shard is not None:
            partition.shard.is_ready = partition.life.state is ShardState.READY
        self._moved.set()

    def _perform(self, index: int, partition: _Partition[S], command: Command) -> None:
        name = f"{self.name}-{index}"
        match command:
            case Load(leader_epoch, after_s):
                work = supervise(
                    f"load {name}", lambda: self._load(index, partition, leader_epoch, after_s), self._rng, self._report
                )
                partition.loading = self._tasks.spawn(f"load {name}", work)
            case Unload():
                self._stop_loading(partition)
                self._drop(partition, f"{name} is no longer led in this epoch; find its new leader")
            case StopLoading():
                self._stop_loading(partition)
            case TellTrouble(why, is_lasting) if is_lasting:
                log.error("%s cannot be read, so its content is offline: %s", name, why)
            case TellTrouble(why):
                log.warning("loading %s: %s; trying again", name, why)
            case TellOver():
                log.warning("%s can be read again, and its content is online", name)

    @staticmethod
    def _stop_loading(partition: _Partition[S]) -> None:
        loading, partition.loading = partition.loading, None
        if loading is not None and loading is not asyncio.current_task():
            loading.cancel()

    @staticmethod
    def _drop(partition: _Partition[S], why: str) -> None:
        shard, partition.shard = partition.shard, None
        if shard is not None:
            shard.drop(Fenced(why))

    async def _load(self, index: int, partition: _Partition[S], leader_epoch: int, after_s: float) -> None:
        if after_s:
            await asyncio.sleep(after_s * self._rng.uniform(0.8, 1.2))
        async with self._slots:
            shard_log = partition.shard_log
            assert shard_log is not None and shard_log.leader_epoch == leader_epoch
            self._drop(partition, f"{shard_log.name} is loaded again")
            partition.shard = shard = LedShard(shard_log, self._clock, self.limits, self._tasks, self._make)
            try:
                await shard.load(self._keep_objects)
            except (ThermoclineError, OSError) as failure:
                is_passing = isinstance(failure, Retryable | OSError)
                outcome: Event = Refused(leader_epoch, str(failure) or repr(failure), is_lasting=not is_passing)
                self._drop(partition, f"{shard_log.name}: {failure}")
            else:
                outcome = Loaded(leader_epoch)
        partition.loading = None
        self._happened(index, partition, outcome)
        if partition.shard is shard and shard.is_ready:
            self._told_loaded(shard.state)
