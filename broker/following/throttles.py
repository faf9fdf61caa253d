"""Detects a replication throttle that is set while no partition moves, because an operator may have forgotten it
(KIP-73).

The cost of an image depends only on its changes. The time of a throttle that was set before this broker started counts
from this broker's start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage, Topic

_RATES: Final = ("follower.replication.throttled.rate", "leader.replication.throttled.rate")
_REPLICAS: Final = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")


_SHOWN_MAX: Final = 3


def throttling(image: ClusterImage) -> str:
    """The throttles that are set: brokers with a rate, topics with named replicas."""
    said = ["a rate for all brokers"] if _has(image.cluster_configs, _RATES) else []
    if nodes := sorted(node_id for node_id, configs in image.node_configs.items() if _has(configs, _RATES)):
        said.append(f"a rate for broker{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}")
    if topics := sorted(topic.name for topic in image.topics.values() if _has(topic.configs, _REPLICAS)):
        more = f" and {len(topics) - _SHOWN_MAX} more" if len(topics) > _SHOWN_MAX else ""
        said.append(f"replicas of {', '.join(topics[:_SHOWN_MAX])}{more}")
    return ", ".join(said)


def _has(configs: Mapping[str, str], names: tuple[str, ...]) -> bool:
    return bool(configs) and any(configs.get(name) for name in names)


class Throttles:
    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._topics: dict[str, Topic] = {}
        self._moving: set[str] = set()  # ids of topics with an ongoing reassignment
        self._named: set[str] = set()  # ids of topics with throttled replicas
        self._idle_since_s: float | None = None

    def apply_image(self, at: ImageAt) -> None:
        image, before = at.image, self._topics
        self._topics = image.topics
        for topic_id, topic in image.topics.items():
            if before.get(topic_id) is not topic:
                _put(self._moving, topic_id, any(row.target for row in topic.rows))
                _put(self._named, topic_id, _has(topic.configs, _REPLICAS))
        self._moving = {topic_id for topic_id in self._moving if topic_id in image.topics}
        self._named = {topic_id for topic_id in self._named if topic_id in image.topics}
        is_set = self._named or _has(image.cluster_configs, _RATES)
        is_set = is_set or any(_has(configs, _RATES) for configs in image.node_configs.values())
        if not is_set or self._moving:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = self._monotonic_s()

    @property
    def idle_s(self) -> float | None:
        """Seconds for which a throttle has been set while no partition moved; None: there is no such throttle."""
        return None if self._idle_since_s is None else self._monotonic_s() - self._idle_since_s


def _put(found: set[str], topic_id: str, is_in: bool) -> None:
    if is_in:
        found.add(topic_id)
    else:
        found.discard(topic_id)
