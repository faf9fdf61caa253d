"""One partition as its leader sees it: the log, its tier, the high watermark, and who waits for it to move.

Owns the rule when a record is visible and when a produce is acknowledged (design 7): with `thermocline.flush=sync` both
wait for the flushed end, with `os` the page cache counts. Always true: the high watermark never falls while the process
lives; waiters are woken on the loop, after it moved. Must not know Kafka's wire format or error codes.

Hot path: `append` and `advance` run once a batch; a waiter costs one future.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from broker.config.topics import TopicConfig
from broker.fetch_sessions import Target
from hotstore.errors import LogFailed, ReservationExhausted
from hotstore.locator import LogSlice
from hotstore.log_host import OpenLog
from hotstore.log_owner import UNOWNED
from hotstore.partition_log import Appended, LogState
from logformat.errors import Fenced
from logformat.record_batch import BatchHeader
from seams.tasks import Tasks
from seams.workers import Lane, Workers
from tiering.partition_tier import PartitionTier

Watcher = Callable[[], None]
_PREPARED_MAX: Final = 64
_RESERVATION_LOOK_S: Final = 0.01  # a commit to the bucket takes longer; only producers that outran it look


class Partition:
    """A partition of this broker: `leading` it in `leader_epoch`, or resigned since. Every method runs on the loop."""

    __slots__ = (
        "_acks",
        "_checks",
        "_prepared",
        "_readers",
        "_reserve_at",
        "_touched",
        "_watchers",
        "config",
        "fetched_answers",
        "fetched_bytes",
        "flusher",
        "high_watermark",
        "index",
        "leader_epoch",
        "leading",
        "log",
        "opened",
        "produced_batches",
        "produced_bytes",
        "produced_records",
        "tier",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        opened: OpenLog,
        tier: PartitionTier,
        leader_epoch: int,
        config: TopicConfig,
        touched: set[Partition],
    ) -> None:
        log = opened.log
        self.topic = log.topic
        self.topic_id = UUID(bytes=log.topic_id)
        self.index = log.partition
        self.opened = opened
        self.log = log
        self.flusher = opened.flusher
        self.config = config
        self.high_watermark = opened.high_watermark
        self._acks: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._watchers: dict[Watcher, None] = {}  # woken in the order they came
        self._readers: dict[Target, None] = {}  # of fetch sessions: each is told once, then it asks again
        self._prepared: set[int] = set()
        self._checks: dict[int, asyncio.Future[None]] = {}  # under way, by base offset of the segment
        self._touched = touched
        self._reserve_at = 0
        # Since it was opened, bumped by handlers and read by /metrics.
        self.produced_batches = self.produced_records = self.produced_bytes = 0
        self.fetched_answers = self.fetched_bytes = 0
        self.lead(tier, leader_epoch)

    def lead(self, tier: PartitionTier, leader_epoch: int) -> None:
        """Lead it from now on, in a higher epoch than before, over the log as it is."""
        self.leading = True
        self.leader_epoch = leader_epoch
        self.tier = tier
        self._reserve_at = 0
        self.log.owner = self
        if self.log.leader_epoch <= leader_epoch:  # else it is only read: each append is refused
            self.log.begin_epoch(leader_epoch)
        tier.visible_end = lambda: self.high_watermark
        self.advance(self.log.stable_end_offset)

    def resign(self, why: Exception) -> None:
        """Lead it no more: whoever waits for an acknowledgement, or for something to read, learns it now."""
        self.leading = False
        self.log.owner = UNOWNED
        self.fail_waiters(why)

    @property
    def log_start_offset(self) -> int:
        """First readable offset in any tier: the greater of what the log and the manifest's root say (C26)."""
        return max(self.log.log_start_offset, self.tier.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Equal to the high watermark until transactions are served."""
        return self.high_watermark

    def needs_index(self, offset: int) -> bool:
        """Whether a hot read at `offset` would have to read an index from disk on the loop (C25)."""
        return not self.log.is_cheap(offset) and offset not in self._prepared

    async def load_index(self, workers: Workers, offset: int) -> None:
        """Bring that index into the page cache; the next read at `offset` may then be done on the loop: also where this
        failed, so that it meets the failure and its client is told."""
        try:
            await workers.run(self.log.prepare_read, offset, lane=Lane.HOT_READ)
        finally:
            if len(self._prepared) >= _PREPARED_MAX:
                self._prepared.clear()
            self._prepared.add(offset)

    def check(self, tasks: Tasks, workers: Workers, found: LogSlice) -> asyncio.Future[None] | None:
        """None when the offsets in `found` are known to be right, else what to wait for; then read again.

        Raises the OSError that the last check met.
        """
        if self.log.is_checked(found):
            return None
        running = self._checks.get(found.segment_base)
        if running is not None and running.done():
            del self._checks[found.segment_base]
            running.result()  # asked again, it would only fail again: its client is told
            running = None
        if running is None:
            work = workers.run(self.log.check, found, lane=Lane.HOT_READ)
            running = tasks.spawn(
                f"check {self.topic}-{self.index}", work
            )  # damage is reported, and told by `sound` from now on
            self._checks[found.segment_base] = running
            running.add_done_callback(lambda over: self._check_over(found.segment_base, over))
        return running

    def _check_over(self, segment_base: int, over: asyncio.Future[None]) -> None:
        if over.cancelled() or not isinstance(over.exception(), OSError):
            self._checks.pop(segment_base, None)

    def append(self, batches: Sequence[memoryview], headers: Sequence[BatchHeader], now_ms: int) -> Appended:
        """Append checked batches, stamped in place. Visibility follows by itself. Raises as `PartitionLog`."""
        log = self.log
        if not self.leading:
            raise Fenced(f"{self.topic}-{self.index}: leader epoch {self.leader_epoch} is over; refresh metadata")
        try:
            appended = log.append_as_leader(batches, headers, self.leader_epoch, now_ms)
        except ReservationExhausted as short:
            self.tier.reserve_soon(short.end_offset)  # a sealed log gave its offsets back (ADR 13)
            raise
        if not appended.duplicate:
            self._touched.add(self)
            self.flusher.request()
            if not log.config.waits_for_flush:
                self.advance(appended.last_offset + 1)  # the page cache counts (`os`)
            if appended.last_offset >= self._reserve_at:
                self._reserve_at = self.tier.reserve_at
                if appended.last_offset >= self._reserve_at:
                    self.tier.reserve_soon()
            if appended.base_offset == log.active_segment.base_offset:
                self.tier.rolled()  # these batches opened a new segment: the one before it is sealed
        return appended

    async def more_offsets(self, end_offset: int, wait_s: float) -> None:
        """Wait until offsets below `end_offset` may be given, `wait_s` at most: producers slow down before refusals."""
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while self.log.reserved_end < end_offset and asyncio.get_running_loop().time() < deadline_s:
            self.tier.reserve_soon(end_offset)
            await asyncio.sleep(_RESERVATION_LOOK_S)

    def visible(self, end_offset: int, deadline_s: float) -> asyncio.Future[None] | None:
        """None when everything below `end_offset` is committed, else a future that is done once it is.

        It fails with StorageFailed when the log goes offline first (those records were never acknowledged), with
        TimeoutError soon after the loop's time `deadline_s`: `expire_acks` looks once a second, so that an ack costs no
        timer of its own.
        """
        if self.high_watermark >= end_offset:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks.append((end_offset, deadline_s, future))
        self.flusher.hurry()
        return future

    def settling(self, wait_s: float) -> asyncio.Future[None] | None:
        """What to wait for, `wait_s` at most, until what is appended by now is visible; None: it is, or never will be.

        With acks=1 it was acknowledged already: who asks for the log's end afterwards finds it counted, as in Kafka.
        """
        if self.log.state is LogState.FAILED or not self.leading:
            return None  # nothing more becomes visible: the high watermark stands
        return self.visible(self.log.log_end_offset, asyncio.get_running_loop().time() + wait_s)

    def awaits_flush(self) -> bool:
        """As the log's owner: whether an acknowledgement or a reader waits for the flushed end."""
        return bool(self._acks or self._watchers) or any(reader.awaits_flush() for reader in self._readers)

    def expire_acks(self, now_s: float) -> None:
        """Whoever waits for an ack past its deadline learns that it may still come true, or not."""
        for _, deadline_s, future in self._acks:
            if deadline_s <= now_s and not future.done():
                future.set_exception(TimeoutError("appended, but not committed within the request's timeout"))

    def flushed(self, stable_end: int) -> None:
        """As the log's owner."""
        self.advance(stable_end)

    def failed(self, why: LogFailed) -> None:
        """As the log's owner."""
        self.fail_waiters(why)

    def advance(self, stable_end: int) -> None:
        """Everything below `stable_end` now counts as flushed on every in-sync replica."""
        if stable_end <= self.high_watermark:
            return
        self.high_watermark = stable_end
        acks = self._acks
        while acks and acks[0][0] <= stable_end:
            future = acks.popleft()[2]
            if not future.done():
                future.set_result(None)
        self.wake()

    def start_moved(self) -> None:
        """As the log's owner. The next checkpoint has to say so: it samples what was touched, and an idle log's start
        moves too."""
        self._touched.add(self)
        self.wake()

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` whenever something new may be readable, until `unwatch`."""
        self._watchers[watcher] = None
        self.hurry()

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def tell_once(self, reader: Target) -> None:
        """Tell a session's reader when anything it was answered may have changed; see `broker.fetch_sessions`."""
        self._readers[reader] = None

    def forget(self, reader: Target) -> None:
        self._readers.pop(reader, None)

    def hurry(self) -> None:
        """Somebody waits for what was appended and is not visible yet."""
        self.flusher.hurry()

    def wake(self) -> None:
        """Tell the watchers to look again."""
        for watcher in tuple(self._watchers):
            watcher()
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                reader.changed()

    def fail_waiters(self, failure: Exception) -> None:
        """The log is offline or the partition is gone: whoever waits for an ack learns it now."""
        while self._acks:
            future = self._acks.popleft()[2]
            if not future.done():
                future.set_exception(failure)
        self.wake()


async def settled(partitions: Iterable[Partition], wait_s: float) -> None:
    """Wait until what each partition appended by now is visible: `wait_s` at most, for all of them together."""
    waiting = [settling for partition in partitions if (settling := partition.settling(wait_s)) is not None]
    for settling in waiting:
        settling.add_done_callback(_retrieve)
    if waiting:
        await asyncio.wait(waiting, timeout=wait_s)


def _retrieve(settling: asyncio.Future[None]) -> None:
    """Offline or slow: whoever waited looks at the high watermark, where it stands."""
    if not settling.cancelled():
        settling.exception()
