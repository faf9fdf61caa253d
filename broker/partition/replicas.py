"""The replicas of this broker: from a topic in the image to roles that partitions have here, and back.

Owns what the publisher of the image asks for (its `Effects`): leading, following, resigning, reconfiguring, dropping,
withdrawing, purging. No call waits: each begins what it names, and goes on with it until a later call says otherwise.
Always true: a partition has one role at a time, and the next begins when the one before let go of the log; once `close`
began none begins; a stop is clean only where every log's tail is known. Must not know how a leader comes to serve
(leaderships, attempts, opening) nor a follower to copy (follows), how a deleted topic goes (removal, purging), what
nobody assigned here (aside), how logs are closed (ending), nor what partitions need while they serve (upkeep).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.partition.aside import Aside
from broker.partition.configuring import Configuring
from broker.partition.dropping import Dropping
from broker.partition.ending import Ending
from broker.partition.follows import Follows
from broker.partition.leaderships import Leaderships, LeadershipWatcher
from broker.partition.opening import Opening
from broker.partition.purging import Purging
from broker.partition.registry import Registry
from broker.partition.removal import Removal
from broker.partition.replica import Partition
from broker.partition.upkeep import Upkeep
from broker.peers.links import Links
from hotstore.log_host import LogHost
from logformat.errors import Fenced
from logformat.values import TopicPartition
from seams.crash_points import reach
from seams.tasks import Tasks
from seams.world import World
from tiering.service import TierService


class Replicas:
    """See the module. `forget` asks the controller to forget a deleted topic of which nothing is left; it raises while
    it cannot."""

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
        self._metadata = metadata
        self._is_closing = False  # no role begins any more, whatever an image says: the clean marker vouches for it
        self._logs = logs
        self._registry = registry
        self._tiers = tiers
        self._report = report
        self._topics: dict[str, Topic] = {}  # by id, as last decided: also those that are still being opened
        self._configuring = Configuring(self._topics, self._configure, tasks)
        self._opening = Opening(config, logs, tiers, registry, metadata)
        self._removal = Removal(logs, tiers, tasks, report)
        self.aside = Aside(node_id, logs.places, metadata, self._removal, report)
        self._purging = Purging(node_id, metadata, self._removal, forget, tasks, world.rng, report, session_s)
        self._dropping = Dropping(node_id, metadata, self._removal, tasks, self._ended, tiers.let_go)
        self.upkeep = Upkeep(config, world, logs, registry)
        self._follows = Follows(
            config,
            world,
            logs,
            registry,
            metadata,
            tiers,
            links.to,
            tasks,
            report,
            self._free,
            self._make_way,
            self.upkeep.opened,
            self._opening.topic_config,
        )
        self._leaderships = Leaderships(
            node_id,
            self._topics,
            metadata,
            registry,
            self._opening,
            tiers,
            tasks,
            world.rng,
            report,
            turn=self._removal.turn,
            made_open=self.upkeep.opened,
            left=self._follows.left,
            make_way=self.aside.make_way,
        )
        self._attempts = self._leaderships.attempts

    @property
    def damaged(self) -> dict[TopicPartition, str]:
        """Partitions that refuse to open, and why."""
        return self._attempts.damaged

    def watch(self, watcher: LeadershipWatcher) -> None:
        """Tell `watcher` of everything that happens from now on, in the order in which watchers came."""
        self._leaderships.watchers.append(watcher)

    # ── what the publisher asks for ──────────────────────────────────────────────────────────────────────────────
    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to lead these partitions; they are published when all of them are open (`opened` waits for it).

        Opening is tried until it succeeds, and is given up by `withdraw` and `close` only."""
        self._topics[topic.topic_id] = topic
        if not self._is_closing:
            self._leaderships.lead(topic, indexes)

    async def opened(self, topic_id: str) -> None:
        """Wait until what was asked so far of the topic serves, or is withdrawn. Raises Retryable when the broker stops
        first. Whoever waits no longer ends the wait only."""
        await self._leaderships.opened(topic_id)

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        """Stop leading these partitions: who waits for an acknowledgement learns at once that this is not the leader
        (NOT_LEADER_OR_FOLLOWER), their jobs at the bucket end, their logs stay open.

        One that is on its way to being led resigns when it got there: its claim may be under way."""
        self._topics[topic.topic_id] = topic
        for index in indexes:
            self._attempts.damaged.pop(TopicPartition(topic.name, index), None)  # what is wrong the next role says
        self._follows.leave(topic, indexes)
        self._leaderships.resign(topic, indexes)

    @property
    def opened_count(self) -> int:
        """Partitions that are open, those of topics that are still being opened too."""
        return len(self._registry.partitions) + self._attempts.opened_count

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        """Their leaders count by the image as it is now; those on their way to be led do when they got there."""
        self._topics[topic.topic_id] = topic
        self._leaderships.apply(topic, indexes)

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        """Begin to copy these partitions from those who lead them."""
        self._topics[topic.topic_id] = topic
        if not self._is_closing:
            for index in indexes:
                self._follows.follow(topic, index)

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        """Let go of the logs of these partitions, which others hold now."""
        if self._is_closing:
            return  # the next start finds them strays
        for index in indexes:
            self._attempts.damaged.pop(TopicPartition(topic.name, index), None)
            self._registry.troubles.over((topic.topic_id, index))
            self._dropping.drop(topic, index, is_seen=is_seen)

    async def _free(self, topic: Topic, index: int) -> None:
        """As `_ended`, and the log was not dropped, or is gone."""
        await self._dropping.over(topic.topic_id, index)
        await self._leaderships.over(topic, index)

    async def _make_way(self, place: TopicPartition) -> None:
        """As `Aside.make_way`, in the turn of the topic's name: who has that now may be closing what lies there."""
        async with self._removal.turn(place.topic):
            await self.aside.make_way(place)

    async def _ended(self, topic: Topic, index: int) -> None:
        """Wait until no role, past or begun, works on the log."""
        await self._follows.left(UUID(topic.topic_id), index)
        await self._leaderships.over(topic, index)

    def reconfigure(self, topic: Topic) -> None:
        """Let the partitions of `topic` follow its configs: those that are being opened, when they are open."""
        self._topics[topic.topic_id] = topic
        self._opening.configure(topic, self._registry.of_topic(topic.name))
        self._follows.reconfigure(topic)
        if topic.name in self._registry.topics:
            self._registry.topics[topic.name] = topic

    def follow_config(self) -> None:
        """Let every partition obey what was set on brokers as it is now; those being opened do when they are open."""
        self._configuring.all()

    def _configure(self, topic_id: str) -> None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            self._opening.configure(topic, self._registry.of_topic(topic.name))
            self._follows.reconfigure(topic)

    def withdraw(self, topic: Topic) -> None:
        """Stop serving a deleted topic: its waiters learn it now. Its logs are closed in the background, before a new
        topic of the name is opened."""
        if self._is_closing:
            return  # its logs are closed with all others; the next start sees that it is deleted
        reach("topic.deleted")
        self._topics.pop(topic.topic_id, None)
        given_up = self._attempts.give_up(topic)
        self._follows.leave(topic, range(topic.partitions))
        withdrawn = self._registry.withdraw(topic.name) if topic.name in self._registry.topics else []
        for watcher in self._leaderships.watchers:
            watcher.withdrawn(topic.name)
        for partition in withdrawn:
            partition.resign(Fenced(f"topic {topic.name} was deleted"))
        for index in range(topic.partitions):
            self._registry.troubles.over((topic.topic_id, index))

        async def ended() -> list[Partition]:
            await self._follows.all_left(topic)
            unpublished = await given_up()
            return withdrawn + [partition for partition in unpublished if partition not in withdrawn]

        def is_remembered() -> bool:
            return self._purging.removes(topic.topic_id) or topic.topic_id in self._metadata.image.deleted

        self._removal.close(topic, ended, is_remembered)

    def purge(self, topic: Topic) -> None:
        """See `Purging.purge`."""
        if not self._is_closing:
            self._purging.purge(topic)

    async def keep_expiring(self) -> None:
        """Until cancelled: local retention of what is copied; what is led expires with its tier."""
        await self._follows.keep_expiring()

    async def close(self, *, clean: bool) -> bool:
        """See `Ending.close`. Whether every log could be left clean."""
        self._is_closing = True
        # A log whose tail is in doubt until the bucket answers must be in doubt at the next start, too.
        all_known = self._follows.are_open
        followed = await self._follows.close()
        all_known &= await self._attempts.close()
        ending = Ending(
            self._logs, self._tiers, self._registry, self.upkeep, self._leaderships.resigning, self._report, clean=clean
        )
        return await ending.close(followed, self._removal.closed()) and all_known
