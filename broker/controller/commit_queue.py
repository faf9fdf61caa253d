"""The controller's office: what is asked, one commit at a time.

Owns the queue of changes, and whether a commit is in doubt. Always true: a change is decided on the newest image and
what was decided before it, committed, and only then obeyed (image feed) and answered, in this order; after a commit
whose outcome is unknown nothing else is decided until the bucket settled it, so that a retry never makes a second topic
of one name; who lost the controller epoch decides no more and does nothing else about it (R1), and what was begun in
one epoch neither commits in a later one of this process nor ends it; what rests on no commit is answered only while
nobody else can have claimed. Must not know what the changes are, nor Kafka's
requests.

What waits together is committed together: a bucket takes a few commits a second, whatever the number of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import msgspec

from broker.controller.decisions.decision import Decider, T, not_controller
from broker.following.image_feed import ImageFeed
from broker.metadata.cluster_root import COMMIT_BYTES_MAX, CommitTooLarge, ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import MetadataRecord
from coldstore.roots.root import RootVanished
from logformat.errors import Fenced, Retryable, ThermoclineError
from seams.turns import Turns, next_turn

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 1000
"""Changes that wait at once; above it whoever asks is told to come back."""
_TURN_S: Final = 60.0  # a change waits for those before it, which may wait for the bucket
_OUTCOME_S: Final = 120.0  # and for its own commit: a page, two roots and a page read again, of 30 s at most each
_TOPICS_PER_TURN: Final = 20_000  # looked at by deciders: 5 ms of the loop
_SETTLE_S: Final = 5.0  # between looks for a change whose outcome is unknown, when nobody asks for another


class ClusterRoot(Protocol):
    """`broker.metadata.cluster_root.ClusterRoot`. Errors are those of `coldstore.roots.root.RootStore.commit`."""

    @property
    def epoch(self) -> int: ...
    @property
    def image_bytes(self) -> int: ...
    async def commit(self, records: Sequence[MetadataRecord]) -> ImageAt: ...
    async def settle(self) -> ImageAt: ...


class _Asked:
    """One change that somebody waits for. `outcome` is cancelled when nobody waits any more."""

    __slots__ = ("_answer", "_decider", "_refusal", "is_begun", "outcome")

    def __init__(self, decider: Decider[Any]) -> None:
        self._decider = decider
        self._answer: object = None
        self._refusal: ThermoclineError | None = None
        self.is_begun = False
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def decide(self, image: ClusterImage) -> tuple[MetadataRecord, ...]:
        """The records; answer or refusal are kept, for when all that they rest on is committed."""
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
        """What was decided is a fact, or rests on facts only."""
        if self._refusal is not None:
            self.refuse(self._refusal)
        elif not self.outcome.done():
            self.outcome.set_result(self._answer)


class CommitQueue:
    """Of the controller; `keep` is its one task."""

    def __init__(self, root: ClusterRoot, feed: ImageFeed) -> None:
        self._root = root
        self._feed = feed
        self._queue: deque[_Asked] = deque()
        self._asked = asyncio.Event()
        self._doubtful: tuple[MetadataRecord, ...] | None = None  # what a commit of unknown outcome may have made true
        self._is_controller = True
        self._is_disputed: Callable[[], bool] = lambda: False

    @property
    def epoch(self) -> int:
        """The controller epoch this process committed last."""
        return self._root.epoch

    @property
    def image_bytes(self) -> int:
        """What the image takes in the bucket, about."""
        return self._root.image_bytes

    async def decide(self, decider: Decider[T]) -> T:
        """Have `decider` decide, and wait until its records are committed and their image is obeyed here; its answer.

        Raises what it raises; ApiError NOT_CONTROLLER; Retryable when others take too long or nothing is known of the
        outcome; and as a commit does. A caller that waits no longer takes back what was not begun, and nothing else.
        """
        if not self._is_controller:
            raise not_controller()
        if len(self._queue) >= QUEUE_MAX:
            raise Retryable(f"{QUEUE_MAX} changes of the cluster wait already; ask again")
        asked = _Asked(decider)
        self._queue.append(asked)
        self._asked.set()
        try:
            await asyncio.wait([asked.outcome], timeout=_TURN_S)
            if asked.is_begun and not asked.outcome.done():
                await asyncio.wait([asked.outcome], timeout=_OUTCOME_S)
            if not asked.outcome.done():
                raise Retryable(f"changes of the cluster still wait for the bucket after {_TURN_S:.0f} s; ask again")
            return cast(T, asked.outcome.result())
        finally:
            asked.outcome.cancel()
            if not asked.is_begun:
                with suppress(ValueError):  # taken already, by whoever refuses all that wait
                    self._queue.remove(asked)

    def renounce(self) -> None:
        """Another process is the controller: decide nothing more. What this broker leads and answers is not touched."""
        self._is_controller = False
        for asked in self._taken():
            asked.refuse(not_controller())

    def activate(self, is_disputed: Callable[[], bool]) -> None:
        """This process is the controller, again: what is in doubt since the last time is settled before all else.
        `is_disputed`: whether another one may have claimed since."""
        self._is_controller, self._is_disputed = True, is_disputed
        self._asked.set()

    async def keep(self) -> None:
        """Until cancelled: one commit after the other, and a look at what is in doubt when nobody asks."""
        while True:
            if not self._queue:
                self._asked.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SETTLE_S if self._doubtful and self._is_controller else None):
                        await self._asked.wait()
            if self._is_controller and await self._settled():
                await self._commit_next()

    async def _settled(self) -> bool:
        """Learn what became of a commit in doubt, and obey; False when the bucket does not tell: who waits is told."""
        doubtful, epoch = self._doubtful, self._root.epoch
        if doubtful is None:
            return True
        try:
            at = await self._root.settle()
        except (ThermoclineError, OSError) as unanswered:
            log.warning("a change of the cluster is still in doubt: %s", unanswered)
            why = self._refusal(unanswered, epoch)
            for asked in self._taken():
                asked.refuse(why)
            return False
        self._doubtful = None
        self._feed.take(at)
        came_true = at.image.with_records(doubtful) == at.image
        log.warning("a change of the cluster that was in doubt %s true", "came" if came_true else "did not come")
        return True

    async def _commit_next(self) -> None:
        """Decide what waits, commit it, obey it, answer it."""
        begun: list[_Asked] = []
        epoch = self._root.epoch
        try:
            records = await self._decide_next(begun)
            if self._root.epoch != epoch:
                raise not_controller()  # lost, and claimed anew: another one may have decided meanwhile
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
            for asked in begun:  # of a bug, which is told by whoever keeps this running; nobody waits for its end
                asked.refuse(Retryable("the change was given up in the middle; look whether it came true"))

    async def _decide_next(self, begun: list[_Asked]) -> tuple[MetadataRecord, ...]:
        """As many changes as one commit takes, each on the image that those before it make. What rests on no commit is
        answered at once: NOT_CONTROLLER where the image may be an old one by now, which a commit would show."""
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
                self._queue.appendleft(begun.pop())  # the next commit's, decided anew
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
            if turns.over(1 + len(image.topics)):
                await next_turn()  # nobody else commits: the image stays what the next one decides on
        return tuple(records)

    async def _commit(self, records: tuple[MetadataRecord, ...]) -> None:
        self._doubtful = records  # whatever ends the commit, the PUT may land
        try:
            at = await self._root.commit(records)
        except CommitTooLarge:  # before anything was written
            self._doubtful = None
            raise
        self._doubtful = None
        self._feed.take(at)

    def _refusal(self, failure: Exception, epoch: int) -> Exception:
        """What to tell those whose change, begun in this epoch, failed; a fence ends the controller of that epoch."""
        # A root that is gone may be a directory that was unmounted: nobody took our place in it.
        if not isinstance(failure, Fenced) or isinstance(failure, RootVanished):
            return failure
        if epoch == self._root.epoch:  # else this process claimed anew while its change was under way
            log.error("not the controller any more: %s", failure)
            self.renounce()
        return not_controller()

    def _taken(self) -> list[_Asked]:
        """All that waits, which waits no more."""
        taken = list(self._queue)
        self._queue.clear()
        return taken
