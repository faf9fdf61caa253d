"""`ReplicaManager`: gives each replica of this broker the role that the metadata image asks for.

It implements the publisher's `Effects`. No call waits: a call starts work that continues until a later call changes the
goal. No role begins after `close` began. A stop is clean only if the tail of every log is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial

from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.records import Row
from broker.partition.checkpointing import Checkpointing
from broker.partition.following.fetcher_manager import FetcherManager
from broker.partition.following.follower_retention import expire_all
from broker.partition.following.follower_role import FollowerRole
from broker.partition.leading.leader_role import LeaderRole, publish
from broker.partition.leading.publication import Publication
from broker.partition.registry import Registry
from broker.partition.removing.log_shutdown import LogShutdown
from broker.partition.removing.stray_logs import StrayLogs
from broker.partition.removing.topic_deletion import TopicDeletion
from broker.partition.replica_owner import ReplicaOwner
from broker.partition.roles import LeadershipWatcher, Roles
from broker.partition.topic_configs import ConfigUpdates, TopicConfigs
from broker.peers.links import Links
from hotstore.host.log_host import LogHost
from logformat.errors import Fenced, Retryable
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.loop.tasks import Tasks
from seams.world import World
from tiering.service import TierService


class ReplicaManager:
    """The replicas of one broker. `forget` asks the controller to forget a completely deleted topic, and raises if the
    controller does not."""

    def __init__(
        self,
        config: LiveConfig,
        world: World,
        logs: LogHost,
        registry: Registry,
        tiers: TierService,
        tasks: Tasks,
        report: Callable[[str, BaseException], None],
        metadata: MetadataCache,
        links: Links,
        forget: Callable[[Topic], Awaitable[None]],
    ) -> None:
        node_id, session_s = config.now.node_id, config.now.times.session_s
        self._live = config
        self._logs = logs
        self._tiers = tiers
        self._registry = registry
        self._report = report
        self._is_closing = False  # once set, no role begins; the clean-shutdown marker relies on that
        self._topics: dict[str, Topic] = {}  # topics by id, as in the newest image
        self._owners: dict[str, dict[int, ReplicaOwner]] = {}  # by topic id and index
        self._publications: dict[str, list[Publication]] = {}  # by topic id; removed when they are over
        self._config_updates = ConfigUpdates(self._topics, self._configure, tasks)
        self.stray_logs = StrayLogs(node_id, logs, metadata, report)
        self.checkpointing = Checkpointing(config, world, logs, registry)
        self._roles = Roles(
            config,
            world,
            logs,
            tiers,
            registry,
            metadata,
            TopicConfigs(config),
            FetcherManager(config, world.rng, metadata, links.to, tasks, report),
            tasks,
            report,
            self.checkpointing.opened,
            self.stray_logs.move_if_stray,
        )
        self._topic_deletion = TopicDeletion(
            node_id, metadata, logs, tiers, self._closed, forget, tasks, world.rng, report, session_s
        )

    @property
    def damaged(self) -> dict[TopicPartition, str]:
        """Reasons why partitions cannot be opened, by directory."""
        return {owner.place: owner.damaged for owner in self._all() if owner.damaged}

    def watch(self, watcher: LeadershipWatcher) -> None:
        """Notify `watcher` of every later change of leadership, after the watchers that were added earlier."""
        self._roles.watchers.append(watcher)

    # ── owners ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _all(self) -> Iterator[ReplicaOwner]:
        return (owner for owners in self._owners.values() for owner in owners.values())

    def _of(self, topic: Topic) -> Iterable[ReplicaOwner]:
        return tuple(self._owners.get(topic.topic_id, {}).values())

    def _owner(self, topic: Topic, index: int) -> ReplicaOwner:
        owners = self._owners.setdefault(topic.topic_id, {})
        if (owner := owners.get(index)) is None:
            owner = owners[index] = ReplicaOwner(self._roles, topic, index, self._gone)
        return owner

    def _gone(self, owner: ReplicaOwner) -> None:
        topic_id, index = owner.key
        owners = self._owners[topic_id]
        if owners.get(index) is owner:
            del owners[index]
        if not owners:
            del self._owners[topic_id]

    def _update_topic(self, topic: Topic) -> None:
        self._topics[topic.topic_id] = topic
        for owner in self._of(topic):
            owner.update(topic)

    # ── effects of the image ─────────────────────────────────────────────────────────────────────────────────────
    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to lead these partitions. The partitions are published when all of them are open (`opened` waits for
        this). Opening is retried until it succeeds, or until `withdraw` or `close` ends it."""
        self._update_topic(topic)
        if self._is_closing:
            return
        if new := [index for index in indexes if topic.rows[index].partition_epoch == 0]:
            reach("topic.committed")
            self._lead(topic, new, reach_rooted=True)
        if old := [index for index in indexes if topic.rows[index].partition_epoch > 0]:
            self._lead(topic, old)

    def _lead(self, topic: Topic, indexes: list[int], *, reach_rooted: bool = False) -> None:
        topic_id = topic.topic_id
        publication = Publication(topic.name, indexes, partial(self._publish, topic_id, reach_rooted))
        self._publications[topic_id] = [of for of in self._publications.get(topic_id, ()) if not of.over.is_set()]
        self._publications[topic_id].append(publication)
        for index in indexes:
            self._owner(topic, index).lead(topic, publication)

    def _publish(self, topic_id: str, is_new: bool, ready: list[LeaderRole]) -> None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            if is_new and not any(role.damaged for role in ready):
                reach("topic.rooted")
            publish(self._roles, topic, ready)

    async def opened(self, topic_id: str) -> None:
        """Wait until every partition of the topic that was asked for so far serves or is withdrawn. Raises Retryable
        when the broker stops first. If the caller is cancelled, only the wait ends."""
        for publication in tuple(self._publications.get(topic_id, ())):
            await publication.over.wait()
            if publication.was_given_up and (topic := self._topics.get(topic_id)) is not None:
                raise Retryable(f"the broker is stopping: topic {topic.name!r} is not opened any more")

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Stop leading or following these partitions. Pending acknowledgements fail at once with
        NOT_LEADER_OR_FOLLOWER, their bucket jobs end, and the logs stay open."""
        before = self._roles.metadata.image.topics.get(topic.topic_id, topic)
        self._update_topic(topic)
        for index in indexes:
            self._owner(topic, index).rest(may_have_left=self._may_have_left(before.rows[index], topic.rows[index]))

    def _may_have_left(self, before: Row, row: Row) -> bool:
        """Whether rows between these two may have assigned the partition to others alone. A broker that leaves raises
        the leader epoch, and joins again by another row, outside the in-sync set."""
        has_missed_rows = row.partition_epoch > before.partition_epoch + 1 and row.leader_epoch > before.leader_epoch
        return has_missed_rows and self._roles.node_id not in row.in_sync

    @property
    def opened_count(self) -> int:
        """Open partitions, including partitions of topics that are still being opened."""
        ready = sum(of.ready_count for publications in self._publications.values() for of in publications)
        return len(self._registry.partitions) + ready

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """The leaders of these partitions apply the rows of the image. A partition that is being opened applies its row
        when it is published."""
        self._update_topic(topic)
        for index in indexes:
            role = self._owner(topic, index).role
            if isinstance(role, LeaderRole):
                role.apply()

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        self._update_topic(topic)
        if not self._is_closing:
            for index in indexes:
                self._owner(topic, index).follow(topic)

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        """Remove the logs of these partitions: other brokers hold them."""
        if self._is_closing:
            return  # the next start treats the logs as strays
        for index in indexes:
            self._owner(topic, index).drop(is_seen=is_seen)

    def reconfigure(self, topic: Topic) -> None:
        """Apply the topic's configs to its partitions. A partition that is being opened gets them when it is open."""
        self._update_topic(topic)
        self._configure(topic.topic_id)
        registry = self._registry
        if (known := registry.topics.get(topic.name)) is not None and known.topic_id == topic.topic_id:
            registry.topics[topic.name] = topic

    def follow_config(self) -> None:
        """Apply the broker's new configs to every partition. A partition that is being opened gets them when it is
        open."""
        self._config_updates.all()

    def _configure(self, topic_id: str) -> None:
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        roles = [owner.role for owner in self._of(topic) if owner.role is not None and not owner.role.is_over]
        led = [role.partition for role in roles if isinstance(role, LeaderRole)]
        self._roles.configs.apply(topic, [partition for partition in led if partition is not None])
        for role in roles:
            if isinstance(role, FollowerRole):
                role.reconfigure()

    def withdraw(self, topic: Topic) -> None:
        """Stop serving a deleted topic. Its waiters fail at once. Its logs are closed in the background, before a new
        topic of that name is opened."""
        if self._is_closing:
            return  # the topic's logs are closed with all other logs; the next start removes them
        reach("topic.deleted")
        self._topics.pop(topic.topic_id, None)
        registry = self._registry
        registry.withdraw(topic)
        for watcher in self._roles.watchers:
            watcher.withdrawn(topic.name)

        def is_remembered() -> bool:
            deleted = self._roles.metadata.image.deleted
            return self._topic_deletion.removes(topic.topic_id) or topic.topic_id in deleted

        for owner in self._of(topic):
            owner.delete(is_remembered)
        for index in range(topic.partitions):
            registry.log_failures.over((topic.topic_id, index))
        self._publications.pop(topic.topic_id, None)

    def purge(self, topic: Topic) -> None:
        if not self._is_closing:
            self._topic_deletion.purge(topic)

    async def _closed(self, topic_id: str) -> None:
        """Wait until no log of a withdrawn topic is open or being opened."""
        for owner in tuple(self._owners.get(topic_id, {}).values()):
            await owner.aim_reached()

    # ── background and shutdown ──────────────────────────────────────────────────────────────────────────────────
    async def keep_expiring(self) -> None:
        """Apply local retention to followed logs until cancelled. Led logs expire with their tier."""
        while True:
            await asyncio.sleep(self._live.now.retention_check_interval_ms / 1000)
            copies = [
                (role.followed, role.topic)
                for owner in self._all()
                if isinstance(role := owner.role, FollowerRole) and role.followed is not None
            ]
            await expire_all(copies, self._roles.configs.of, self._roles.world.clock.wall_ms())

    async def close(self, *, clean: bool) -> bool:
        """See `LogShutdown.close`. Returns whether every log was left clean."""
        self._is_closing = True
        # If a log's tail is unknown until the bucket answers, the next start must also treat the tail as unknown.
        owners = tuple(self._all())
        all_known = not any(owner.is_in_doubt for owner in owners)
        self._roles.fetchers.cancel()
        for owner in owners:
            owner.stop(Fenced(f"{owner.place}: the broker is stopping"))
        serving = [role for owner in owners if isinstance(role := owner.role, LeaderRole) and not role.is_over]

        async def others_end() -> None:
            for owner in owners:
                await owner.aim_reached()

        ending = LogShutdown(self._logs, self._tiers, self._report, clean=clean)
        return await ending.close(serving, others_end()) and all_known
