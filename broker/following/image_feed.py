"""The images of the cluster in order, from wherever they come: this process's own commits, and what it reads.

Owns the position this broker is at: how many records make the image it obeys. Always true: what comes late, or again,
changes nothing; so a commit whose answer was lost takes effect when it is read, once; a claim that added no record is
news too, of who decides. Must not know who commits or who polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.following.publisher import Publisher
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage


class ImageFeed:
    """One broker's, in front of its publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.position = -1
        self._epoch = -1
        self._taken = asyncio.Event()
        self._watchers: list[Callable[[ImageAt], None]] = []

    @property
    def image(self) -> ClusterImage:
        """What this broker obeys now."""
        return self._publisher.image

    def take(self, at: ImageAt) -> bool:
        """Obey `at`; whether it was newer than what is obeyed."""
        position, image, controller = at
        epoch = -1 if controller is None else controller.epoch
        # Both only grow along the versions of the root, so one look at either tells which is newer.
        if position < self.position or (position == self.position and epoch <= self._epoch):
            return False
        self._publisher.publish(image, controller)
        self.position, self._epoch = position, epoch  # after: what fails is obeyed with the next look at the root
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()
        for watcher in self._watchers:
            watcher(at)
        return True

    def watch(self, watcher: Callable[[ImageAt], None]) -> None:
        """Tell `watcher` of each image that is obeyed from now on. A call must neither wait nor raise."""
        self._watchers.append(watcher)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds`, which is asked now and after each image. The caller bounds the wait."""
        while not holds():
            await self._taken.wait()
