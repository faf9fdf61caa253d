"""A throttle that was forgotten: since when something is throttled while nothing moves (KIP-73)."""

from __future__ import annotations

from collections.abc import Iterable

from broker.following.throttles import Throttles, throttling
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import ConfigsSet, MetadataRecord, Row, RowsSet, TopicCreated, TopicDeleted
from tests.support.brokers.cluster_kit import id_of, session

STILL, MOVES = Row((1, 2), 1, 5, 7, (1, 2), 5), Row((1, 2), 1, 5, 8, (1, 2), 5, target=(1, 3))
RATE = {"follower.replication.throttled.rate": "1000000"}
NAMED = {"leader.replication.throttled.replicas": "*", "retention.ms": "5"}


class Watch:
    """One broker, second by second."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.image = ClusterImage().with_records(
            [
                *(session(node_id=node, broker_epoch=node) for node in (1, 2, 3)),
                *(TopicCreated(id_of(number), f"t{number}", (STILL,), {}) for number in range(5)),
            ]
        )
        self.throttles = Throttles(lambda: self.now_s)

    def then(self, *records: MetadataRecord) -> float | None:
        """Ten seconds later."""
        self.now_s += 10
        self.image = self.image.with_records(records)
        self.throttles.apply_image(ImageAt(int(self.now_s), self.image))
        return self.throttles.idle_s


def moved(row: Row, numbers: Iterable[int] = (0,)) -> list[RowsSet]:
    return [RowsSet(id_of(number), ((0, row),)) for number in numbers]


def test_the_hour_begins_when_nothing_moves_any_more() -> None:
    """Whatever is set: a rate of one broker or all, replicas of a topic; with it taken back nothing is to be told."""
    watch = Watch()
    assert watch.then() is None
    assert watch.then(ConfigsSet(RATE, node_id=2)) == 0
    assert watch.then() == 10
    assert watch.then(*moved(MOVES)) is None and watch.then() is None
    still = Row((1, 3), 1, 5, 9, (1, 3), 5)
    assert watch.then(*moved(still)) == 0 and watch.then(ConfigsSet(NAMED, topic_id=id_of(1))) == 10
    assert watch.then(ConfigsSet({}, node_id=2)) == 20, "replicas are named still"
    assert watch.then(ConfigsSet({}, topic_id=id_of(1))) is None
    assert watch.then(ConfigsSet(RATE)) == 0


def test_topics_that_are_gone_hold_nothing() -> None:
    watch = Watch()
    watch.then(ConfigsSet(NAMED, topic_id=id_of(1)), *moved(MOVES, [2]))
    assert watch.throttles.idle_s is None
    assert watch.then(TopicDeleted(id_of(2))) == 0
    assert watch.then(TopicDeleted(id_of(1))) is None


def test_what_is_set_is_said() -> None:
    image = Watch().image
    assert throttling(image) == ""
    records = [ConfigsSet(NAMED, topic_id=id_of(number)) for number in range(5)]
    image = image.with_records([ConfigsSet(RATE), ConfigsSet(RATE, node_id=3), ConfigsSet(RATE, node_id=1), *records])
    assert throttling(image) == "a rate for all brokers, a rate for brokers 1, 3, replicas of t0, t1, t2 and 2 more"
