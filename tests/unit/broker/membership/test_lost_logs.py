"""A directory that does not hold what its seat in an in-sync set promises leaves the set before it can lead (R18)."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from broker.controller.broker_rpc import LogPlace
from broker.membership.identity import DirectoryIdentity
from broker.membership.lost_logs import lost_logs
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node, Row, TopicCreated
from hotstore.host.offset_checkpoints import CHECKPOINTS
from logformat.checkpoints import encode_offsets
from logformat.values import TopicPartition
from seams.files.disk import replace_file
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, VALUES, Three


def image_of(*rows: Row) -> ClusterImage:
    nodes = [Node(node_id, node_id, f"dir-{node_id}", "i", "boot-1", ()) for node_id in NODES]
    return ClusterImage().with_records([*nodes, TopicCreated(id_of(1), "log", rows, {})])


def row(*in_sync: int) -> Row:
    return Row(NODES, in_sync[0], 1, 1, in_sync, 1)


def directory(*indexes: int, is_unsynced: bool = False) -> DirectoryIdentity:
    logs = frozenset(TopicPartition("log", index) for index in indexes)
    return DirectoryIdentity("c", 1, "dir-1", bool(logs), logs, is_unsynced)


def test_what_is_not_there_is_lost_where_others_have_it() -> None:
    """Also where it is the last member: nobody leads before all others said what they hold (R20); not where nobody else
    is assigned it (C30). Where it is no member, a proposal of its last session may be on its way, as long as that
    stands."""
    image = image_of(row(1, 2), row(1, 2), row(2, 3), row(1), Row((1,), 1, 1, 1, (1,), 1))
    assert lost_logs(image, 1, "boot-1", directory(0)) == tuple((id_of(1), index) for index in (1, 2, 3))
    assert lost_logs(image, 4, "boot-1", directory()) == ()
    ended = image.with_records([msgspec.structs.replace(image.nodes[1], active=False)])
    assert lost_logs(ended, 1, "boot-1", directory(0)) == ((id_of(1), 1), (id_of(1), 3))


def test_after_another_boot_all_is_lost_that_was_not_flushed() -> None:
    """A process that was killed left it in the page cache; a power cut did not."""
    image = image_of(row(1, 2), Row((1,), 1, 1, 1, (1,), 1))
    assert lost_logs(image, 1, "boot-2", directory(0, 1, is_unsynced=True)) == ((id_of(1), 0),)
    assert lost_logs(image, 1, "boot-1", directory(0, 1, is_unsynced=True)) == ()
    assert lost_logs(image, 1, "boot-2", directory(0, 1)) == ()


def test_all_of_an_older_copy_is_lost() -> None:
    """Another process of this node wrote since; where none was ever noted, nobody can tell."""
    image = image_of(row(1, 2), Row((1,), 1, 1, 1, (1,), 1))

    def lost_of(incarnations: tuple[str, ...] | None) -> tuple[LogPlace, ...]:
        return lost_logs(image, 1, "boot-1", replace(directory(0, 1), incarnations=incarnations))

    assert lost_of(("i",)) == lost_of(("h", "i", "j")) == lost_of(None) == ()
    assert lost_of(("h",)) == ((id_of(1), 0),)


async def test_cluster_d70_a_leader_whose_log_was_moved_away_does_not_lead_again() -> None:
    """Under the same directory id: it led an empty log, and the others cut theirs, or went offline."""
    three = Three()
    leader = await three.fill()
    await three.lives[leader].crash()
    place = three.places[leader]
    place.kill()
    place.disk.rename("/data/a/log-0", "/data/moved-away")
    await three.start(leader)
    await three.all_is_there(leader)


async def test_a_log_that_no_checkpoint_names_is_missed_all_the_same() -> None:
    """Its broker died before it noted anything about it: what its seat in the set promises is compared with what lies
    in the directory, not with the directory's own notes (R18)."""
    three = Three()
    leader = await three.fill()
    await three.lives[leader].crash()
    place = three.places[leader]
    place.kill()
    for name in CHECKPOINTS:
        replace_file(place.disk, f"/data/a/{name}", encode_offsets({}))
    place.disk.rename("/data/a/log-0", "/data/moved-away")
    epoch = three.row(next(node_id for node_id in NODES if node_id != leader)).leader_epoch
    await three.start(leader)
    life = three.lives[leader]
    assert life.context.metadata.topic("log").rows[0].leader_epoch > epoch, "no report of the log that was counts"
    await three.all_is_there(leader)


async def test_cluster_d6_a_leader_that_lost_power_does_not_lead_again_with_os_flush() -> None:
    """It came back before its session was over, without what only its page cache held."""
    three = Three("thermocline.flush=os")
    leader = await three.fill()
    await three.lives[leader].crash()
    three.places[leader].power_cut()
    await three.start(leader)
    await three.all_is_there(leader)


async def test_cluster_d75_a_copy_of_yesterday_s_directory_does_not_lead() -> None:
    """The volume was put back as it was before its last process served, under the same directory id."""
    three = Three()
    leader = await three.fill()
    place = three.places[leader]
    await three.lives[leader].crash()
    place.kill()
    yesterday = place.disk.kill()
    await three.start(leader)
    await until(lambda: len(three.row(leader).in_sync) == len(NODES), "all are in sync")
    now_leads = three.row(leader).leader
    await until(lambda: ("log", 0) in three.lives[now_leads].context.registry.partitions, "it is led")
    assert (await three.lives[now_leads].produce("log", b"5")).error_code == 0
    await three.lives[leader].crash()
    place.disk = yesterday
    await three.start(leader)
    await three.all_is_there(leader, [*VALUES, (len(VALUES), b"5")])
