"""Topics whose partitions are on their way to be led: tried until they are, or stay offline, or nobody wants it.

Owns how far each topic came, over all attempts, and which partitions stay offline. Always true: a partition is opened
once (two `Partition`s over one log would each have half of those who wait for it); all attempts at a topic end before
the next begins; what is open is published soon, whatever its neighbours wait for; what disk or bucket say is damaged
keeps one partition offline, never its neighbours, and is told; what only the bucket's answer may have damaged on its
way is asked for again. Must not know how one partition is opened, nor how it is served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Final

from broker.metadata.image import Topic
from broker.partition.replica import Partition
from coldstore.root import RootVanished
from hotstore.errors import DamagedLog, ForeignLog, may_pass
from logformat.errors import Corrupt, Fenced, StorageFailed
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.rng import Rng
from seams.tasks import Tasks, supervise

log = logging.getLogger(__name__)

_REOPEN_S: Final = 5.0
_TOGETHER_S: Final = 0.5  # what opens in such a time is published at once: one change of what clients see, not many


class _Progress:
    """How far a topic's partitions came."""

    __slots__ = ("again", "changed", "indexes", "new", "opened", "ready", "topic_id")

    def __init__(self, topic_id: str, indexes: Collection[int], *, new: bool) -> None:
        self.topic_id = topic_id
        self.indexes = indexes
        self.new = new
        self.opened: set[int] = set()  # also those that stay offline, or are not to be led here
        self.ready: dict[int, Partition] = {}  # of those, what is not published yet
        self.changed = asyncio.Event()  # set when some of these indexes are over, then another one
        self.again: list[int] = []  # of those, whom to ask the bucket for again

    def works_on(self, index: int) -> bool:
        """Whether it is neither published nor over yet."""
        return index in self.indexes and (index not in self.opened or index in self.ready)


class Attempts:
    """Of one broker. `open_one(topic, index, new)` opens a partition, None where it is to be led no more, or is led
    already; `publish(topic_id, partitions)` lets clients see those that are open; `turn(name)` is the right to work on
    the directories of topics of a name."""

    def __init__(
        self,
        open_one: Callable[[Topic, int, bool], Awaitable[Partition | None]],
        publish: Callable[[str, list[Partition]], None],
        turn: Callable[[str], AbstractAsyncContextManager[None]],
        tasks: Tasks,
        rng: Rng,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._open_one = open_one
        self._publish = publish
        self._turn = turn
        self._tasks = tasks
        self._rng = rng
        self._report = report
        self._opening: dict[asyncio.Task[None], _Progress] = {}
        self._of_topic: dict[str, dict[asyncio.Task[None], _Progress]] = {}  # the same by topic id
        self._healing: dict[tuple[str, int], asyncio.Task[None]] = {}  # by topic id and index
        self.damaged: dict[TopicPartition, str] = {}
        """Partitions that refuse to open, and why."""

    @property
    def opened_count(self) -> int:
        """Partitions that are open and not published yet."""
        return sum(len(progress.ready) for progress in self._opening.values())

    def begin(self, topic: Topic, indexes: Collection[int], *, new: bool) -> None:
        """Open these partitions and publish each soon after it is open."""
        progress = _Progress(topic.topic_id, indexes, new=new)
        for index in indexes:
            self.damaged.pop(TopicPartition(topic.name, index), None)
        cut_off = [task for index in indexes if (task := self._cut_off(topic.topic_id, index)) is not None]

        async def attempt() -> None:
            if cut_off:
                await asyncio.wait(cut_off)
            missing = [index for index in indexes if index not in progress.opened]
            async with self._turn(topic.name):
                # All of them end before any is tried again.
                opening = asyncio.gather(
                    *(self._open(topic, index, progress, new=new) for index in missing), return_exceptions=True
                )
                try:
                    while not (await asyncio.wait([opening], timeout=_TOGETHER_S))[0]:
                        self._hand_over(topic, progress)
                finally:
                    if opening.cancel():
                        await asyncio.wait([opening])
            failures = [outcome for outcome in opening.result() if outcome is not None]
            if new and not failures:
                reach("topic.rooted")
            self._hand_over(topic, progress, is_last=not failures)
            if failures:
                raise failures[0]
            for index in progress.again:
                self._open_again(topic, index)

        name = f"open {topic.name}"
        work = supervise(name, attempt, self._rng, self._report, backoff_max_s=10.0)
        task = self._tasks.spawn(name, work)
        self._opening[task] = progress
        self._of_topic.setdefault(topic.topic_id, {})[task] = progress
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        progress = self._opening.pop(task)
        progress.changed.set()
        topic_id = progress.topic_id
        of_topic = self._of_topic[topic_id]
        del of_topic[task]
        if not of_topic:
            del self._of_topic[topic_id]

    def _hand_over(self, topic: Topic, progress: _Progress, *, is_last: bool = False) -> None:
        """Publish what opened since the last time; with the last, the topic, though none may have opened."""
        ready, progress.ready = progress.ready, {}
        if ready or is_last:
            self._publish_all(topic, [found for _, found in sorted(ready.items())])
        progress.changed.set()
        progress.changed = asyncio.Event()

    def _publish_all(self, topic: Topic, partitions: list[Partition]) -> None:
        lost = {found.index: found.tier.lost for found in partitions if found.tier.lost is not None}
        if lost:
            log.warning("%s", _lost_tails(topic.name, lost))
        self._publish(topic.topic_id, partitions)

    async def _open(self, topic: Topic, index: int, progress: _Progress, *, new: bool) -> None:
        """Note the partition, or that it stays offline while its neighbours serve, and a person is told."""
        try:
            found = await self._open_one(topic, index, new)
            if found is not None:
                progress.ready[index] = found
        except (ForeignLog, RootVanished):
            raise  # heals by itself when the purge of a deleted topic is done, of this one or of the one before (C9)
        except (Fenced, StorageFailed, Corrupt, OSError) as refused:
            if may_pass(refused):
                raise
            self._stays_offline(TopicPartition(topic.name, index), refused)
            if isinstance(refused, Corrupt) and not isinstance(refused, DamagedLog):
                progress.again.append(index)
        progress.opened.add(index)

    def _stays_offline(self, place: TopicPartition, refused: Exception) -> None:
        self.damaged[place] = str(refused)
        log.error("%s stays offline: %s", place, refused)

    def _open_again(self, topic: Topic, index: int) -> None:
        """What the bucket gave was damaged, perhaps only on its way: ask again, now and then, until it is not."""
        place = TopicPartition(topic.name, index)

        async def attempt() -> None:
            async with self._turn(topic.name):  # it may be led again, or deleted, meanwhile
                try:
                    partition = await self._open_one(topic, index, False)
                except (DamagedLog, Fenced) as refused:
                    self._stays_offline(place, refused)
                    return
                self.damaged.pop(place, None)
                if partition is not None:
                    log.warning("%s is online: what the bucket gives for it is whole again", place)
                    self._publish_all(topic, [partition])

        async def after_a_while() -> None:
            await asyncio.sleep(_REOPEN_S)
            await supervise(name, attempt, self._rng, self._report, backoff_s=_REOPEN_S, backoff_max_s=60.0)

        name, key = f"open {place} again", (topic.topic_id, index)
        task = self._healing[key] = self._tasks.spawn(name, after_a_while())

        def over(_: asyncio.Task[None]) -> None:
            if self._healing.get(key) is task:
                del self._healing[key]

        task.add_done_callback(over)

    def _cut_off(self, topic_id: str, index: int) -> asyncio.Task[None] | None:
        """Ask the bucket for it no more: another role of it begins, or another attempt; what ends then."""
        task = self._healing.get((topic_id, index))
        if task is not None and not task.cancelling():
            task.cancel()  # once: what it does to its end first would be cut off by another
        return task

    def on_its_way(self, topic_id: str, index: int) -> list[Partition]:
        """What is open of a partition here and waits for its neighbours to be published."""
        of_topic = self._of_topic.get(topic_id, {}).values()
        return [found for progress in of_topic if (found := progress.ready.get(index)) is not None]

    async def opened(self, topic_id: str) -> bool:
        """Wait until every attempt begun so far at the topic is over; whether none of them was given up."""
        waiting = list(self._of_topic.get(topic_id, ()))
        if waiting:
            await asyncio.wait(waiting)
        return not any(task.cancelled() for task in waiting)

    async def over(self, topic_id: str, index: int) -> None:
        """Wait until no attempt works on this partition: its role of a leader is over."""
        if (healing := self._cut_off(topic_id, index)) is not None:
            await asyncio.wait([healing])
        for task, progress in tuple(self._of_topic.get(topic_id, {}).items()):
            while not task.done() and progress.works_on(index):
                await progress.changed.wait()

    def give_up(self, topic: Topic) -> Callable[[], Awaitable[list[Partition]]]:
        """Try no more; the call waits until nothing works on it, and gives what was opened and not published."""
        cut_off = dict(self._of_topic.get(topic.topic_id, {}))
        ending = [*cut_off, *(task for (topic_id, _), task in self._healing.items() if topic_id == topic.topic_id)]
        for task in ending:
            task.cancel()

        async def ended() -> list[Partition]:
            await asyncio.gather(*ending, return_exceptions=True)
            for index in range(topic.partitions):
                self.damaged.pop(TopicPartition(topic.name, index), None)
            return [found for progress in cut_off.values() for found in progress.ready.values()]

        return ended

    async def close(self) -> bool:
        """Give everything up; whether no log is left whose tail is in doubt: all that held something are led."""
        ending, in_doubt = (
            [*self._opening, *self._healing.values()],
            any(not progress.new for progress in self._opening.values()),
        )
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        return not in_doubt and not self.damaged


def _lost_tails(topic: str, lost: dict[int, tuple[int, int]]) -> str:
    """One line a topic, however many partitions: what may be gone, and where to look. Nothing but the lost disk could
    tell how much of it there was."""
    shown = ", ".join(f"{index} [{first}, {end})" for index, (first, end) in sorted(lost.items())[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return (
        f"{topic}: what {len(lost)} partition{'s' * (len(lost) > 1)} got after the bucket's end, if anything, is lost; "
        f"offsets that clients may have seen are declared gaps: {shown}{more}; "
        f"`thermocline tier status --topic {topic}` names each"
    )
