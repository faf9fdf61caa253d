"""What the god view of several brokers says of images, rows and copies of a log that should not be."""

from __future__ import annotations

from msgspec.structs import replace

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Node, Row
from logformat.record_batch import check_stored, walk
from logformat.records import Record, encode_batch
from seams.rng import SeededRng
from tests.sim.checks.history import Loss, Outcome, Send
from tests.sim.several.checks.acks import Acks, Began
from tests.sim.several.checks.copies import Copy, Kept, behind, forgotten, unlike
from tests.sim.several.checks.disks import Disks, Seen, batches_of
from tests.sim.several.checks.god import of_step
from tests.support.disk.crash_disk import PIECE_BYTES, CrashDisk

ROW = Row(replicas=(0, 1), leader=0, leader_epoch=5, partition_epoch=7, in_sync=(0, 1), served_epoch=5)


def image(row: Row, *, active: bool = True, broker_epoch: int = 3) -> ClusterImage:
    """Node 1 is registered, and has no session."""
    nodes = {
        0: Node(0, broker_epoch, "directory", "incarnation", "boot", (), active=active),
        1: Node(1, 3, "directory", "incarnation", "boot", (), active=False),
    }
    return ClusterImage(topics={"id": Topic("id", "log", (row,), {}, False)}, nodes=nodes)


def said(before: Row, after: Row) -> list[str]:
    return [found.removeprefix("here: ") for found in of_step(image(before), image(after), "here")]


def test_rows_that_follow_from_one_another_are_nothing_to_speak_of() -> None:
    """The same row, a new set, a new leader in a new epoch; nobody leads."""
    assert said(ROW, ROW) == []
    assert said(ROW, replace(ROW, partition_epoch=8, in_sync=(0,))) == []
    assert said(replace(ROW, leader=1), replace(ROW, partition_epoch=8, leader_epoch=6)) == []
    assert said(ROW, replace(ROW, partition_epoch=8, leader_epoch=6, leader=-1)) == []


def test_epochs_that_fall_or_stand_are_told() -> None:
    """A row changed in its partition epoch, a leader in its leader epoch, a leader epoch or a session that fell."""
    assert "no higher partition epoch" in said(ROW, replace(ROW, in_sync=(0,)))[0]
    assert "another leader in leader epoch 5" in said(replace(ROW, leader=1), replace(ROW, partition_epoch=8))[0]
    assert "leader epoch 4 after 5" in said(ROW, replace(ROW, partition_epoch=8, leader_epoch=4))[0]
    fell = list(of_step(image(ROW, broker_epoch=3), image(ROW, broker_epoch=2), "here"))
    assert fell == ["here: node 0 has broker epoch 2 after 3"]


def test_who_leaves_a_set_below_its_minimum_is_told() -> None:
    """But for one that begins again in another session (his log may be gone), and with a lower minimum."""
    short, row = replace(ROW, partition_epoch=8, in_sync=(0,)), ROW
    nodes = {n: Node(n, 3, "directory", "incarnation", "boot", ()) for n in (0, 1)}
    anew = nodes | {1: Node(1, 4, "another", "incarnation", "boot", ())}

    def at(row: Row, minimum: str, nodes: dict[int, Node]) -> ClusterImage:
        return ClusterImage(
            topics={"id": Topic("id", "log", (row,), {"min.insync.replicas": minimum}, False)}, nodes=nodes
        )

    told = list(of_step(at(row, "2", nodes), at(short, "2", nodes), "here"))
    assert len(told) == 1 and "nodes [1] left a set that is below its minimum of 2" in told[0]
    assert list(of_step(at(row, "2", nodes), at(short, "2", anew), "here")) == []
    assert list(of_step(at(row, "2", nodes), at(short, "1", nodes), "here")) == []


def test_a_leader_without_a_session_is_told() -> None:
    """Ended, or never there."""
    for wrong in (image(ROW, active=False), image(replace(ROW, leader=1))):
        found = list(of_step(None, wrong, "here"))
        assert len(found) == 1 and "has no session" in found[0]


def test_a_replica_on_a_node_that_left_is_told() -> None:
    """A broker leaves the cluster when nothing is assigned to it any more, nor on its way to it."""
    for row in (replace(ROW, replicas=(0, 2), in_sync=(0,)), replace(ROW, target=(0, 2))):
        (found,) = of_step(None, image(row), "here")
        assert "assigned to nodes [2], which left" in found


def copy(node_id: int, *digests: str, high_watermark: int, leads: int = -1, start: int = 0) -> Copy:
    batches = tuple(Seen(10 * i, 10 * i + 10, digest) for i, digest in enumerate(digests) if 10 * i >= start)
    return Copy(f"n{node_id}", node_id, start, high_watermark, leads, batches)


def test_copies_may_differ_above_what_both_call_committed() -> None:
    """An uncommitted tail, a log that begins later, one that lags."""
    leader = copy(0, "a", "b", "c", "d", high_watermark=30, leads=5)
    assert list(unlike([leader, copy(1, "a", "b", "x", high_watermark=20)])) == []
    assert list(unlike([leader, copy(1, "z", "b", "c", high_watermark=30, start=10)])) == []
    assert list(unlike([leader, copy(1, "a", high_watermark=10), copy(2, high_watermark=0)])) == []


def test_copies_that_differ_below_it_are_told() -> None:
    """Another batch, and one that is missing."""
    leader = copy(0, "a", "b", "c", "d", high_watermark=30, leads=5)
    found = list(unlike([leader, copy(1, "a", "x", "c", high_watermark=30)]))
    assert len(found) == 1 and "n0 and n1 differ in [0, 30)" in found[0] and "'b'" in found[0] and "'x'" in found[0]
    assert len(list(unlike([leader, copy(1, "a", "b", high_watermark=30)]))) == 1


def test_members_whose_disks_lack_what_is_committed_are_told() -> None:
    """Of a leader's epoch; others may lag."""
    leader, members = copy(0, "a", "b", "c", high_watermark=30, leads=5), [Kept(0, "n0", 30), Kept(1, "n1", 30)]
    assert list(behind([leader], (0, 1), members)) == []
    assert list(behind([], (0, 1), [Kept(1, "n1", 0)])) == []
    found = list(behind([leader], (0, 1), [*members, Kept(2, "n2", 20)]))
    assert len(found) == 1 and "disk of n2" in found[0] and "ends at 20" in found[0]


def test_members_whose_disks_lack_what_was_acknowledged_are_told() -> None:
    """Whoever leads, and also when nobody does."""
    assert list(forgotten(30, (0, 1), [Kept(0, "n0", 30), Kept(1, "n1", 31)])) == []
    found = list(forgotten(30, (0, 1), [Kept(0, "n0", 30), Kept(1, "n1", 29)]))
    assert len(found) == 1 and "acknowledged to 30" in found[0] and "n1" in found[0]


P = ("log", 0)


def ack(node: str, offset: int, at_s: float) -> Send:
    return Send("s", 0, P, ("a", "b"), at_s, at_s + 0.1, Outcome.OK, offset, node)


def test_what_was_acknowledged_stays_so_until_it_may_be_lost() -> None:
    """Also by an answer that is heard of only after the loss."""
    acks = Acks()
    assert [acks.acknowledged(ack("a", offset, 1.0)) for offset in (4, 0, 2)] == ["", "", ""] and acks.end(P) == 6
    acks.lost(Loss(P, 0, 2.0, "disk"))
    assert acks.end(P) == 0
    acks.acknowledged(ack("a", 8, 1.5))
    assert acks.end(P) == 0
    acks.acknowledged(ack("a", 100, 3.0))
    assert acks.end(P) == 102


def test_who_acknowledges_what_was_sent_after_a_higher_epoch_began_is_told() -> None:
    """Not who began that epoch himself, nor what was sent before."""
    acks = Acks()
    acks.began(P, Began(0.0, 1, "a"))
    acks.began(P, Began(5.0, 2, "b"))
    assert acks.acknowledged(ack("a", 0, 4.9)) == "" == acks.acknowledged(ack("b", 2, 5.1))
    assert "a, which led ('log', 0) in epoch 1" in acks.acknowledged(ack("a", 4, 5.1))
    acks.began(P, Began(6.0, 3, "a"))
    assert acks.acknowledged(ack("a", 6, 6.1)) == ""


def test_a_disk_is_read_as_programs_and_as_a_power_cut_find_it() -> None:
    """Bytes that were not synced, a cut, another file of the name; the log's end is that of its last whole batch."""
    disk, disks = CrashDisk(), Disks()
    path = "/data/d/log-0/00000000000000000010.log"
    disk.make_dirs("/data/d/log-0")
    file = disk.open(path, write=True, create=True)
    first, second = (encode_batch([Record(offset, 1, None, b"v")]) for offset in (10, 11))

    def ends(*, synced: bool) -> list[int]:
        places = disks.places(disk, "d", synced=synced)
        return [disks.log(disk, paths, synced=synced).end for paths in places.values()]

    assert ends(synced=False) == [10] and ends(synced=True) == []
    for directory in ("/", "/data", "/data/d", "/data/d/log-0"):
        disk.sync_dir(directory)
    file.write_at(0, [first, second, b"torn"])
    assert ends(synced=False) == [12] and ends(synced=True) == [10]
    file.sync()
    assert ends(synced=False) == ends(synced=True) == [12]
    file.truncate(len(first))
    assert ends(synced=False) == [11] and ends(synced=True) == [12]
    file.sync()
    assert ends(synced=False) == ends(synced=True) == [11]


def test_a_torn_batch_that_lost_its_offset_alone_is_no_part_of_a_log() -> None:
    """A member's disk, synced to 13, was said to end at 2: of the last batch the power cut kept all but the piece with
    its base offset, and what is left has a valid CRC (seed 10179, three brokers, late work)."""
    disk, disks = CrashDisk(), Disks()
    for directory in ("/data", "/data/d", "/data/d/log-0"):
        disk.make_dirs(directory)
    file = disk.open("/data/d/log-0/00000000000000000010.log", write=True, create=True)
    for directory in ("/", "/data", "/data/d", "/data/d/log-0"):
        disk.sync_dir(directory)
    first_end = PIECE_BYTES - 8  # the base offset of the second batch is the end of a piece
    sizes = (encode_batch([Record(10, 1, None, b"v" * size)]) for size in range(PIECE_BYTES))
    first = next(made for made in sizes if len(made) == first_end)
    second = encode_batch([Record(offset, 1, None, b"v") for offset in (11, 12)])
    file.write_at(0, [first])
    file.sync()
    file.write_at(first_end, [second])
    inode = disk._names["/data/d/log-0/00000000000000000010.log"]
    inode.dirty.remove(0)  # the disk did not write that one
    after = disk.crash(SeededRng(1), 1.0)
    (paths,) = disks.places(after, "d", synced=True).values()
    left = after._names[paths[0]].data
    assert [header.base_offset for _, header in walk(left)] == [10, 0] and bytes(left[first_end + 8 :]) == second[8:]
    check_stored(left, first_end, len(left))
    for synced in (True, False):
        log = disks.log(after, paths, synced=synced)
        assert (log.end, [(batch.base, batch.end) for batch in log.batches]) == (11, [(10, 11)])
    assert [header.base_offset for header, _ in batches_of(after, paths, 0, 20)] == [10]
