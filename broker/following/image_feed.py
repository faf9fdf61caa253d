"""The images of the cluster in order, from wherever they come: this process's own commits, and what it reads.

Owns the position this broker is at: how many records make the image it obeys. Always true: what
comes late, or again, changes nothing; so a commit whose answer was lost takes effect when it is read, once. Must not
know who commits or who polls.
"""

from __future__ import annotations

from broker.following.publisher import Publisher
from broker.metadata.image import ClusterImage


class ImageFeed:
    """One broker's, in front of its publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.position = -1

    @property
    def image(self) -> ClusterImage:
        """What this broker obeys now."""
        return self._publisher.image

    def take(self, position: int, image: ClusterImage) -> bool:
        """Obey `image`, made by the first `position` records; whether it was newer than what is obeyed."""
        if position <= self.position:
            return False
        self.position = position
        self._publisher.publish(image)
        return True
