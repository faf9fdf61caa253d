"""What may be asked of the controller, and when each is answered.

Owns what a change waits for besides its commit: a topic that is made is answered when its partitions serve. Always
true: a caller that waits no longer ends the wait only, once the change was begun. Must not know how decisions are
committed (commit_queue), or what makes them right (topics, configs).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from broker.config.live import LiveConfig
from broker.controller.decisions import configs as config_decisions
from broker.controller.decisions import elections, reassignments, registrations, topics
from broker.controller.decisions.decision import Decider, Decision, MetadataWriter, T
from broker.controller.decisions.elections import Election, ElectionType
from broker.controller.decisions.fitness import FitnessByNode
from broker.controller.decisions.reassignments import Move, OngoingReassignment, Outcome
from broker.controller.remote_topic_creator import RemoteTopicCreator
from broker.controller.unclean_recovery import HeardNow
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import LogPlace
from logformat.errors import Retryable
from seams.rng import Rng

log = logging.getLogger(__name__)

Hear: TypeAlias = Callable[[ClusterImage, Iterable[LogPlace]], Awaitable[HeardNow]]


class ControllerRequests:
    """Errors of each method are `CommitQueue.decide`'s, and those of its decision. `opened` is `Effects.opened`;
    `remote` the controller where it is another broker (None: it never is); `hear` asks replicas what they hold
    (`UncleanRecoveryManager.look`); `said` is `ClusterControl.said`."""

    def __init__(
        self,
        commit_queue: MetadataWriter,
        metadata: MetadataCache,
        config: LiveConfig,
        rng: Rng,
        opened: Callable[[str], Awaitable[None]],
        remote: RemoteTopicCreator | None = None,
        hear: Hear | None = None,
        said: Callable[[ClusterImage], FitnessByNode | None] = lambda _: None,
    ) -> None:
        self._commit_queue = commit_queue
        self._metadata = metadata
        self._config = config
        self._rng = rng
        self._opened = opened
        self._remote = remote
        self._hear = hear
        self._said = said

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self._commit_queue.epoch

    async def create_topic(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str | None],
        *,
        replication_factor: int = 1,
        assignments: topics.Assignments = (),
        internal: bool = False,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic and wait until its partitions serve. `assignments`: (partition, replicas) pairs, instead of
        the two numbers."""
        wanted = topics.NewTopic(
            str(self._rng.uuid()), name, partitions, configs, replication_factor, assignments, internal
        )
        topic = await self._decide(
            lambda image: topics.create(image, wanted, self._config.now, self._commit_queue.image_bytes),
            validate_only=validate_only,
        )
        if not validate_only:
            await self.opened(topic)
            log.info("created topic %s (%s) with %d partitions", name, topic.topic_id, topic.partitions)
        return topic

    async def create_if_missing(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str | None],
        *,
        replication_factor: int = 1,
        internal: bool = False,
    ) -> None:
        """Create a topic, or wait until it serves where another request came first. Of an internal one there are at
        most as many replicas as brokers. Whoever is the controller: the one change that a broker asks for by itself."""
        try:
            if self._remote is None or not self._remote.decides():
                factor = replication_factor
                await self.create_topic(name, partitions, configs, replication_factor=factor, internal=internal)
                return
            await self._remote.create_topic(name, partitions, configs, replication_factor)
        except ApiError as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        topic = self._metadata.topic_named(name)
        if topic is None:
            raise Retryable(f"topic {name!r} was made, and is not seen here yet; ask again")
        await self.opened(topic)

    async def add_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Let a topic have `count` partitions in all, and wait until they serve. `assignments`: the replicas of each
        that is added."""
        topic = await self._decide(
            lambda image: topics.add_partitions(image, name, count, assignments), validate_only=validate_only
        )
        if not validate_only:
            await self.opened(topic)

    async def delete_topic(self, name: str, topic_id: str | None = None) -> Topic:
        """Free the name and stop serving. `topic_id`: only the topic of this id, whoever has the name now (KIP-516).

        Files and objects follow in the background, remembered until they are gone.
        """
        topic = await self._decide(lambda image: topics.delete(image, name, topic_id))
        log.info("deleted topic %s (%s); its objects go next", name, topic.topic_id)
        return topic

    async def forget(self, topic: Topic) -> None:
        """A deleted topic of which nothing is left, neither files nor objects: its id is remembered no more."""
        await self._decide(lambda image: topics.forget(image, topic.topic_id))

    async def set_configs(
        self, name: str, change: Callable[[Topic], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Replace a topic's explicit overrides by what `change`, which judges them, makes of the topic."""
        await self._decide(
            lambda image: config_decisions.set_on_topic(image, name, change, self._commit_queue.image_bytes),
            validate_only=validate_only,
        )

    async def set_broker_configs(
        self,
        node_id: int | None,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace what was set on a node (None: on every broker) by what `change`, which judges it, makes of it."""
        configs = await self._decide(
            lambda image: config_decisions.set_on_brokers(image, node_id, change), validate_only=validate_only
        )
        if not validate_only:
            log.info("configs set on %s: %s", "every broker" if node_id is None else f"broker {node_id}", configs)

    async def elect(self, kind: ElectionType, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Election]:
        """Let the leaders that are asked for lead; what became of each partition, by topic and index."""
        heard: HeardNow = {}
        if kind is ElectionType.UNCLEAN and self._hear is not None:
            image = self._metadata.image
            heard = await self._hear(image, elections.leaderless(image, wanted))
        return await self._decide(lambda image: elections.elect(image, kind, wanted, heard, self._said(image) or {}))

    async def reassign(self, wanted: Sequence[Move], allows_factor_change: bool = True) -> tuple[Outcome, ...]:
        """Let others hold partitions; what became of each move, in order."""
        found = await self._decide(
            lambda image: reassignments.reassign(
                image, wanted, self._said(image), allows_factor_change=allows_factor_change
            )
        )
        refused = [outcome.message for outcome in found if outcome.error is not ErrorCode.NONE]
        log.info(
            "of %d moves of partitions %d were refused%s",
            len(found),
            len(refused),
            f": {refused[0]}" if refused else "",
        )
        return found

    async def moves(
        self, wanted: Sequence[tuple[str, Sequence[int]]] | None = None
    ) -> list[tuple[str, list[OngoingReassignment]]]:
        """Partitions that move after all that was decided so far, by topic: all, or those of `wanted`."""
        return await self._decide(lambda image: Decision((), reassignments.under_way(image, wanted)))

    async def unregister(self, node_id: int) -> None:
        """A node that nothing is assigned to leaves the cluster."""
        await self._decide(lambda image: registrations.unregister(image, node_id))
        log.info("broker %d left the cluster for good", node_id)

    async def give_up(self, node_id: int, broker_epoch: int) -> None:
        """What lies on a node counts for nothing any more. `broker_epoch` as in `registrations.forget`."""
        await self._decide(lambda image: registrations.forget(image, node_id, broker_epoch))
        log.warning("broker %d is given up: its directory returns only as one that lost everything", node_id)

    async def opened(self, topic: Topic) -> None:
        """Wait until the partitions of `topic` that were decided so far serve; deleted first, it is an ApiError."""
        await self._opened(topic.topic_id)
        if topic.topic_id not in self._metadata.image.topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} was deleted before it could be opened"
            )

    async def _decide(self, decider: Decider[T], *, validate_only: bool = False) -> T:
        """`validate_only`: the answer as it would be, of a change that is not made."""
        if not validate_only:
            return await self._commit_queue.decide(decider)
        return await self._commit_queue.decide(lambda image: replace(decider(image), records=()))
