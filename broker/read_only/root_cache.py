"""Cache of the manifests of partitions that clients read. A manifest is loaded at the first request and polled while
requests continue.

* Requests that wait for the same root share one read. At most `READS_AT_ONCE` reads run at a time.
* At most `ENTRIES_MAX` entries are cached. The least recently read roots are dropped, but their partitions keep the
  offsets.
* Partitions without requests are not polled, and no timer walks over all partitions.
* If a root cannot be read, only requests for its own partition are refused. A cached root is served for `OLD_S` more.
* If a root has a later leader epoch than the image, a newer image is read before the root is used.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

from broker.partition.readable import NotKnownYet
from broker.read_only.archived_partition import ArchivedPartition, KnownRoot
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.manifest.page_reader import PageCache
from coldstore.object_store import AccessRefused, ObjectStore
from logformat.errors import Retryable, StorageFailed, ThermoclineError
from logformat.leader_epochs import LeaderEpochs
from seams.loop.tasks import Tasks
from seams.world import World
from tiering.opening.cold_start import state_at
from tiering.reading.cold_reader import ColdReader

log = logging.getLogger(__name__)

READS_AT_ONCE: Final = 32
ENTRIES_MAX: Final = 200_000
"""Most entries of all cached manifests, about 1 KB each."""
AGAIN_S: Final = 1.0  # time between two reads of a root that is not cached, while the store does not answer
DAMAGED_S: Final = 30.0  # time between two reads of a damaged root
FRESH_S: Final = 1.0
"""Maximal age of a log end in an answer, when the bucket answers."""
SOON_S: Final = 5.0
"""Poll interval while the partition is read."""
SELDOM_S: Final = 30.0
"""Poll interval of a partition that was read lately."""
USED_S: Final = 10.0  # a request within this time counts as reading
OLD_S: Final = 3600.0
"""A root that is older is not served: the bucket has not answered for that time. Compaction may have removed tombstones
meanwhile, so a reader of old cached chunks could get a record and miss its deletion."""
KEPT_S: Final = 300.0
"""After this time without a request a root is not polled; the next request reads it."""
POLLS_PER_S: Final = 100  # conditional GETs; $3.50 a day at S3's list price
_TICK_S: Final = 0.5
_FOOTER_S: Final = 30.0


class ReadFailure(NamedTuple):
    """A failed read of a root. Until `until_s` (boot time) requests get `failure`."""

    failure: ThermoclineError
    until_s: float
    is_damage: bool


class RootCache:
    """The roots of the bucket `store`. `newer_image` reads `cluster.json` and returns when that read ended; it raises
    Retryable."""

    def __init__(
        self,
        store: ObjectStore,
        cold: ColdReader,
        world: World,
        tasks: Tasks,
        newer_image: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._cold = cold
        self._world = world
        self._tasks = tasks
        self._newer_image = newer_image
        self._now_s = world.clock.boottime_s  # it counts the machine's sleep, during which roots get old
        self._pages = PageCache()
        self._known: OrderedDict[ArchivedPartition, KnownRoot] = OrderedDict()  # in the order of their last reads
        self._entries = 0
        self._weights: dict[ArchivedPartition, int] = {}
        self._reading: dict[ArchivedPartition, asyncio.Future[None]] = {}
        self._tracing: dict[ArchivedPartition, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._due: list[tuple[float, int, ArchivedPartition]] = []
        self._scheduled: set[ArchivedPartition] = set()
        self._turn = 0
        self.log_failures: dict[ArchivedPartition, ReadFailure] = {}
        self.reads = 0
        self.failure = ""
        """The store's last error, while it does not answer for roots."""

    # ── what readers ask ─────────────────────────────────────────────────────────────────────────────────────────
    def of(self, partition: ArchivedPartition) -> KnownRoot:
        """The cached root. Raises NotKnownYet if it is not cached. After a failed read this raises the error of that
        read for a while: StorageFailed for damage, otherwise Retryable."""
        now_s = partition.used_s = self._now_s()
        root = self._known.get(partition)
        if root is not None:
            if now_s - root.read_s <= OLD_S:
                return root
            self._drop(partition)
        trouble = self.log_failures.get(partition)
        if trouble is not None and now_s < trouble.until_s:
            raise trouble.failure
        raise NotKnownYet(f"{partition}: its manifest is being read; ask again", self.read(partition))

    def epochs_of(self, partition: ArchivedPartition) -> LeaderEpochs:
        """The lineage up to the known end. Raises the same errors as `of`."""
        root = self.of(partition)
        if not root.is_traced:
            raise NotKnownYet(f"{partition}: its lineage is being read; ask again", self._trace(partition, root))
        return root.lineage

    def keep_polled(self, partition: ArchivedPartition) -> None:
        """Poll `partition` from now on, because a client waits for its next record."""
        partition.used_s = self._now_s()
        if partition not in self._scheduled and partition not in self.log_failures:
            self.read(partition)

    async def refresh(self, partitions: Collection[ArchivedPartition], wait_s: float, *, lineage: bool = False) -> None:
        """Read the roots that are not cached or were read more than `FRESH_S` ago. Wait up to `wait_s`. A root that
        cannot be read does not change.
        """
        now_s = self._now_s()
        until_s = now_s + wait_s
        reading = []
        for partition in partitions:
            partition.used_s = now_s
            root, trouble = self._known.get(partition), self.log_failures.get(partition)
            is_old = root is None or root.read_s < now_s - FRESH_S
            if is_old and (trouble is None or now_s >= trouble.until_s):
                reading.append(self.read(partition))
        if reading:
            await asyncio.wait(reading, timeout=wait_s)
        if lineage:
            found = [(each, root) for each in partitions if (root := self._known.get(each)) is not None]
            tracing = [self._trace(each, root) for each, root in found if not root.is_traced]
            if tracing:
                await asyncio.wait(tracing, timeout=max(until_s - self._now_s(), 0.0))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────
    def read(self, partition: ArchivedPartition) -> asyncio.Future[None]:
        """Read the root. The future is done, without an error, when the read succeeded or failed. Do not cancel it."""
        reading = self._reading.get(partition)
        if reading is None:
            reading = asyncio.get_running_loop().create_future()
            self._reading[partition] = reading
            self._tasks.spawn(f"root of {partition}", self._read(partition, reading))
        return reading

    async def _read(self, partition: ArchivedPartition, done: asyncio.Future[None]) -> None:
        try:
            async with self._slots:
                self.reads += 1
                await self._load(partition)
        except (Retryable, AccessRefused, OSError) as away:  # TimeoutError is an OSError
            self.failure = str(away) or "no answer in time"
            self._refuse(partition, Retryable(f"{partition}: the bucket does not answer: {self.failure}"), AGAIN_S)
        except ThermoclineError as damage:  # Corrupt, NewerFormat, Fenced (the root is gone)
            if not await self._is_deleted(partition):
                self._damaged(partition, damage)
        finally:
            del self._reading[partition]
            done.set_result(None)

    async def _is_deleted(self, partition: ArchivedPartition) -> bool:
        """Whether the partition's topic is deleted in the newest image. Then its objects are deleted too."""
        with suppress(Retryable, AccessRefused, OSError):
            await self._newer_image()
        return partition.is_deleted

    async def _load(self, partition: ArchivedPartition) -> None:
        root = self._known.get(partition)
        began_s = self._now_s()
        if root is None:
            manifests = self._manifests(partition)
            if await manifests.load() is None:
                raise StorageFailed(f"{partition} has no manifest in the bucket")
            root = KnownRoot(partition, manifests, self._cold)
        else:
            await root.manifests.reload_if_changed()
        # A client that gets an epoch above that of Metadata assumes another log, so a newer image is read first. During
        # that read a cold read may load a later root. An image that was read after the root suffices even if it lacks
        # the epoch, as in a copy of a bucket.
        awaited = partition.leader_epoch
        while root.manifest.leader_epoch > max(awaited, partition.leader_epoch):
            awaited = root.manifest.leader_epoch
            await self._newer_image()
        self.failure = ""
        if self.log_failures.pop(partition, None) is not None:
            log.info("%s can be read again", partition)
        root.read_s = began_s
        if not partition.is_deleted:
            self._keep(partition, root)
        root.update_partition()

    def _manifests(self, partition: ArchivedPartition) -> ManifestStore:
        world = self._world
        return ManifestStore(
            self._store,
            partition.topic_id,
            partition.index,
            world.rng,
            world.clock,
            workers=world.workers,
            page_cache=self._pages,
        )

    def _refuse(self, partition: ArchivedPartition, failure: ThermoclineError, for_s: float) -> None:
        """Refuse requests for `for_s` seconds, unless the root is cached: a cached root is still served."""
        if partition not in self._known and not partition.is_deleted:
            is_damage = isinstance(failure, StorageFailed)
            self.log_failures[partition] = ReadFailure(failure, self._now_s() + for_s, is_damage)
            partition.wake()

    def _damaged(self, partition: ArchivedPartition, damage: ThermoclineError) -> None:
        """Stop serving the partition, because its end may belong to another log."""
        if (known := self.log_failures.get(partition)) is None or not known.is_damage:
            log.error("%s is not served: %s", partition, damage)
        self._drop(partition)
        self._refuse(partition, StorageFailed(f"{partition} is not served: {damage}"), DAMAGED_S)

    def _trace(self, partition: ArchivedPartition, root: KnownRoot) -> asyncio.Future[None]:
        """Read the lineage. The future is done, without an error, after success or failure. Do not cancel it."""
        tracing = self._tracing.get(partition)
        if tracing is None:
            tracing = asyncio.get_running_loop().create_future()
            self._tracing[partition] = tracing
            self._tasks.spawn(f"lineage of {partition}", self._read_lineage(partition, root, tracing))
        return tracing

    async def _read_lineage(self, partition: ArchivedPartition, root: KnownRoot, done: asyncio.Future[None]) -> None:
        try:
            async with self._slots:
                end, of = root.manifest.remote_end_offset, (partition.topic_id, partition.index)
                root.lineage = (await state_at(self._store, root.manifests, of, end, _FOOTER_S)).epochs
                root.lineage_end = end
        except (ThermoclineError, OSError) as failure:
            log.warning("the lineage of %s could not be read: %s", partition, failure)
        finally:
            del self._tracing[partition]
            done.set_result(None)

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _keep(self, partition: ArchivedPartition, root: KnownRoot) -> None:
        self._drop(partition)
        self._known[partition] = root
        self._weights[partition] = root.weight
        self._entries += root.weight
        self._schedule(partition)
        while self._entries > ENTRIES_MAX and len(self._known) > 1:
            self._drop(next(iter(self._known)))  # idle roots are first, because they are polled less often

    def _drop(self, partition: ArchivedPartition) -> None:
        if self._known.pop(partition, None) is not None:
            self._entries -= self._weights.pop(partition)

    def forget(self, partition: ArchivedPartition) -> None:
        partition.is_deleted = True
        self._drop(partition)
        self.log_failures.pop(partition, None)

    def _schedule(self, partition: ArchivedPartition) -> None:
        if partition in self._scheduled:
            return
        now_s = self._now_s()
        in_s = next_poll_s(now_s - partition.used_s, len(self._known), is_waited_for=partition.is_waited_for())
        if in_s is None:
            self._drop(partition)
            return
        self._scheduled.add(partition)
        self._turn += 1
        heapq.heappush(self._due, (now_s + in_s, self._turn, partition))

    async def keep(self) -> None:
        """Poll due roots until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self._now_s()
            while self._due and self._due[0][0] <= now_s:
                partition = heapq.heappop(self._due)[2]
                self._scheduled.discard(partition)
                if partition not in self._known:
                    continue
                self._schedule(partition)
                if partition in self._scheduled:
                    self.read(partition)

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────
    def __len__(self) -> int:
        return len(self._known)

    @property
    def all_known(self) -> list[tuple[ArchivedPartition, KnownRoot]]:
        return list(self._known.items())


def next_poll_s(idle_s: float, count: int, *, is_waited_for: bool) -> float | None:
    """Seconds until the next poll; None if polling ends. `idle_s`: seconds since the last request. `count`: number of
    polled roots.

    The interval grows with the number of roots, so that all polls together stay near `POLLS_PER_S` a second. It never
    exceeds `SELDOM_S`, the interval of an idle root. Pure.
    """
    if not is_waited_for and idle_s >= KEPT_S:
        return None
    if is_waited_for or idle_s < USED_S:
        return min(max(SOON_S, count / POLLS_PER_S), SELDOM_S)
    return SELDOM_S
