"""Images come from commits and from polls, in any order: a broker only ever goes forward."""

from __future__ import annotations

import pytest

from broker.following.image_feed import ImageFeed
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import TopicCreated, TopicDeleted
from tests.support.brokers.cluster_kit import id_of, row, session
from tests.unit.broker.following.test_publisher import NODE, Told


def test_cluster_d17_what_comes_late_or_again_changes_nothing() -> None:
    """A poll that was under way while a commit landed shows what was before it."""
    started = ClusterImage().with_records([session(node_id=NODE)])
    made = started.with_records([TopicCreated(id_of(1), "log", (row(NODE),), {})])
    deleted = made.with_records([TopicDeleted(id_of(1))])
    told = Told()
    feed = ImageFeed(told.publisher)
    assert feed.take(ImageAt(3, started)) and feed.take(ImageAt(5, deleted))
    calls = list(told.calls)
    for position, image in ((5, deleted), (4, made), (3, started)):
        assert not feed.take(ImageAt(position, image))
    assert told.calls == calls == ["purge"]
    assert (feed.position, feed.image) == (5, deleted)


def test_a_page_that_says_the_same_is_a_new_position_and_nothing_else() -> None:
    """Folding changes the root, not the image."""
    told = Told()
    feed = ImageFeed(told.publisher)
    for position in (1, 2):
        records = [session(node_id=NODE), TopicCreated(id_of(1), "log", (row(NODE),), {})]
        assert feed.take(ImageAt(position, ClusterImage().with_records(records))) and feed.position == position
        assert told.metadata.topic("log").topic_id == id_of(1)
    assert told.calls == ["lead"]


def test_who_decides_is_news_also_where_no_record_came_with_it() -> None:
    """A claim may add nothing; and an older controller's name, read late, is none."""
    told = Told()
    feed = ImageFeed(told.publisher)
    image = ClusterImage().with_records([session(node_id=NODE)])
    first, second = ControllerAt(NODE, "i", 1), ControllerAt(2, "j", 2)
    assert feed.take(ImageAt(1, image, first)) and told.metadata.controller == first
    assert feed.take(ImageAt(1, image, second)) and told.metadata.controller == second
    assert not feed.take(ImageAt(1, image, first)) and told.metadata.controller == second
    assert told.metadata.image is image and not told.calls


def test_an_image_that_could_not_be_obeyed_is_obeyed_with_the_next_look() -> None:
    """An effect that raised left the image behind as one that was obeyed: a partition had no role for ever."""
    image = ClusterImage().with_records([session(node_id=NODE), TopicCreated(id_of(1), "log", (row(NODE),), {})])
    told = Told()
    publish, failing = told.publisher.publish, [True]

    def once(after: ClusterImage, controller: ControllerAt | None = None) -> None:
        if failing.pop():
            failing.append(False)
            raise KeyError("a bug of an effect")
        failing.append(False)
        publish(after, controller)

    told.publisher.publish = once  # type: ignore[method-assign]
    feed = ImageFeed(told.publisher)
    with pytest.raises(KeyError):
        feed.take(ImageAt(1, image))
    assert feed.position == -1
    assert feed.take(ImageAt(1, image)) and told.calls == ["lead"] and feed.position == 1
