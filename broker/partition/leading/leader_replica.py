"""One partition as this broker has it: a log and a role. It leads, or it resigned and may lead again.

Owns the rule when a record is visible and when a produce is acknowledged (design 7): with `thermocline.flush=sync` both
wait for the flushed end, with `os` the page cache counts; what that end means for the high watermark is the leader
machine's to say (`replication.leader`), also for a leader alone. Always true: the high watermark never falls in a
leader epoch; who waits is told on the loop, after it moved; nothing is appended while it does not lead. A follower's
role comes with replication. Must not know Kafka's wire format or error codes.

Hot path: `append` runs once a batch, `flushed` once a sync, in `os` mode once a batch: 5.6 µs and 0.4 µs besides the
pwrite (CPython 3.11). `leading` and `high_watermark` are plain attributes for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from broker.config.topic.topic_config import TopicConfig
from broker.partition.hosted_replica import HostedReplica
from broker.partition.leading.delayed_delete_records import DelayedDeleteRecords
from broker.partition.leading.delayed_operations import Acked, DelayedOperations, WaitedFor, Watcher
from broker.partition.local_reads import LocalReads
from broker.partition.log_failures import LogFailures
from broker.partition.readable import Readable
from broker.replication.in_sync import AppliedRow
from broker.replication.leader import Leader, Report
from hotstore.errors import DamagedLog, LogFailed, ReservationExhausted
from hotstore.host.lease import Lease
from hotstore.log.partition_log import Appended, LogState
from logformat.errors import Fenced
from logformat.leader_epochs import EpochEnd
from logformat.record_batch import Fields
from tiering.partition_tier import PartitionTier

_RESERVATION_LOOK_S: Final = 0.01  # a commit to the bucket takes longer; only producers that outran it look


class LeaderReplica(WaitedFor):
    """A partition of this broker: `leading` it in `leader_epoch`, or resigned since. Every method runs on the loop."""

    __slots__ = (
        "_node_id",
        "_reserve_at",
        "_restless",
        "_touched",
        "_troubles",
        "at_rest",
        "config",
        "fetched_answers",
        "fetched_bytes",
        "flusher",
        "high_watermark",
        "index",
        "leader",
        "leader_epoch",
        "leading",
        "lease",
        "local",
        "log",
        "opened",
        "produced_batches",
        "produced_bytes",
        "produced_records",
        "start_waits",
        "tier",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self,
        lease: Lease,
        tier: PartitionTier,
        row: AppliedRow,
        config: TopicConfig,
        touched: set[HostedReplica],
        restless: dict[LeaderReplica, None],
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
        self.high_watermark = opened.high_watermark
        self.waiters = DelayedOperations()
        self.start_waits = DelayedDeleteRecords()
        self._touched = touched
        self._restless = restless
        self._troubles = log_failures
        self._reserve_at = 0
        # Since it was opened, bumped by handlers and read by /metrics.
        self.produced_batches = self.produced_records = self.produced_bytes = 0
        self.fetched_answers = self.fetched_bytes = 0
        self.lead(lease, tier, row)

    def lead(self, lease: Lease, tier: PartitionTier, row: AppliedRow) -> None:
        """Lead it from now on, in a higher epoch than before, over the log as it is."""
        log = self.log
        self.lease = lease
        self.leading = True
        self.local = LocalReads(lease, self._damaged)
        self.leader_epoch = row.leader_epoch
        self.tier = tier
        self._reserve_at = 0
        self._stir()
        self.leader = Leader(
            self._node_id,
            row,
            epoch_start=log.log_end_offset,
            high_watermark=self.high_watermark,
            own_end=log.stable_end_offset,
        )
        lease.listen(self)
        lease.saw_epoch(row.leader_epoch)
        # An unclean start may have cut the log, and begun it where the bucket ends.
        self.flusher, self.high_watermark = self.opened.flusher, max(self.high_watermark, self.opened.high_watermark)
        if log.leader_epoch <= row.leader_epoch:  # else it is only read: each append is refused
            lease.begin_epoch(row.leader_epoch)
        tier.visible_end = lambda: self.high_watermark
        tier.on_remote_end = self._held
        tier.on_verified = self.waiters.verified
        self.leader.held(tier.remote_end_offset)
        self._follow_leader()
        if not self.leader.is_end_known:
            self.flusher.request()  # what was not synced when it resigned

    # ── what the cluster says of its replicas ────────────────────────────────────────────────────────────────────
    def applied(self, row: AppliedRow) -> None:
        """The image has another row, minimum or session for this leader epoch; of another epoch it says nothing."""
        if self.leading and row.leader_epoch == self.leader_epoch:
            self._stir()
            if self.leader.applied(row):
                self._follow_leader()
            self.start_waits.look(self.leader)

    def _stir(self) -> None:
        """Something may be to do about its in-sync set."""
        self.at_rest = False
        self._restless[self] = None

    def rests(self) -> None:
        """There is nothing to do about its in-sync set until its row, its log's end or its log's start is another
        one."""
        self.at_rest = True
        self._restless.pop(self, None)
        self.leader.rests()

    def reported(self, node_id: int, report: Report, leader_epoch: int) -> None:
        """A replica's fetch passed the check for divergence in this leader epoch: this is its flushed end (R16)."""
        if not self.leading:
            return
        if self.leader.reported(node_id, report, leader_epoch):
            self._follow_leader()
        if self.start_waits:
            self.start_waits.look(self.leader)

    def resign(self, why: Exception) -> None:
        """Lead it no more: whoever waits for an acknowledgement, or for something to read, learns it now."""
        self.leading = False
        self._restless.pop(self, None)
        if not self.lease.is_over:
            self.lease.move_high_watermark(self.high_watermark)  # for the next role of the log
            self.lease.end()
        self.waiters.fail(why)
        self.start_waits.fail(why)

    def start_known(self, offset: int) -> asyncio.Future[None] | None:
        """What to wait for until every active replica in sync, or proposed, knows that the log starts at or above
        `offset`; None: they do. With Fenced when another is to lead first."""
        if not self.leading:
            raise Fenced(f"{self.topic}-{self.index}: leader epoch {self.leader_epoch} is over; refresh metadata")
        return None if self.leader.all_know_start(offset) else self.start_waits.wait(offset)

    @property
    def log_start_offset(self) -> int:
        """First readable offset in any tier: the greater of what the log and the manifest's root say (C26)."""
        return max(self.log.log_start_offset, self.tier.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""
        return self.leader.last_stable_offset

    @property
    def is_end_known(self) -> bool:
        """Whether clients may be told where the log ends: OFFSET_NOT_AVAILABLE before (KIP-207)."""
        return self.leader.is_end_known

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Where an epoch ends. Not up to the high watermark: to a reader, one that came back lower would look like a
        truncation."""
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    def _damaged(self, damaged: DamagedLog) -> None:
        if self.leader.is_shared:  # another one may have what was here
            self._troubles.damaged((str(self.topic_id), self.index), str(damaged))

    def append(self, batches: Sequence[memoryview], headers: Sequence[Fields], now_ms: int) -> Appended:
        """Append checked batches, stamped in place. Visibility follows by itself. Raises as `PartitionLog`."""
        log = self.log
        if not self.leading:
            raise Fenced(f"{self.topic}-{self.index}: leader epoch {self.leader_epoch} is over; refresh metadata")
        try:
            appended = self.lease.append_as_leader(batches, headers, self.leader_epoch, now_ms)
        except ReservationExhausted as short:
            self.tier.reserve_soon(short.end_offset)  # a sealed log gave its offsets back (ADR 13)
            raise
        except LogFailed as failed:
            self._troubles.failed((str(self.topic_id), self.index), str(failed))
            raise
        if not appended.duplicate:
            self._touched.add(self)
            if self.at_rest:
                self._stir()
            self.flusher.request()
            if not log.config.waits_for_flush:
                self.flushed(appended.last_offset + 1)  # the page cache counts (`os`)
            if self.waiters.at_tail:
                self.waiters.appended()
            if appended.last_offset >= self._reserve_at:
                self._reserve_at = self.tier.reserve_at
                if appended.last_offset >= self._reserve_at:
                    self.tier.reserve_soon()
            if appended.base_offset == log.active_segment.base_offset:
                self.tier.rolled()  # these batches opened a new segment: the one before it is sealed
        return appended

    async def more_offsets(self, end_offset: int, wait_s: float) -> None:
        """Wait until offsets below `end_offset` may be given, `wait_s` at most and while it leads: producers slow down
        before refusals."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while self.leading and self.log.reserved_end < end_offset and loop.time() < deadline_s:
            self.tier.reserve_soon(end_offset)
            await asyncio.sleep(_RESERVATION_LOOK_S)

    def when_visible(self, end_offset: int, deadline_s: float, acked: Acked) -> bool:
        """Whether everything below `end_offset` is committed; where it is not, `acked` is called later, once.

        With StorageFailed when the log goes offline first (those records were never acknowledged), with Fenced when
        another is to lead, with TimeoutError soon after the loop's time `deadline_s`.
        """
        if self.high_watermark >= end_offset:
            return True
        self.waiters.ack(end_offset, deadline_s, acked)
        self._touched.add(self)  # a resend changed nothing, but its deadline is looked at by ticks
        self.flusher.hurry()
        return False

    def visible(self, end_offset: int, deadline_s: float) -> asyncio.Future[None] | None:
        """`when_visible` for a task: None where it is, else a future of what `acked` would be told."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acked(failure: Exception | None) -> None:
            if future.done():
                return  # whoever waited was cancelled
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        return None if self.when_visible(end_offset, deadline_s, acked) else future

    def settling(self, wait_s: float) -> asyncio.Future[None] | None:
        """What to wait for, `wait_s` at most, until what is appended by now is visible; None: it is, or never will be.

        With acks=1 it was acknowledged already: who asks for the log's end afterwards finds it counted, as in Kafka.
        """
        if self.log.state is LogState.FAILED or not self.leading:
            return None  # nothing more becomes visible: the high watermark stands
        return self.visible(self.log.log_end_offset, asyncio.get_running_loop().time() + wait_s)

    # ── as the log's owner ───────────────────────────────────────────────────────────────────────────────────────
    def flushed(self, stable_end: int) -> None:
        """Our own end is durable up to here, or counts as if it were."""
        if self.leader.flushed(stable_end):
            self._follow_leader()

    def _held(self, remote_end_offset: int) -> None:
        """The bucket holds what lies below: its root was read in this epoch."""
        if self.leading and self.leader.held(remote_end_offset):
            self._follow_leader()

    def _follow_leader(self) -> None:
        self.high_watermark = self.leader.high_watermark
        self.waiters.moved(self.high_watermark)

    def failed(self, why: LogFailed) -> None:
        """It is offline: what waits was never acknowledged."""
        self._troubles.failed((str(self.topic_id), self.index), str(why))
        self.waiters.fail(why)

    def awaits_flush(self) -> bool:
        """Whether an acknowledgement or a reader waits for the flushed end."""
        return self.waiters.awaits_flush()

    def start_moved(self) -> None:
        """The next checkpoint has to say so: it samples what was touched, and an idle log's start moves too."""
        self._touched.add(self)
        self._stir()
        self.waiters.wake()

    def tick(self, now_ms: int, now_s: float) -> bool:
        """See `HostedReplica`."""
        self.flusher.tick(now_ms)
        self.waiters.expire(now_s)
        self.tier.written_to()
        return self.log.dirty_bytes > 0 or self.waiters.has_acks

    # ── who waits ────────────────────────────────────────────────────────────────────────────────────────────────
    def watch(self, watcher: Watcher, *, at_tail: bool = False) -> None:
        """Call `watcher` whenever something new may be readable, until `unwatch`; `at_tail`: also by replicas."""
        self.waiters.watch(watcher, at_tail=at_tail)
        self.flusher.hurry()

    def hurry(self) -> None:
        """Somebody waits for what was appended and is not visible yet."""
        self.flusher.hurry()


async def settled(partitions: Iterable[Readable], wait_s: float) -> None:
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
