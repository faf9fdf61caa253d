"""One way from image to effect: whichever images of a chain a broker sees, it ends in what the last one says."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config.live import LiveConfig
from broker.config.resolve import resolve
from broker.following.changes import Share, changes, led_epochs
from broker.following.metadata_cache import MetadataCache
from broker.following.publisher import Publisher
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import (
    ConfigsSet,
    MetadataRecord,
    RowsSet,
    TopicCreated,
    TopicDeleted,
    TopicPurged,
)
from broker.metadata.rows import registered
from tests.support.cluster_kit import row, session

NODE = 1
TWO = (row(NODE), row(NODE))


class Told:
    """Effects that remember what they were told, and refuse what no broker could do."""

    def __init__(self, node_id: int = NODE) -> None:
        self.live = LiveConfig(resolve({"log.dirs": "/data"}, [], {}, None))
        self.metadata = MetadataCache("c")
        self.publisher = Publisher(self, self.metadata, self.live, node_id)
        self.node_id = node_id
        self.led: dict[str, dict[int, int]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.obeyed = self.live.now
        self.purged: list[str] = []
        self.calls: list[str] = []

    def resign(self, topic: Topic, indexes: Collection[int]) -> None:
        self.calls.append("resign")
        for index in indexes:
            del self.led[topic.topic_id][index]

    def withdraw(self, topic: Topic) -> None:
        self.calls.append("withdraw")
        self.led.pop(topic.topic_id, None)
        self.configs.pop(topic.topic_id, None)

    def follow_config(self) -> None:
        self.calls.append("follow_config")
        self.obeyed = self.live.now

    def reconfigure(self, topic: Topic) -> None:
        self.calls.append("reconfigure")
        self.configs[topic.topic_id] = topic.configs

    def lead(self, topic: Topic, indexes: Collection[int]) -> None:
        self.calls.append("lead")
        epochs = led_epochs(topic, self.node_id)
        led = self.led.setdefault(topic.topic_id, {})
        for index in indexes:
            assert index not in led, "who leads in one epoch resigns before it leads in the next"
            led[index] = epochs[index]
        self.configs.setdefault(topic.topic_id, topic.configs)

    def purge(self, topic: Topic) -> None:
        self.calls.append("purge")
        assert topic.topic_id not in self.led, "what still serves is not removed"
        assert topic.topic_id not in self.purged, "each deleted topic has one owner"
        self.purged.append(topic.topic_id)

    async def opened(self, topic_id: str) -> None:
        raise AssertionError("publishing waits for nothing")

    def obeys(self, image: ClusterImage) -> None:
        """What was told adds up to what the image says."""
        wanted = {id_: dict(led_epochs(topic, self.node_id)) for id_, topic in image.topics.items()}
        assert {id_: led for id_, led in self.led.items() if led} == {id_: led for id_, led in wanted.items() if led}
        assert self.configs == {id_: image.topics[id_].configs for id_ in self.configs}
        wanted_now = LiveConfig(resolve({"log.dirs": "/data"}, [], {}, None))
        wanted_now.follow(*image.configs_of(self.node_id))
        assert self.obeyed == wanted_now.now
        assert set(image.deleted) <= set(self.purged)


NODES = st.sampled_from([NODE, 2])
ROWS = st.builds(row, NODES, st.integers(0, 5), st.integers(0, 5))
IDS = st.sampled_from(["t0", "t1", "t2", "t3"])
CONFIGS = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), max_size=2)
BROKER_CONFIGS = st.dictionaries(
    st.sampled_from(["log.retention.ms", "log.roll.ms"]), st.sampled_from(["60000", "70000"]), max_size=2
)
RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(session, st.sampled_from(["i1", "i2", "i3"]), node_id=NODES, broker_epoch=st.integers(1, 9)),
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
    assert told.led == {"t": {0: 0, 1: 0}}


def test_a_new_session_of_the_same_node_resigns_before_it_leads_again() -> None:
    """Its leader epochs are others: who waits on the old ones is told (R2)."""
    before = ClusterImage().with_records([session(node_id=NODE), TopicCreated("t", "log", TWO, {})])
    after = before.with_records(
        [session("i2", node_id=NODE, broker_epoch=2), *registered(before, NODE, is_other_directory=False)]
    )
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
