"""Requests of clients and operators to the controller: topics, configs, users, ACLs, quotas, elections, reassignments,
nodes.

The creation of a topic is answered when its partitions serve. A caller that is cancelled after its change began only
stops waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from broker.config.live import LiveConfig
from broker.controller.controller_client import RemoteTopicCreator
from broker.controller.decisions import (
    acls,
    credentials,
    elections,
    quotas,
    reassignments,
    registrations,
    topics,
)
from broker.controller.decisions import configs as config_decisions
from broker.controller.decisions.decision import Charge, Decider, Decision, MetadataWriter, T, free
from broker.controller.decisions.elections import Election, ElectionType
from broker.controller.decisions.fitness import FitnessByNode
from broker.controller.decisions.reassignments import Move, OngoingReassignment, Outcome
from broker.controller.unclean_recovery import CandidatesByQuestion
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Acl, LogPlace
from broker.security.authorizer.acl_filter import AclFilter
from broker.security.sasl.scram import SECRET_BYTES
from logformat.errors import Retryable
from seams.rng import Rng

log = logging.getLogger(__name__)

AskCandidates: TypeAlias = Callable[[ClusterImage, Iterable[LogPlace]], Awaitable[CandidatesByQuestion]]


@dataclass(slots=True, eq=False, repr=False)
class ControllerRequests:
    """Requests to the controller. Each method raises the errors of `CommitQueue.decide` and of its decision. `opened`
    is `Effects.opened`. `remote`: the controller on another broker (None: there is no other broker). `ask_candidates`
    asks replicas about their logs (`UncleanRecoveryManager.ask`). `charge`: see `Charge`. `fitness` is
    `ClusterControl.fitness`."""

    _commit_queue: MetadataWriter
    _metadata: MetadataCache
    _config: LiveConfig
    _rng: Rng
    _opened: Callable[[str], Awaitable[None]]
    _remote: RemoteTopicCreator | None = None
    _ask_candidates: AskCandidates | None = None
    _fitness: Callable[[ClusterImage], FitnessByNode | None] = lambda _: None

    @property
    def epoch(self) -> int:
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
        charge: Charge = free,
    ) -> Topic:
        """Create a topic and wait until its partitions serve. `assignments`: (partition, replicas) pairs, which
        replace `partitions` and `replication_factor`."""
        wanted = topics.NewTopic(
            str(self._rng.uuid()), name, partitions, configs, replication_factor, assignments, internal
        )

        def create(image: ClusterImage) -> Decision[Topic]:
            decision = topics.create(image, wanted, self._config.now, self._commit_queue.image_bytes)
            charge(decision.answer.partitions)
            return decision

        topic = await self._decide(create, validate_only=validate_only, rows=len(assignments) or partitions)
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
        replication_factor: int,
        internal: bool = False,
        charge: Charge = free,
    ) -> None:
        """Create a topic if the name is free, and wait until it serves. It works on every broker, because brokers
        themselves request internal topics. An internal topic has at most as many replicas as there are brokers."""
        try:
            if self._remote is None or not self._remote.decides():
                factor = replication_factor
                await self.create_topic(
                    name, partitions, configs, replication_factor=factor, internal=internal, charge=charge
                )
                return
            # To the controller this is the broker's own request. It knows neither the client nor the client's quota.
            if not internal:
                topics.refuse_internal(name)
            charge(partitions)
            await self._remote.create_topic(name, partitions, configs, replication_factor)
        except ApiError as refused:
            if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        topic = self._metadata.topic_named(name)
        if topic is None:
            raise Retryable(f"topic {name!r} was created, and is not visible here yet; retry")
        await self.opened(topic)

    async def add_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        charge: Charge = free,
    ) -> None:
        """Grow a topic to `count` partitions and wait until they serve. `assignments`: replicas of each new
        partition."""

        def grow(image: ClusterImage) -> Decision[Topic]:
            decision = topics.add_partitions(image, name, count, assignments)
            charge(count - decision.answer.partitions)
            return decision

        topic = await self._decide(grow, validate_only=validate_only, rows=count)
        if not validate_only:
            await self.opened(topic)

    async def delete_topic(self, name: str, topic_id: str | None = None, charge: Charge = free) -> Topic:
        """Free the name and stop serving. `topic_id`: the topic of this id, even if another topic has the name now
        (KIP-516). Files and objects are deleted in the background; the deletion is recorded until all of them are
        gone."""

        def delete(image: ClusterImage) -> Decision[Topic]:
            decision = topics.delete(image, name, topic_id)
            charge(decision.answer.partitions)
            return decision

        topic = await self._decide(delete)
        log.info("deleted topic %s (%s); its objects are deleted next", name, topic.topic_id)
        return topic

    async def record_purged(self, topic: Topic) -> None:
        """Remove the record of a deleted topic after its files and objects are deleted."""
        await self._decide(lambda image: topics.purged(image, topic.topic_id))

    async def set_configs(
        self, name: str, change: Callable[[Topic], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Replace a topic's overrides by the result of `change`, which validates them."""
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
        """Replace the configs of a node (None: of every broker) by the result of `change`, which validates them."""
        configs = await self._decide(
            lambda image: config_decisions.set_on_brokers(image, node_id, change), validate_only=validate_only
        )
        if not validate_only:
            log.info("configs set on %s: %s", "every broker" if node_id is None else f"broker {node_id}", configs)

    async def alter_client_quotas(
        self,
        alterations: Sequence[quotas.Alteration],
        is_address: Callable[[str], bool],
        *,
        validate_only: bool,
    ) -> quotas.Refusals:
        """Alter client quotas (KIP-546). Returns the refused entities. See `quotas.alter`."""
        refused = await self._decide(
            lambda image: quotas.alter(image, alterations, is_address, self._commit_queue.image_bytes),
            validate_only=validate_only,
        )
        if not validate_only:
            log.info("client quotas of %d entities altered, %d refused", len(alterations), len(refused))
        return refused

    async def create_acls(self, wanted: Sequence[Acl]) -> list[acls.Created]:
        """Add each binding. Returns the reason of each refusal, in order."""
        return await self._decide(lambda image: acls.create(image, wanted, self._commit_queue.image_bytes))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[acls.Deleted]:
        """Remove the bindings that each filter matches. Returns these bindings, or the reason of the refusal, in
        order."""
        return await self._decide(lambda image: acls.delete(image, filters))

    async def elect(self, kind: ElectionType, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Election]:
        """Elect leaders; the outcome of each partition, by topic and index."""
        heard: CandidatesByQuestion = {}
        if kind is ElectionType.UNCLEAN and self._ask_candidates is not None:
            image = self._metadata.image
            heard = await self._ask_candidates(image, elections.leaderless(image, wanted))
        return await self._decide(lambda image: elections.elect(image, kind, wanted, heard, self._fitness(image) or {}))

    async def reassign(self, wanted: Sequence[Move], allows_factor_change: bool = True) -> tuple[Outcome, ...]:
        """Change the replicas of partitions; the outcome of each move, in order."""
        found = await self._decide(
            lambda image: reassignments.reassign(
                image, wanted, self._fitness(image), allows_factor_change=allows_factor_change
            )
        )
        refused = [outcome.message for outcome in found if outcome.error is not ErrorCode.NONE]
        log.info(
            "reassignment of %d partitions: %d refused%s",
            len(found),
            len(refused),
            f": {refused[0]}" if refused else "",
        )
        return found

    async def alter_credentials(
        self, deletions: Sequence[credentials.Deletion], upsertions: Sequence[credentials.Upsertion]
    ) -> tuple[credentials.Outcome, ...]:
        """Change SCRAM credentials; the outcome of each user."""
        fresh = self._rng.random_bytes(SECRET_BYTES)
        return await self._decide(
            lambda image: credentials.alter(image, deletions, upsertions, self._commit_queue.image_bytes, fresh)
        )

    async def ensure_scram_secret(self) -> None:
        """Add the SCRAM secret if the cluster has none. A cluster of an earlier version may have users but no
        secret."""
        fresh = self._rng.random_bytes(SECRET_BYTES)
        await self._decide(lambda image: Decision(credentials.secret(image, fresh), None))

    async def moves(
        self, wanted: Sequence[tuple[str, Sequence[int]]] | None = None
    ) -> list[tuple[str, list[OngoingReassignment]]]:
        """Ongoing reassignments after every earlier decision, by topic: all, or those of `wanted`."""
        return await self._decide(lambda image: Decision((), reassignments.under_way(image, wanted)))

    async def unregister(self, node_id: int) -> None:
        await self._decide(lambda image: registrations.unregister(image, node_id))
        log.info("broker %d left the cluster for good", node_id)

    async def give_up(self, node_id: int, broker_epoch: int) -> None:
        """See `registrations.forget`."""
        await self._decide(lambda image: registrations.forget(image, node_id, broker_epoch))
        log.warning("broker %d is given up: if its data directory returns, its logs count as lost", node_id)

    async def opened(self, topic: Topic) -> None:
        """Wait until the partitions of `topic` serve. ApiError if it is deleted first."""
        await self._opened(topic.topic_id)
        if topic.topic_id not in self._metadata.image.topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} was deleted before it could be opened"
            )

    async def _decide(self, decider: Decider[T], *, validate_only: bool = False, rows: int = 0) -> T:
        """Decide a change and commit it. `validate_only`: commit nothing. `rows`: see `CommitQueue.decide`."""
        if not validate_only:
            return await self._commit_queue.decide(decider, rows)
        return await self._commit_queue.decide(lambda image: replace(decider(image), records=()), rows)
