"""One way from image to effect: whichever images of a chain a broker sees, it ends in what the last one says."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.config.live import LiveConfig
from broker.config.resolve import resolve
from broker.following.changes import Role, Share, changes, roles
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import (
    NO_LEADER,
    ConfigsSet,
    MetadataRecord,
    Row,
    RowsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from broker.metadata.rows import session_began
from broker.replication.in_sync import AppliedRow, applied_row
from tests.support.brokers.cluster_kit import row, session

NODE = 1
TWO = (row(NODE), row(NODE))


class Told:
    """Effects that remember what they were told, and refuse what no broker could do."""

    def __init__(self, node_id: int = NODE) -> None:
        self.live = LiveConfig(resolve({"log.dirs": "/data"}, [], {}, None))
        self.metadata = MetadataCache("c")
        self.publisher = Publisher(self, self.metadata, self.live, node_id)
        self.node_id = node_id
        self.roles: dict[str, dict[int, Role]] = {}
        self.counting: dict[tuple[str, int], AppliedRow] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.obeyed = self.live.now
        self.purged: list[str] = []
        self.calls: list[str] = []

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        self.calls.append("resign")
        for index in indexes:
            del self.roles[topic.topic_id][index]

    def drop(self, topic: Topic, indexes: Collection[int], *, is_seen: bool) -> None:
        self.calls.append("drop")
        for index in indexes:
            assert index not in self.roles[topic.topic_id], "a role ends before its log goes"

    def withdraw(self, topic: Topic) -> None:
        self.calls.append("withdraw")
        self.roles.pop(topic.topic_id, None)
        self.configs.pop(topic.topic_id, None)

    def follow_config(self) -> None:
        self.calls.append("follow_config")
        self.obeyed = self.live.now

    def reconfigure(self, topic: Topic) -> None:
        self.calls.append("reconfigure")
        self.configs[topic.topic_id] = topic.configs

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        self.calls.append("lead")
        self._begin(topic, indexes, leads=True)
        for index in indexes:
            self.counting[topic.topic_id, index] = applied_row(topic, index, self.metadata.image)

    def apply(self, topic: Topic, indexes: Collection[int]) -> None:
        self.calls.append("apply")
        for index in indexes:
            assert self.roles[topic.topic_id][index].leads
            self.counting[topic.topic_id, index] = applied_row(topic, index, self.metadata.image)

    def follow(self, topic: Topic, indexes: Collection[int]) -> None:
        self.calls.append("follow")
        self._begin(topic, indexes, leads=False)

    def _begin(self, topic: Topic, indexes: Collection[int], *, leads: bool) -> None:
        begun, had = roles(topic, self.node_id), self.roles.setdefault(topic.topic_id, {})
        for index in indexes:
            assert index not in had, "who has a role in one epoch resigns before it has one in the next"
            assert begun[index].leads is leads
            had[index] = begun[index]
        self.configs.setdefault(topic.topic_id, topic.configs)

    def purge(self, topic: Topic) -> None:
        self.calls.append("purge")
        assert topic.topic_id not in self.roles, "what still serves is not removed"
        assert topic.topic_id not in self.purged, "each deleted topic has one owner"
        self.purged.append(topic.topic_id)

    async def opened(self, topic_id: str) -> None:
        raise AssertionError("publishing waits for nothing")

    def obeys(self, image: ClusterImage) -> None:
        """What was told adds up to what the image says."""
        wanted = {id_: dict(roles(topic, self.node_id)) for id_, topic in image.topics.items()}
        assert {id_: had for id_, had in self.roles.items() if had} == {id_: had for id_, had in wanted.items() if had}
        for id_, had in self.roles.items():
            for index, role in had.items():
                if role.leads:
                    assert self.counting[id_, index] == applied_row(image.topics[id_], index, image)
        assert self.configs == {id_: image.topics[id_].configs for id_ in self.configs}
        wanted_now = LiveConfig(resolve({"log.dirs": "/data"}, [], {}, None))
        wanted_now.apply(*image.configs_of(self.node_id))
        assert self.obeyed == wanted_now.now
        assert set(image.deleted) <= set(self.purged)


NODES = st.sampled_from([NODE, 2])
EPOCHS = st.integers(0, 5)
SETS = st.sampled_from([(NODE, 2), (2, NODE), (2, 3), (3, 2, NODE)])
ROWS = st.one_of(
    st.builds(row, NODES, EPOCHS, EPOCHS),
    st.builds(
        Row, SETS, st.sampled_from([NO_LEADER, NODE, 2]), EPOCHS, EPOCHS, SETS, EPOCHS, st.sampled_from([(), (NODE,)])
    ),
)
IDS = st.sampled_from(["t0", "t1", "t2", "t3"])
CONFIGS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), max_size=2)
CONFIGS = CONFIGS | st.just({"min.insync.replicas": "2"})
BROKER_CONFIGS = st.dictionaries(
    st.sampled_from(["log.retention.ms", "log.roll.ms"]), st.sampled_from(["60000", "70000"]), max_size=2
) | st.just({"min.insync.replicas": "2"})
RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(
        session,
        st.sampled_from(["i1", "i2", "i3"]),
        node_id=NODES,
        broker_epoch=st.integers(1, 9),
        active=st.booleans(),
    ),
    st.builds(TopicCreated, IDS, st.just("name"), st.lists(ROWS, min_size=1, max_size=3).map(tuple), CONFIGS),
    st.builds(lambda topic_id, changed: RowsSet(topic_id, ((0, changed),)), IDS, ROWS),
    st.builds(lambda configs, topic_id: ConfigsSet(configs, topic_id=topic_id), CONFIGS, IDS),
    st.builds(TopicDeleted, IDS),
    st.builds(TopicPurged, IDS),
    st.builds(ConfigsSet, BROKER_CONFIGS, st.none(), st.sampled_from([None, NODE, 2])),
)


def chain_of(records: list[MetadataRecord]) -> list[ClusterImage]:
    """Of a topic id only the first creation counts: no controller gives one twice."""
    images, made = [ClusterImage()], set[str]()
    for record in records:
        if isinstance(record, TopicCreated):
            if record.topic_id in made:
                continue
            made.add(record.topic_id)
        images.append(images[-1].with_records([record]))
    return images


@settings(max_examples=400, deadline=None)
@given(st.lists(RECORDS, max_size=30), st.sets(st.integers(0, 30)))
def test_step_by_step_or_in_jumps_it_ends_in_the_same(records: list[MetadataRecord], seen: set[int]) -> None:
    """A broker that polls misses images; one that was away misses most."""
    images = chain_of(records)
    every, some, last = Told(), Told(), Told()
    for position, image in enumerate(images):
        every.publisher.publish(image)
        every.obeys(image)
        if position in seen:
            some.publisher.publish(image)
            some.obeys(image)
    some.publisher.publish(images[-1])
    last.publisher.publish(images[-1])
    for told in (every, some, last):
        told.obeys(images[-1])


@settings(max_examples=200, deadline=None)
@given(st.lists(RECORDS, max_size=30))
def test_the_same_image_again_asks_for_nothing(records: list[MetadataRecord]) -> None:
    """Also when it is not the same object: a page that was read anew."""
    image, same = (chain_of(records)[-1] for _ in range(2))
    told = Told()
    told.publisher.publish(image)
    told.calls.clear()
    told.publisher.publish(image)
    told.publisher.publish(same)
    assert told.calls == []


def test_a_start_is_a_jump_from_nothing() -> None:
    """Everything there is to lead, the configs to open it with first, and the bytes of what was deleted before."""
    image = ClusterImage().with_records(
        [
            session(node_id=NODE),
            TopicCreated("gone", "old", TWO, {}),
            TopicDeleted("gone"),
            TopicCreated("t", "log", TWO, {"a": "1"}),
            ConfigsSet({"log.roll.ms": "60000"}),
        ]
    )
    told = Told()
    told.publisher.publish(image)
    assert told.calls == ["follow_config", "lead", "purge"]
    assert told.roles == {"t": {0: Role(0, True), 1: Role(0, True)}}


def test_a_new_session_of_the_same_node_resigns_before_it_leads_again() -> None:
    """Its leader epochs are others: who waits on the old ones is told (R2)."""
    before = ClusterImage().with_records([session(node_id=NODE), TopicCreated("t", "log", TWO, {})])
    began = before.with_records([session("i2", node_id=NODE, broker_epoch=2)])
    after = began.with_records(session_began(began, NODE, is_other_directory=False))
    found = changes(before, after, NODE)
    assert found.resign == found.lead == (Share(after.topics["t"], (0, 1)),)
    assert changes(before, after, 2).lead == ()


def test_what_is_added_is_led_and_the_rest_left_alone() -> None:
    """Partitions that serve already do not hear of others that come."""
    before = ClusterImage().with_records([session(node_id=NODE), TopicCreated("t", "log", TWO, {})])
    after = before.with_records([RowsSet("t", ((2, row(NODE)), (3, row(NODE)))), ConfigsSet({"a": "1"}, topic_id="t")])
    found = changes(before, after, NODE)
    assert found.lead == (Share(after.topics["t"], (2, 3)),)
    assert found.reconfigure == (after.topics["t"],)
    assert found.resign == found.withdraw == found.purge == ()


def test_a_replica_follows_every_leader_epoch_anew() -> None:
    """R3, KAFKA-7164: also the same leader's next one; where nobody leads it lets go of the last. Who is only to join
    (`target`) copies too."""
    shared = Row((2, NODE), 2, 3, 4, (2, NODE), 3)
    before = ClusterImage().with_records([session(node_id=2), TopicCreated("t", "log", (shared,), {})])
    told = Told()
    told.publisher.publish(before)
    assert told.calls == ["follow"] and told.roles == {"t": {0: Role(3, False)}}
    epochs = [
        replace(shared, leader_epoch=4, partition_epoch=5),
        replace(shared, leader=NO_LEADER, leader_epoch=5, partition_epoch=6),
        replace(shared, leader=NODE, leader_epoch=6, partition_epoch=7),
        replace(shared, replicas=(2,), target=(NODE,), in_sync=(2,), leader_epoch=7, partition_epoch=8),
    ]
    for at in epochs:
        before = before.with_records([RowsSet("t", ((0, at),))])
        told.calls.clear()
        told.publisher.publish(before)
        assert told.calls == ["resign", "lead" if at.leader == NODE else "follow"]
    gone = before.with_records([RowsSet("t", ((0, replace(at, target=(), partition_epoch=9)),))])
    told.publisher.publish(gone)
    assert told.roles == {"t": {}}, "it is not assigned any more"


def test_a_leader_counts_anew_when_row_minimum_or_a_session_is_another() -> None:
    """D1, D4: all three from one image. Partitions without that replica hear nothing."""
    shared, own, both = Row((NODE, 2), NODE, 3, 4, (NODE, 2), 3), row(NODE), frozenset((NODE, 2))
    image = ClusterImage().with_records(
        [session(node_id=NODE), session(node_id=2, broker_epoch=2), TopicCreated("t", "log", (shared, own), {})]
    )
    told = Told()
    told.publisher.publish(image)
    assert told.counting["t", 0] == AppliedRow(3, 4, frozenset((NODE, 2)), 1, both, {NODE: 1, 2: 2})
    steps: list[tuple[MetadataRecord, AppliedRow]] = [
        (
            session("i", node_id=2, broker_epoch=2, active=False),
            AppliedRow(3, 4, frozenset((NODE, 2)), 1, both, {NODE: 1}),
        ),
        (session("j", node_id=2, broker_epoch=3), AppliedRow(3, 4, frozenset((NODE, 2)), 1, both, {NODE: 1, 2: 3})),
        (
            ConfigsSet({"min.insync.replicas": "3"}),
            AppliedRow(3, 4, frozenset((NODE, 2)), 2, both, {NODE: 1, 2: 3}),
        ),
        (
            RowsSet("t", ((0, replace(shared, partition_epoch=5, in_sync=(NODE,))),)),
            AppliedRow(3, 5, frozenset((NODE,)), 2, both, {NODE: 1, 2: 3}),
        ),
        (
            ConfigsSet({"min.insync.replicas": "1"}, topic_id="t"),
            AppliedRow(3, 5, frozenset((NODE,)), 1, both, {NODE: 1, 2: 3}),
        ),
    ]
    for record, wanted in steps:
        told.calls.clear()
        image = image.with_records([record])
        told.publisher.publish(image)
        assert "apply" in told.calls and not {"lead", "resign", "follow"} & {*told.calls}, told.calls
        assert told.counting["t", 0] == wanted
    assert told.counting["t", 1] == AppliedRow(0, 0, frozenset((NODE,)), 1, frozenset((NODE,)), {NODE: 1})
