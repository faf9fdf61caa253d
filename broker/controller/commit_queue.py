"""The controller's queue of metadata changes, committed one batch at a time (Kafka's QuorumController event queue).

- A change is decided on the newest image and the decisions before it. The change is then committed, applied (image
  feed) and answered, in this order.
- After a commit of unknown outcome no change is decided until the outcome is known, so a retry never creates a second
  topic of one name.
- A process that lost the controller epoch makes no more decisions (R1). A change that began in one epoch never commits
  in a later epoch.
- A change that needs no commit is answered only while no other process can have claimed.

Changes that wait together are committed together, because a bucket takes only a few commits a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from broker.controller.decisions.decision import Decider, T, not_controller
from broker.following.image_feed import ImageFeed
from broker.metadata.cluster_root import COMMIT_BYTES_MAX, ClusterRoot, CommitTooLarge
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord
from coldstore.roots.root import RootVanished
from logformat.errors import Fenced, Retryable, ThermoclineError
from seams.loop.turns import Turns, next_turn

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 1000  # changes that wait at once; more are refused as Retryable
_TURN_S: Final = 60.0  # a change waits for earlier changes, which may wait for the bucket
_OUTCOME_S: Final = 120.0  # a change waits for its commit: four requests of at most 30 s (a page twice, two roots)
_TOPICS_PER_TURN: Final = 20_000  # topics visited by deciders: 5 ms of the loop
_TOPICS_PER_ROW: Final = 10  # the row of a new partition takes as long as ten visited topics
_SETTLE_S: Final = 5.0  # time between polls for an unknown outcome, while no change waits


class _Asked:
    """One change with a waiting caller. `outcome` is cancelled when the caller stops waiting."""

    __slots__ = ("_answer", "_decider", "_refusal", "is_begun", "outcome", "rows")

    def __init__(self, decider: Decider[Any], rows: int) -> None:
        self._decider = decider
        self.rows = max(rows, 0)  # a client's count may be negative
        self._answer: object = None
        self._refusal: ThermoclineError | None = None
        self.is_begun = False
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def decide(self, image: ClusterImage) -> tuple[MetadataRecord, ...]:
        """Decide the change and return its records. The answer or refusal waits until all decisions that it depends on
        are committed."""
        self._refusal = None
        try:
            decision = self._decider(image)
        except ThermoclineError as refused:
            self._refusal = refused
            return ()
        self._answer = decision.answer
        return decision.records

    def refuse(self, why: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(why)

    def tell(self) -> None:
        """Answer the caller: the decision is committed, or depends only on committed records."""
        if self._refusal is not None:
            self.refuse(self._refusal)
        elif not self.outcome.done():
            self.outcome.set_result(self._answer)


class CommitQueue:
    """The queue of changes. `keep` is its one task."""

    def __init__(self, root: ClusterRoot, feed: ImageFeed) -> None:
        self._root = root
        self._feed = feed
        self._queue: deque[_Asked] = deque()
        self._asked = asyncio.Event()
        self._doubtful: tuple[MetadataRecord, ...] | None = None  # records of a commit with an unknown outcome
        self._is_controller = True
        self._is_disputed: Callable[[], bool] = lambda: False

    @property
    def epoch(self) -> int:
        return self._root.epoch

    @property
    def image_bytes(self) -> int:
        return self._root.image_bytes

    async def decide(self, decider: Decider[T], rows: int = 0) -> T:
        """Run `decider`, wait until its records are committed and their image is applied here, and return its answer.
        `rows`: partitions that it adds, committed or not, because each takes time of the event loop.
        Raises the decider's errors; ApiError NOT_CONTROLLER; Retryable when earlier changes take too long or the
        outcome is unknown; and the errors of a commit. If the caller is cancelled, a change that did not begin is
        withdrawn."""
        if not self._is_controller:
            raise not_controller()
        if len(self._queue) >= QUEUE_MAX:
            raise Retryable(f"{QUEUE_MAX} changes of the cluster are queued already; try again")
        asked = _Asked(decider, rows)
        self._queue.append(asked)
        self._asked.set()
        try:
            await asyncio.wait([asked.outcome], timeout=_TURN_S)
            if asked.is_begun and not asked.outcome.done():
                await asyncio.wait([asked.outcome], timeout=_OUTCOME_S)
            if not asked.outcome.done():
                raise Retryable(f"changes of the cluster have waited for the bucket for {_TURN_S:.0f} s; try again")
            return cast(T, asked.outcome.result())
        finally:
            asked.outcome.cancel()
            if not asked.is_begun:
                with suppress(ValueError):  # `_taken` removed it already
                    self._queue.remove(asked)

    def renounce(self) -> None:
        """Another process is the controller: make no more decisions. This broker's partitions are not affected."""
        self._is_controller = False
        for asked in self._taken():
            asked.refuse(not_controller())

    def activate(self, is_disputed: Callable[[], bool]) -> None:
        """This process is the controller from now on, perhaps again. A commit in doubt is resolved first.
        `is_disputed`: whether another process may have claimed after this process.
        """
        self._is_controller, self._is_disputed = True, is_disputed
        self._asked.set()

    async def keep(self) -> None:
        """Commit waiting changes, one commit after the other, until cancelled. A commit in doubt is resolved even while
        no change waits.
        """
        while True:
            if not self._queue:
                self._asked.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SETTLE_S if self._doubtful and self._is_controller else None):
                        await self._asked.wait()
            if self._is_controller and await self._settled():
                await self._commit_next()

    async def _settled(self) -> bool:
        """Resolve a commit in doubt and apply its image. False when the bucket does not answer; waiting changes then
        fail."""
        doubtful, epoch = self._doubtful, self._root.epoch
        if doubtful is None:
            return True
        try:
            at = await self._root.settle()
        except (ThermoclineError, OSError) as unanswered:
            log.warning("it is not known yet whether the last change of the cluster was committed: %s", unanswered)
            why = self._refusal(unanswered, epoch)
            for asked in self._taken():
                asked.refuse(why)
            return False
        self._doubtful = None
        self._feed.take(at)
        came_true = at.image.with_records(doubtful) == at.image
        log.warning(
            "the last change of the cluster, whose outcome was unknown, was %s",
            "committed" if came_true else "not committed",
        )
        return True

    async def _commit_next(self) -> None:
        begun: list[_Asked] = []
        epoch = self._root.epoch
        try:
            records = await self._decide_next(begun)
            if self._root.epoch != epoch:
                raise not_controller()  # this process claimed again: another controller may have decided meanwhile
            if records:
                await self._commit(records)
        except (ThermoclineError, OSError) as failure:
            why = self._refusal(failure, epoch)
            for asked in begun:
                asked.refuse(why)
        else:
            for asked in begun:
                asked.tell()
        finally:
            for asked in begun:  # a change waits here only after a bug, which the supervisor reports
                asked.refuse(Retryable("the change was interrupted; check whether it took effect"))

    async def _decide_next(self, begun: list[_Asked]) -> tuple[MetadataRecord, ...]:
        """Decide as many changes as one commit takes, each on the image that includes the earlier changes. A change
        that depends on no commit is answered at once. If the image may be outdated, the answer is NOT_CONTROLLER,
        because no commit would detect that."""
        image = self._feed.image
        records: list[MetadataRecord] = []
        size = 0
        turns = Turns(_TOPICS_PER_TURN)
        while self._queue:
            asked = self._queue.popleft()
            asked.is_begun = True
            begun.append(asked)
            added = asked.decide(image)
            size += len(msgspec.json.encode(added)) if added else 0
            if records and size > COMMIT_BYTES_MAX:
                self._queue.appendleft(begun.pop())  # it is decided again for the next commit
                asked.is_begun = False
                break
            if added:
                records += added
                image = image.with_records(added)
            elif not records:
                if self._is_disputed():
                    begun.pop().refuse(not_controller())
                else:
                    begun.pop().tell()
            if turns.over(1 + len(image.topics) + _TOPICS_PER_ROW * asked.rows):
                await next_turn()  # only this task commits, so the image stays the same
        return tuple(records)

    async def _commit(self, records: tuple[MetadataRecord, ...]) -> None:
        self._doubtful = records  # the PUT may succeed even if the commit fails
        try:
            at = await self._root.commit(records)
        except CommitTooLarge:  # nothing was written
            self._doubtful = None
            raise
        self._doubtful = None
        self._feed.take(at)

    def _refusal(self, failure: Exception, epoch: int) -> Exception:
        """The error for changes of this epoch that failed. `Fenced` means that the controller epoch is over."""
        # A missing root may mean an unmounted directory. It does not mean that another controller took over.
        if not isinstance(failure, Fenced) or isinstance(failure, RootVanished):
            return failure
        if epoch == self._root.epoch:  # otherwise this process claimed again meanwhile
            log.error("no longer the controller: %s", failure)
            self.renounce()
        return not_controller()

    def _taken(self) -> list[_Asked]:
        taken = list(self._queue)
        self._queue.clear()
        return taken
