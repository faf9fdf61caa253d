"""What one image asks of a broker that obeyed another: a pure comparison (design, concept 3).

Owns the meaning of a step between two images for one node. Always true: the same image twice asks for nothing; a chain
of images ends in the same effects whether each is taken or only the last (who was away a while jumps); what was made
and deleted within one jump is never led. Must not know how anything it names is done, nor how images come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.metadata.image import ClusterImage, Topic


@dataclass(frozen=True, slots=True)
class Share:
    """Some partitions of `topic`, which is as the newer image has it."""

    topic: Topic
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """In the order in which they are to be performed.

    `resign`: partitions whose leadership of an epoch ended (of topics that stay). `withdraw`: topics that are gone, as
    they were. `follow_config`: other configs were set on all brokers or on this one. `reconfigure`: topics with other
    configs of their own. `lead`: partitions that this node leads from now on in the epoch the image has. `purge`:
    deleted topics whose files and objects remain.
    """

    resign: tuple[Share, ...]
    withdraw: tuple[Topic, ...]
    follow_config: bool
    reconfigure: tuple[Topic, ...]
    lead: tuple[Share, ...]
    purge: tuple[Topic, ...]


def changes(before: ClusterImage, after: ClusterImage, node_id: int) -> Changes:
    """What `node_id`, which obeys `before`, does to obey `after`.

    A topic costs a look-up when it is the same object in both images, as all are that a commit did not touch.
    """
    resign: list[Share] = []
    reconfigure: list[Topic] = []
    lead: list[Share] = []
    for topic_id, topic in after.topics.items():
        known = before.topics.get(topic_id)
        if known is topic:
            continue
        led_before = {} if known is None else led_epochs(known, node_id)
        led_after = led_epochs(topic, node_id)
        if ended := tuple(index for index, epoch in led_before.items() if led_after.get(index) != epoch):
            resign.append(Share(topic, ended))
        if known is not None and known.configs != topic.configs:
            reconfigure.append(topic)
        if begun := tuple(index for index, epoch in led_after.items() if led_before.get(index) != epoch):
            lead.append(Share(topic, begun))
    return Changes(
        resign=tuple(resign),
        withdraw=tuple(topic for topic_id, topic in before.topics.items() if topic_id not in after.topics),
        follow_config=before.configs_of(node_id) != after.configs_of(node_id),
        reconfigure=tuple(reconfigure),
        lead=tuple(lead),
        purge=tuple(topic for topic_id, topic in after.deleted.items() if topic_id not in before.deleted),
    )


def led_epochs(topic: Topic, node_id: int) -> Mapping[int, int]:
    """The leader epoch of each partition of `topic` that `node_id` leads, by index."""
    return {index: row.leader_epoch for index, row in enumerate(topic.rows) if row.leader == node_id}
