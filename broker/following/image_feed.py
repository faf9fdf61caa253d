"""Image feed: orders the images from own commits, polls and heartbeats.

An older or repeated image changes nothing, so a commit whose response was lost takes effect once, when it is read. A
claim without records counts as newer, because the controller changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.following.publisher import Publisher
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage


class ImageFeed:
    """Passes images to this broker's publisher in order. `position`: number of records in the applied image."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.position = -1
        self._epoch = -1
        self._taken = asyncio.Event()
        self._watchers: list[Callable[[ImageAt], None]] = []

    @property
    def image(self) -> ClusterImage:
        return self._publisher.image

    def take(self, at: ImageAt) -> bool:
        position, image, controller = at
        epoch = -1 if controller is None else controller.epoch
        # Position and epoch never fall from one version of the root to the next, so position and epoch order the
        # images.
        if position < self.position or (position == self.position and epoch <= self._epoch):
            return False
        self._publisher.publish(image, controller)
        self.position, self._epoch = position, epoch  # set last: after a failure the next read applies the image
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()
        for watcher in self._watchers:
            watcher(at)
        return True

    def watch(self, watcher: Callable[[ImageAt], None]) -> None:
        """Call `watcher` with each image applied from now on. The watcher must not wait or raise."""
        self._watchers.append(watcher)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds`, checked now and after each image. The caller bounds the wait."""
        while not holds():
            await self._taken.wait()
