"""Changes for one broker between two images: roles to begin and end, logs to remove.

Pure (design, concept 3). The same image twice gives no changes. The effects of a chain of images are the effects of its
last image. A topic created and deleted within one step is never led.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from broker.metadata.data_configs import min_in_sync_set
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER


class Share(msgspec.Struct, frozen=True):
    """Some partitions of `topic`, as in the newer image."""

    topic: Topic
    indexes: tuple[int, ...]


class Changes(msgspec.Struct, frozen=True):
    """The changes, in the order in which they are performed.

    - `resign`: partitions of topics that stay, whose role in an epoch (leader or follower) ended.
    - `withdraw`: deleted topics, as they were.
    - `drop`: partitions of topics that stay, which this node no longer holds. `is_seen`: both images show one session
      of this node.
    - `follow_config`: configs of all brokers, or of this broker, changed. `reconfigure`: topics whose own configs
      changed.
    - `apply`: partitions that this node continues to lead in the same epoch, if their row, minimum or replica sessions
      changed.
    - `lead`: partitions that this node leads in a new epoch. `follow`: assigned partitions that another broker leads in
      a new epoch, that have a new epoch without a leader, or whose unclean start is done.
    - `purge`: deleted topics that still have files or objects.
    """

    resign: tuple[Share, ...]
    withdraw: tuple[Topic, ...]
    drop: tuple[Share, ...]
    is_seen: bool
    follow_config: bool
    reconfigure: tuple[Topic, ...]
    apply: tuple[Share, ...]
    lead: tuple[Share, ...]
    follow: tuple[Share, ...]
    purge: tuple[Topic, ...]


def changes(before: ClusterImage, after: ClusterImage, node_id: int) -> Changes:
    """The changes for `node_id` from image `before` to `after`. A commit shares the objects of unchanged topics. Such a
    topic costs one look-up while sessions and minimum are unchanged."""
    resign: list[Share] = []
    drop: list[Share] = []
    reconfigure: list[Topic] = []
    apply: list[Share] = []
    lead: list[Share] = []
    follow: list[Share] = []
    others = _other_sessions(before, after)
    may_count_anew = bool(others) or before.cluster_configs != after.cluster_configs
    for topic_id, topic in after.topics.items():
        known = before.topics.get(topic_id)
        if known is topic and not may_count_anew:
            continue
        had = {} if known is None else roles(known, node_id)
        has = had if known is topic else roles(topic, node_id)
        if ended := tuple(index for index, role in had.items() if has.get(index) != role):
            resign.append(Share(topic, ended))
        if gone := tuple(index for index in had if index not in has):
            drop.append(Share(topic, gone))
        if known is not None and known.configs != topic.configs:
            reconfigure.append(topic)
        begun = [index for index, role in has.items() if had.get(index) != role]
        if led := tuple(index for index in begun if has[index].leads):
            lead.append(Share(topic, led))
        if followed := tuple(index for index in begun if not has[index].leads):
            follow.append(Share(topic, followed))
        if known is not None:
            went_on = [index for index, role in has.items() if role.leads and had.get(index) == role]
            other_min = min_in_sync_set(known, before) != min_in_sync_set(topic, after)
            if anew := tuple(index for index in went_on if other_min or _counts_anew(known, topic, index, others)):
                apply.append(Share(topic, anew))
    return Changes(
        resign=tuple(resign),
        withdraw=tuple(topic for topic_id, topic in before.topics.items() if topic_id not in after.topics),
        drop=tuple(drop),
        is_seen=_is_one_session(before, after, node_id),
        follow_config=before.configs_of(node_id) != after.configs_of(node_id),
        reconfigure=tuple(reconfigure),
        apply=tuple(apply),
        lead=tuple(lead),
        follow=tuple(follow),
        purge=tuple(topic for topic_id, topic in after.deleted.items() if topic_id not in before.deleted),
    )


class Role(NamedTuple):
    """A node's role for a partition, until the row has another epoch or leader. `waits_for_start`: the leader's unclean
    start is not complete; its result decides how a damaged follower log is handled (R18)."""

    leader_epoch: int
    leads: bool
    waits_for_start: bool = False


def roles(topic: Topic, node_id: int) -> Mapping[int, Role]:
    """The role of `node_id` in each partition of `topic` that it leads or is assigned, by index."""
    return {
        index: Role(row.leader_epoch, row.leader == node_id, not row.clean and row.leader not in (node_id, NO_LEADER))
        for index, row in enumerate(topic.rows)
        if row.leader == node_id or node_id in row.replicas or node_id in row.target
    }


def _other_sessions(before: ClusterImage, after: ClusterImage) -> frozenset[int]:
    """Nodes whose session began, ended or changed."""
    return frozenset(node_id for node_id, _ in _sessions(before) ^ _sessions(after))


def _sessions(image: ClusterImage) -> set[tuple[int, int]]:
    return {(node_id, node.broker_epoch) for node_id, node in image.nodes.items() if node.active}


def _is_one_session(before: ClusterImage, after: ClusterImage, node_id: int) -> bool:
    was, now = before.nodes.get(node_id), after.nodes.get(node_id)
    return was is not None and now is not None and was.active and now.active and was.broker_epoch == now.broker_epoch


def _counts_anew(known: Topic, topic: Topic, index: int, others: frozenset[int]) -> bool:
    row = topic.rows[index]
    return row != known.rows[index] or not others.isdisjoint(row.replicas) or not others.isdisjoint(row.target)
