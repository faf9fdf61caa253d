"""`cluster rebuild`: what the manifests make of a lost `cluster.json`, and what they cannot tell."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from broker.metadata.image import check
from broker.metadata.producer_ids import PER_EPOCH, ProducerIds
from broker.metadata.rebuilt import EPOCHS_ABOVE, UNKNOWN_REPLICA, is_rebuilt, said_to_hold
from broker.metadata.records import NO_LEADER, Endpoint, Node
from coldstore.keys import MetadataKey, PageKey, SegmentKey, manifest_key
from coldstore.manifest.manifest import Manifest, new_manifest
from logformat.record_batch import INT32_MAX, INT64_MAX
from tests.support.pipeline.history_bucket import HistoryBucket
from tests.support.store.keys import ring_of, sealed_bytes, write_key_file
from thermocline.cli.cluster.restore.rebuild_plan import EPOCH_MAX, Found, check_keys, epochs_in, rebuild_plan
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import CommandFailed, Exit

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def manifest(topic_id: UUID, name: str, partition: int = 0, epoch: int = 3, **configs: str) -> Manifest:
    return new_manifest(topic_id, partition, epoch, name, configs)


def found(topic_id: UUID, name: str, partition: int = 0, epoch: int = 3, **configs: str) -> Found:
    return Found(topic_id, partition, manifest(topic_id, name, partition, epoch, **configs))


def test_topics_come_back_with_nobody_known_to_hold_them() -> None:
    """A sound image: rows that nobody leads, of partitions that are not new, and the mark."""
    plan = rebuild_plan([found(A, "log"), found(A, "log", 1), found(B, "__consumer_offsets")], {}, 7)
    image = plan.image()
    check(image)
    assert is_rebuilt(image)
    log = image.topics[str(A)]
    assert (log.name, log.partitions, log.internal) == ("log", 2, False)
    assert image.topics[str(B)].internal
    assert all(
        (row.replicas, row.in_sync, row.leader) == ((UNKNOWN_REPLICA,), (), NO_LEADER) and row.partition_epoch > 0
        for topic in image.topics.values()
        for row in topic.rows
    )


def test_every_epoch_lies_above_anything_seen() -> None:
    """Of leaders, in manifests and in keys that no manifest names, and of controllers; twice too."""
    for partitions, controller in (
        ([found(A, "log", epoch=90)], 7),
        ([replace(found(A, "log", epoch=9), epoch=90)], 7),
        ([found(A, "log", epoch=9)], 90),
        ([found(A, "log", epoch=EPOCHS_ABOVE + 90)], 7),
    ):
        plan = rebuild_plan(partitions, {}, controller)
        image = plan.image()
        highest = max(90, *(of.manifest.leader_epoch for of in partitions if isinstance(of.manifest, Manifest)))
        assert plan.epoch >= highest + EPOCHS_ABOVE
        assert image.topics[str(A)].rows[0].leader_epoch >= highest + EPOCHS_ABOVE
        assert image.next_broker_epoch > highest + EPOCHS_ABOVE


def test_keys_tell_epochs() -> None:
    keys = [
        str(SegmentKey(A, 0, 0, 4, C)),
        str(SegmentKey(A, 0, 9, 12, C)),
        str(PageKey(A, 1, 0, 9, 5, C)),
        manifest_key(A, 2),
        "else",
    ]
    assert epochs_in(keys) == {(A, 0): 12, (A, 1): 5}


@pytest.mark.parametrize(
    "stray",
    [
        manifest_key(A, 10_000),
        str(SegmentKey(A, INT32_MAX, 0, 4, C)),
        str(SegmentKey(A, 0, 0, 1 << 27, C)),
        str(PageKey(A, 1, 0, 9, (1 << 27) - EPOCHS_ABOVE, C)),
        str(MetadataKey(1, INT32_MAX, C)),
    ],
)
def test_a_stray_key_is_named_and_not_believed(stray: str) -> None:
    """Its partition made a row for each below it, gigabytes of them; its epoch ended in an assertion."""
    check_keys([manifest_key(A, 9_999), str(SegmentKey(A, 0, 0, EPOCH_MAX, C)), "else"])
    with pytest.raises(CommandFailed, match=f"^{re.escape(stray)} (names partition|has epoch) .*no broker writes such"):
        check_keys([manifest_key(A, 0), stray])


@pytest.mark.parametrize("stray", [manifest_key(A, INT32_MAX - 1), str(MetadataKey(1, INT32_MAX, C))])
def test_a_rebuild_that_meets_a_stray_key_ends_with_its_name(
    stray: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / stray
    file.parent.mkdir(parents=True)
    file.touch()
    assert main(["cluster", "rebuild", "--bucket", f"file://{tmp_path}", "--yes"]) == Exit.FAILED
    assert f"{stray} " in capsys.readouterr().err
    assert not (tmp_path / "cluster.json").exists()


@pytest.mark.parametrize("place", [60, -60, None], ids=["body", "trailer", "cut"])
def test_a_damaged_root_of_an_encrypted_bucket_is_rebuilt(
    place: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is damaged. One under a key that is not in the file stays: that is no damage."""
    monkeypatch.setattr("thermocline.cli.cluster.restore.rebuild_lease._LEASE_S", 1.0)
    bucket = HistoryBucket(f"file://{tmp_path}/bucket?key_file={write_key_file(tmp_path / 'keys.json', 'one')}")
    bucket.topic("events")
    bucket.fill("events", 0, [[50] * 4], value_bytes=20)
    root = tmp_path / "bucket" / "cluster.json"
    root.write_bytes(sealed_bytes("cluster.json", bytes(300), ring_of("lost")))
    command = ["cluster", "rebuild", "--bucket", bucket.url, "--yes"]
    before = root.read_bytes()
    assert (main(command), root.read_bytes()) == (Exit.FAILED, before)
    damaged = bytearray(sealed_bytes("cluster.json", bytes(300), ring_of("one")))
    if place is None:
        del damaged[-30:]
    else:
        damaged[place] ^= 1
    root.write_bytes(damaged)
    assert main(command) == Exit.DONE
    assert main(command) == Exit.REFUSED, "it can be read now"


def test_an_epoch_that_no_cluster_comes_to_is_refused_wherever_it_stands() -> None:
    """An assertion, with a stack trace, before; up to there the new epochs fit."""
    for partitions, controller, where in (
        ([found(A, "log", 3, EPOCH_MAX + 1)], 0, manifest_key(A, 3)),
        ([replace(found(A, "log"), epoch=EPOCH_MAX + 1)], 0, f"topics/{A}/0/"),
        ([found(A, "log")], EPOCH_MAX + 1, "lease.json"),
    ):
        with pytest.raises(CommandFailed, match=f"^{where}.* has epoch {EPOCH_MAX + 1}, "):
            rebuild_plan(partitions, {}, controller)
    image = rebuild_plan([found(A, "log", epoch=EPOCH_MAX)], {}, EPOCH_MAX).image()
    check(image)
    last_session = image.next_broker_epoch + EPOCHS_ABOVE - 2
    assert ProducerIds(last_session).give() + PER_EPOCH - 1 <= INT64_MAX


def test_what_is_damaged_or_missing_is_named() -> None:
    """A partition without a manifest that can be read gets its topic's name from the others, and stays a partition."""
    plan = rebuild_plan([found(A, "log"), Found(A, 3, "its CRC"), found(B, "other")], {}, 0)
    (log,) = [of for of in plan.topics if of.name == "log"]
    assert (log.partitions, dict(log.damaged), list(log.missing)) == (4, {3: "its CRC"}, [1, 2])
    assert plan.image().topics[str(A)].partitions == 4


def test_a_topic_without_a_name_of_its_own_needs_a_word() -> None:
    """No manifest to be read, or a name that another one has: one of them was deleted, and only a person knows."""
    partitions = [Found(A, 0, "its CRC"), found(B, "log"), found(C, "log")]
    plan = rebuild_plan(partitions, {}, 0)
    assert (plan.is_complete, plan.unnamed, dict(plan.twice)) == (False, [A], {"log": [B, C]})
    named = rebuild_plan(partitions, {A: "first", B: None}, 0)
    assert named.is_complete and named.left_out == [B]
    assert {topic.name: key for key, topic in named.image().topics.items()} == {"first": str(A), "log": str(C)}


def test_configs_are_those_of_the_manifest_that_was_claimed_last() -> None:
    plan = rebuild_plan([found(A, "log", 0, 3, a="1"), found(A, "log", 1, 5, a="2")], {}, 0)
    (log,) = plan.topics
    assert log.configs == {"a": "2"} and log.configs_differ
    assert not rebuild_plan([found(A, "log", 0, 3, a="1")], {}, 0).topics[0].configs_differ


def test_a_broker_that_has_the_log_becomes_a_replica_beside_the_mark() -> None:
    """Once, and only of partitions that nobody is known to hold."""
    image = rebuild_plan([found(A, "log"), found(A, "log", 1)], {}, 0).image()
    one = Node(1, image.next_broker_epoch, "d", "i", "boot", (Endpoint("PLAINTEXT", "h", 1),))
    began = image.with_records([one])
    places = {(str(A), 1), (str(B), 0)}
    after = began.with_records(said_to_hold(began, 1, places))
    check(after)
    assert [row.replicas for row in after.topics[str(A)].rows] == [(UNKNOWN_REPLICA,), (UNKNOWN_REPLICA, 1)]
    assert said_to_hold(after, 1, places) == []
