"""Led partition: its log, waiting operations and tier. The partition leads, or it resigned and may lead again.

- With `thermocline.flush=sync` a record is visible, and its produce is acknowledged, once the record is flushed. With
  `os` this happens once the record is in the page cache. `replication.leader` derives the high watermark, also for a
  leader without followers.
- The high watermark never falls within a leader epoch. Waiters are called on the loop after it moved.
- Nothing is appended while the partition does not lead.
- A transaction begins only with a guard that has been valid since the coordinator's confirmation (`verification`).

Hot path: `append` runs once a batch (5.6 µs besides the pwrite, CPython 3.11). `flushed` runs once a sync, in `os` mode
once a batch (0.4 µs). For this reason `leading` and `high_watermark` are plain attributes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from broker.config.topic.topic_config import TopicConfig
from broker.partition.leading.delayed_operations import (
    Acked,
    DelayedDeleteRecords,
    DelayedOperations,
    Watcher,
)
from broker.partition.leading.verification import VerificationGuard, VerificationGuards
from broker.partition.local_reads import LocalReadable, LocalReads
from broker.partition.log_failures import LogFailures
from broker.partition.readable import HostedReplica, Readable
from broker.replication.in_sync import AppliedRow
from broker.replication.leader import Leader, Report
from hotstore.errors import (
    DamagedLog,
    LogFailed,
    OutOfOrderSequence,
    ReservationExhausted,
    TransactionNotVerified,
    TransactionUndecided,
)
from hotstore.host.lease import Lease
from hotstore.log.log_append import MarkerResult, marker_runs
from hotstore.log.partition_log import Appended, LogState
from logformat.errors import Fenced, StorageFailed
from logformat.record_batch import BASE_SEQUENCE, INT64_MAX, PRODUCER_EPOCH, PRODUCER_ID, Fields
from logformat.transaction_marker import TransactionMarker
from tiering.partition_tier import PartitionTier

_RESERVATION_POLL_S: Final = 0.01  # a commit to the bucket takes longer; used only while producers wait for offsets


OnMarker = Callable[[TransactionMarker, int], None]


def _told_nobody(_: TransactionMarker, __: int) -> None: ...


class LeaderReplica(LocalReadable):
    """The replica of a leader. While `leading`, it leads in `leader_epoch`. Otherwise it has resigned. Every method
    runs on the loop."""

    __slots__ = (
        "_isr_pending",
        "_log_failures",
        "_node_id",
        "_reserve_at",
        "_touched",
        "awaits_coordinators",
        "config",
        "delayed_delete_records",
        "fetched_answers",
        "fetched_bytes",
        "flusher",
        "guards",
        "high_watermark",
        "index",
        "is_isr_steady",
        "leader",
        "leader_epoch",
        "leading",
        "lease",
        "local",
        "log",
        "on_marker",
        "opened",
        "produced_batches",
        "produced_bytes",
        "produced_records",
        "tier",
        "topic",
        "topic_id",
        "undecided",
        "waiters",
    )

    def __init__(
        self,
        lease: Lease,
        tier: PartitionTier,
        row: AppliedRow,
        config: TopicConfig,
        touched: set[HostedReplica],
        isr_pending: dict[LeaderReplica, None],
        log_failures: LogFailures,
        node_id: int,
    ) -> None:
        opened, log = lease.opened, lease.log
        self._node_id = node_id
        self.topic = log.topic
        self.topic_id = UUID(bytes=log.topic_id)
        self.index = log.partition
        self.opened = opened
        self.log = log
        self.config = config
        self.waiters = DelayedOperations()
        self.delayed_delete_records = DelayedDeleteRecords()
        self.guards = VerificationGuards()
        self._touched = touched
        self._isr_pending = isr_pending
        self._log_failures = log_failures
        self._reserve_at = 0
        # Counters since the opening; handlers increment them, /metrics reads them.
        self.produced_batches = self.produced_records = self.produced_bytes = 0
        self.fetched_answers = self.fetched_bytes = 0
        self.lead(lease, tier, row)

    def lead(self, lease: Lease, tier: PartitionTier, row: AppliedRow) -> None:
        """Lead in a higher epoch than before, with the log as it is."""
        log = self.log
        self.lease = lease
        self.leading = True
        self.on_marker: OnMarker = _told_nobody
        """Called for each marker with its offset, in the turn in which the marker is appended. Set for this leader
        epoch."""
        self.undecided: dict[int, None] = {}
        """Producers whose open transaction contains a declared gap. They may not append before the transaction ends
        (TX34)."""
        self.awaits_coordinators = False
        """Set after a loss of records: no transaction begins before the ongoing ones are aborted (TX32)."""
        self.local = LocalReads(lease, self._damaged)
        self.leader_epoch = row.leader_epoch
        self.tier: PartitionTier = tier
        self._reserve_at = 0
        self._mark_isr_pending()
        self.leader = Leader(
            self._node_id,
            row,
            epoch_start=log.log_end_offset,
            high_watermark=self.opened.high_watermark,
            own_end=log.stable_end_offset,
        )
        lease.listen(self)
        lease.saw_epoch(row.leader_epoch)
        # An unclean start may have truncated the log, or restarted it at the bucket's end.
        self.flusher = self.opened.flusher
        self.high_watermark: int = self.leader.high_watermark
        if log.leader_epoch <= row.leader_epoch:  # otherwise the log is read-only: each append is refused
            lease.begin_epoch(row.leader_epoch)
        state = tier.partition_state
        state.visible_end = lambda: self.last_stable_offset
        state.committed_end = lambda: self.high_watermark
        state.clean_end = self.clean_end
        state.on_remote_end = self._held
        state.on_verified = self.waiters.appended  # only replicas need this, because they may delete local segments
        self.leader.held(tier.remote_end_offset)
        self._follow_leader()
        if not self.leader.is_end_known:
            self.flusher.request()  # syncs records that were not synced at the last resignation

    # ── replicas ─────────────────────────────────────────────────────────────────────────────────────────────────
    def applied(self, row: AppliedRow) -> None:
        """The row, the minimum or a session of this leader epoch changed; rows of other epochs are ignored."""
        if self.leading and row.leader_epoch == self.leader_epoch:
            self._mark_isr_pending()
            if self.leader.applied(row):
                self._follow_leader()
            self.delayed_delete_records.check(self.leader)

    def _mark_isr_pending(self) -> None:
        self.is_isr_steady = False
        self._isr_pending[self] = None

    def mark_steady(self) -> None:
        """The in-sync set needs no change until the row, log end or log start changes."""
        self.is_isr_steady = True
        self._isr_pending.pop(self, None)
        self.leader.mark_steady()

    def reported(self, node_id: int, report: Report, leader_epoch: int) -> None:
        """A replica's fetch in this leader epoch passed the divergence check: `report` has its flushed end (R16)."""
        if not self.leading:
            return
        if self.leader.reported(node_id, report, leader_epoch):
            self._follow_leader()
        if self.delayed_delete_records:
            self.delayed_delete_records.check(self.leader)

    def resign(self, why: Exception) -> None:
        """Stop leading. Pending acknowledgements and readers fail with `why` now."""
        self.leading = False
        self.guards.void_all()
        self._isr_pending.pop(self, None)
        if not self.lease.is_over:
            self.lease.move_high_watermark(self.high_watermark)  # kept for the next role of the log
            self.lease.end()
        self.waiters.fail(why)
        self.delayed_delete_records.fail(why)

    def start_known(self, offset: int) -> asyncio.Future[None] | None:
        """A future that is done when every active in-sync or proposed replica knows a log start at or above `offset`;
        None: they know it already. Fails with Fenced when the leadership ends first."""
        if not self.leading:
            raise self._is_over()
        return None if self.leader.all_know_start(offset) else self.delayed_delete_records.wait(offset)

    @property
    def log_start_offset(self) -> int:
        """The first readable offset in any tier: the greater of the log's start and the start in the manifest's root
        (C26)."""
        return max(self.log.log_start_offset, self.tier.log_start_offset)

    @property
    def is_end_known(self) -> bool:
        """Whether clients may get the log end. Before, they get OFFSET_NOT_AVAILABLE (KIP-207)."""
        return self.leader.is_end_known

    def lacks(self, offset: int) -> bool:
        """Never: the leader has all records."""
        return False

    def _damaged(self, damaged: DamagedLog) -> None:
        if self.leader.is_shared:  # another replica may have the records
            self._log_failures.damaged((str(self.topic_id), self.index), str(damaged))

    def append(self, batches: Sequence[memoryview], headers: Sequence[Fields], now_ms: int) -> Appended:
        """Append checked batches, which are stamped in place. They become visible later. Raises as `PartitionLog`."""
        if not self.leading:
            raise self._is_over()
        try:
            appended = self.lease.append_as_leader(batches, headers, self.leader_epoch, now_ms)
        except StorageFailed as failed:
            self._refused(failed)
            raise
        self._appended(appended)
        return appended

    def append_transactional(
        self,
        batch: memoryview,
        header: Fields,
        now_ms: int,
        guard: VerificationGuard | None = None,
        *,
        is_verified: bool = False,
    ) -> Appended:
        """Append one checked batch within a transaction. `guard`: set if the transaction was not open; the coordinator
        confirmed it for this request. `is_verified`: the caller has its own guard, or appends again to an open
        transaction. Raises TransactionNotVerified, OutOfOrderSequence, TooManyTransactions, and as `append`."""
        if not self.leading:
            raise self._is_over()
        producers, producer_id, epoch = self.log.producers, header[PRODUCER_ID], header[PRODUCER_EPOCH]
        if producer_id in self.undecided or (self.awaits_coordinators and not producers.has_open(producer_id, epoch)):
            raise TransactionUndecided(
                f"{self.topic}-{self.index}: this replica lost records, and the outcome of their transactions "
                "is not known yet; try again"
            )
        if not is_verified and not producers.has_open(producer_id, epoch):
            if guard is None or guard.is_void or (guard.producer_id, guard.producer_epoch) != (producer_id, epoch):
                raise TransactionNotVerified(
                    f"the transaction of producer {producer_id}, epoch {epoch}, is not verified for "
                    f"{self.topic}-{self.index}; abort it"
                )
            if guard.adds and header[BASE_SEQUENCE] > 0 and producers.epoch_of(producer_id) < 0:
                raise OutOfOrderSequence(
                    f"producer {producer_id} is unknown here and begins at sequence {header[BASE_SEQUENCE]}, not 0"
                )
        try:
            appended = self.lease.append_transactional(batch, header, self.leader_epoch, now_ms)
        except StorageFailed as failed:
            self._refused(failed)
            raise
        self._appended(appended)
        return appended

    def found_gaps(self, gaps: Sequence[tuple[int, int]], *, is_unanswered: bool) -> None:
        """Note the declared gaps of the log, before the partition serves. `is_unanswered`: the coordinators must be
        asked about the newest gap (TX32). The bytes of a gap show this, even if another leader declared the gap."""
        self.awaits_coordinators = is_unanswered
        if gaps:
            begin = gaps[-1][0]
            opened = self.log.producers.transactions.first_offsets
            self.undecided = {producer_id: None for producer_id, first in opened.items() if first < begin}

    def needs_verification(self, producer_id: int, epoch: int) -> bool:
        """Whether a transactional batch of this producer would begin a transaction."""
        return not self.log.producers.has_open(producer_id, epoch)

    def append_markers(self, markers: Sequence[TransactionMarker], now_ms: int) -> list[MarkerResult]:
        """Append the markers of a request. Returns for each its offset or the reason of a refusal. The caller answers
        when the high watermark passed them (TX22). Raises as `PartitionLog.append_markers`; after an error, earlier
        markers may be written, and the listener is called for these markers."""
        if not self.leading:
            raise self._is_over()
        for marker in markers:
            self.guards.void(marker.producer_id)
        results: list[MarkerResult] = []
        for run in marker_runs(markers):
            results += self._append_run(run, now_ms)
        return results

    def _append_run(self, run: Sequence[TransactionMarker], now_ms: int) -> list[MarkerResult]:
        placed = self.log.place_markers(run)
        try:
            return self.lease.append_markers(run, self.leader_epoch, now_ms)
        except StorageFailed as failed:
            self._refused(failed)
            raise
        finally:
            end = self.log.log_end_offset
            self._marked([(of, at) for of, at in zip(run, placed, strict=True) if isinstance(at, int) and at < end])
            for result in placed:
                if isinstance(result, ReservationExhausted):
                    self._refused(result)

    def _marked(self, written: Sequence[tuple[TransactionMarker, int]]) -> None:
        """Call the listener for markers written at these offsets."""
        for marker, offset in written:
            self.undecided.pop(marker.producer_id, None)
            self.on_marker(marker, offset)
        if written:
            self._appended(Appended(written[0][1], self.log.log_end_offset - 1, False, -1))

    def _is_over(self) -> Fenced:
        return Fenced(f"{self.topic}-{self.index}: leader epoch {self.leader_epoch} is over; refresh metadata")

    def _refused(self, failed: StorageFailed) -> None:
        if isinstance(failed, ReservationExhausted):
            self.tier.reserve_soon(failed.end_offset)  # a sealed log returned its reserved offsets (ADR 13)
        elif isinstance(failed, LogFailed):
            self._log_failures.failed((str(self.topic_id), self.index), str(failed))

    def _appended(self, appended: Appended) -> None:
        log = self.log
        if not appended.duplicate:
            self._touched.add(self)
            if self.is_isr_steady:
                self._mark_isr_pending()
            self.flusher.request()
            if not log.config.waits_for_flush:
                self.flushed(appended.last_offset + 1)  # with `os` a record in the page cache counts as flushed
            if self.waiters.at_tail:
                self.waiters.appended()
            if appended.last_offset >= self._reserve_at:
                self._reserve_at = self.tier.reserve_at
                if appended.last_offset >= self._reserve_at:
                    self.tier.reserve_soon()
            if appended.base_offset == log.active_segment.base_offset:
                self.tier.rolled()  # these batches opened a new segment, so the previous segment is sealed

    async def more_offsets(self, end_offset: int, wait_s: float) -> None:
        """While leading, wait at most `wait_s` until offsets below `end_offset` are reserved. Producers are thus
        delayed before they are refused."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while self.leading and self.log.assignable_end_offset < end_offset and loop.time() < deadline_s:
            self.tier.reserve_soon(end_offset + self.log.reserved_end - self.log.assignable_end_offset)
            await asyncio.sleep(_RESERVATION_POLL_S)

    def when_visible(self, end_offset: int, deadline_s: float, acked: Acked) -> bool:
        """Whether everything below `end_offset` is committed; if not, `acked` is called once, later. It gets
        StorageFailed when the log goes offline, Fenced when the leadership ends, and TimeoutError soon after the loop's
        time `deadline_s`."""
        if self.high_watermark >= end_offset:
            return True
        self.waiters.ack(end_offset, deadline_s, acked)
        self._touched.add(self)  # a resent batch is not appended, but ticks must check its deadline
        self.flusher.hurry()
        return False

    def visible(self, end_offset: int, deadline_s: float) -> asyncio.Future[None] | None:
        """`when_visible` as a future; None if everything is visible already."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acked(failure: Exception | None) -> None:
            if future.done():
                return  # the waiting task was cancelled
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        return None if self.when_visible(end_offset, deadline_s, acked) else future

    def end_visible(self, wait_s: float) -> asyncio.Future[None] | None:
        """A future that is done when all records appended so far are visible, after at most `wait_s`; None: they are
        visible already, or never will be. With acks=1 those records are acknowledged already, so a later request for
        the log end must count them, as in Kafka."""
        if self.log.state is LogState.FAILED or not self.leading:
            return None  # no more records become visible
        return self.visible(self.log.log_end_offset, asyncio.get_running_loop().time() + wait_s)

    # ── as the log's owner ───────────────────────────────────────────────────────────────────────────────────────
    def flushed(self, stable_end: int) -> None:
        """This replica's log is durable up to this offset, or counts as durable."""
        if self.leader.flushed(stable_end):
            self._follow_leader()

    def _held(self, end_offset: int) -> None:
        """According to its root in this epoch, the bucket holds all records below this offset, or they are deleted."""
        if self.leading and self.leader.held(end_offset):
            self._follow_leader()

    def _follow_leader(self) -> None:
        self.high_watermark = self.leader.high_watermark
        self.waiters.moved(self.high_watermark)

    def failed(self, why: LogFailed) -> None:
        """The log is offline. Waiting records were not acknowledged."""
        self._log_failures.failed((str(self.topic_id), self.index), str(why))
        self.waiters.fail(why)

    def awaits_flush(self) -> bool:
        """Whether an acknowledgement or a reader waits for the flushed end."""
        return self.waiters.awaits_flush()

    def start_moved(self) -> None:
        """The log start moved. This also happens in an idle log, so the next checkpoint has to include the log."""
        self._touched.add(self)
        self._mark_isr_pending()
        self._held(self.log.log_start_offset)
        self.waiters.wake()

    def cleaned(self) -> None:
        """Does nothing: both cleaners and replicas' fetches ask for the clean end when they need it."""

    def cleanable_end(self) -> int:
        """The last stable offset; of a tiered log at most the verified end of the bucket."""
        stable = self.log.last_stable_offset(self.high_watermark)
        return min(stable, self.tier.partition_state.sure_end_offset) if self.log.config.tiered else stable

    def clean_end(self) -> int:
        """Offset below which the local log of every replica is clean, or has no records."""
        return self.leader.clean_end(self.lease.clean_end)

    def tombstones_end(self) -> int:
        """No end for the only replica, as in Kafka: a pass removes the deleted record before the tombstone's time
        begins, and there is no other copy."""
        return self.clean_end() if len(self.leader.in_sync.row.replicas) > 1 else INT64_MAX

    def is_in_bucket(self) -> bool:
        return self.tier.partition_state.is_in_bucket

    def tick(self, now_ms: int, now_s: float) -> bool:
        self.flusher.tick(now_ms)
        self.waiters.expire(now_s)
        self.tier.written_to()
        self.log.last_stable_offset(self.high_watermark)  # this call drops committed entries
        return self.log.dirty_bytes > 0 or self.waiters.has_acks

    # ── readers ──────────────────────────────────────────────────────────────────────────────────────────────────
    def watch(self, watcher: Watcher, *, at_tail: bool = False) -> None:
        """Call `watcher` whenever more may be readable, until `unwatch`. `at_tail`: call it also when more is readable
        only for replicas."""
        self.waiters.watch(watcher, at_tail=at_tail)
        self.flusher.hurry()

    def hurry(self) -> None:
        """A reader waits for records that are appended and not visible yet."""
        self.flusher.hurry()


async def all_visible(partitions: Iterable[Readable], wait_s: float) -> None:
    """Wait until all records appended to the partitions so far are visible, for at most `wait_s` in total."""
    waiting = [end_visible for partition in partitions if (end_visible := partition.end_visible(wait_s)) is not None]
    for end_visible in waiting:
        end_visible.add_done_callback(_retrieve)
    if waiting:
        await asyncio.wait(waiting, timeout=wait_s)


def _retrieve(end_visible: asyncio.Future[None]) -> None:
    """Drop the result of a log that is offline or slow: the caller reads the current high watermark."""
    if not end_visible.cancelled():
        end_visible.exception()
