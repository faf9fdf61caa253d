"""What became of a cluster from one image to the next, as one broker counts and tells it.

Owns the counts since the start, and the lines of log about it: who decides, whose session ended, and one for each thing
an image changed of what this broker leads. Always true:
an election is counted by whoever was elected, a set that shrank or grew by whoever leads the partition then, so that a
sum over brokers counts each once; the first image is no change. Must not know what is done about an image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Row

log = logging.getLogger(__name__)

_SHOWN_MAX: Final = 3


@dataclass(slots=True)
class Turned:
    """Partitions, as `topic-index`: `led` here in a new leader epoch, `unclean` of those without all that was
    acknowledged, `resigned`: led here before and by somebody else, or nobody, now; `shrunk` and `grown`: led here, with
    fewer or more in sync."""

    led: list[str] = field(default_factory=list)
    unclean: list[str] = field(default_factory=list)
    resigned: list[str] = field(default_factory=list)
    shrunk: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)


def turned(before: ClusterImage, after: ClusterImage, node_id: int) -> Turned:
    """Of topics that both images have; one that no commit touched costs a look-up. Pure."""
    found = Turned()
    for name, was, row in _changed_rows(before, after):
        if row.leader == node_id:
            if row.leader_epoch > was.leader_epoch:
                found.led.append(name)
                if row.unclean_epoch > was.unclean_epoch:
                    found.unclean.append(name)
            if set(was.in_sync) - set(row.in_sync):
                found.shrunk.append(name)
            if set(row.in_sync) - set(was.in_sync):
                found.grown.append(name)
        elif was.leader == node_id:
            found.resigned.append(name)
    return found


def _changed_rows(before: ClusterImage, after: ClusterImage) -> Iterator[tuple[str, Row, Row]]:
    for topic_id, topic in after.topics.items():
        known = before.topics.get(topic_id)
        if known is None or known is topic:
            continue
        for index, (was, row) in enumerate(zip(known.rows, topic.rows, strict=False)):
            if was is not row and was != row:
                yield f"{topic.name}-{index}", was, row


class Turnover:
    """Counts since the start, of one broker."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._at: ImageAt | None = None
        self.elections = self.unclean_elections = 0
        self.shrinks = self.expansions = 0

    def obey(self, at: ImageAt) -> None:
        """This broker obeys `at` from now on."""
        before, self._at = self._at, at
        if before is None:
            return
        self._tell_of_brokers(before, at)
        found = turned(before.image, at.image, self._node_id)
        self.elections += len(found.led)
        self.unclean_elections += len(found.unclean)
        self.shrinks += len(found.shrunk)
        self.expansions += len(found.grown)
        if found.unclean:
            log.error("%s begin without all that was acknowledged", _named(found.unclean))
        if found.led:
            log.info("leads %s in a new leader epoch", _named(found.led))
        if found.resigned:
            log.info("leads %s no more", _named(found.resigned))
        if found.shrunk:
            log.warning("%s: fewer in-sync replicas", _named(found.shrunk))
        if found.grown:
            log.info("%s: more in-sync replicas", _named(found.grown))

    def _tell_of_brokers(self, before: ImageAt, at: ImageAt) -> None:
        """But what this broker decided itself: the controller told it with its reasons."""
        was, controller = before.controller, at.controller
        is_new = controller is not None and (was is None or controller.epoch != was.epoch)
        if controller is not None and is_new and controller.node_id != self._node_id:
            log.info("broker %d decides now: controller epoch %d", controller.node_id, controller.epoch)
        if is_new or controller is None or controller.node_id != self._node_id:
            for node_id in _ended(before.image, at.image):
                log.info("the session of broker %d ended", node_id)


def _ended(before: ClusterImage, after: ClusterImage) -> list[int]:
    """Whose session ended, and no other began."""
    return sorted(
        node_id
        for node_id, node in before.nodes.items()
        if node.active and ((now := after.nodes.get(node_id)) is None or not now.active)
    )


def _named(partitions: Sequence[str]) -> str:
    more = f" and {len(partitions) - _SHOWN_MAX} more" if len(partitions) > _SHOWN_MAX else ""
    return ", ".join(partitions[:_SHOWN_MAX]) + more
