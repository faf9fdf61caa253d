"""Which replica a consumer of a rack is sent to (KIP-392): Kafka's choice, said again by a model of its words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.replication.in_sync import AppliedRow
from broker.replication.leader import Leader, Report
from broker.replication.read_replica_selection import HERE, nearest

EPOCH = 5
SESSIONS = {0: 10, 1: 11, 2: 12, 3: 13}
ROW = AppliedRow(EPOCH, 1, frozenset(SESSIONS), 2, frozenset(SESSIONS), SESSIONS)
RACKS = {0: "a", 1: "b", 2: "b", 3: "c"}


def led(**ends: int) -> Leader:
    """By node 0, to offset 100; `n1=50`: node 1 reported 50."""
    leader = Leader(0, ROW, epoch_start=0, high_watermark=0, own_end=100)
    for name, end in ends.items():
        node_id = int(name[1:])
        leader.reported(node_id, Report(end, SESSIONS[node_id]), EPOCH)
    return leader


def test_a_client_in_the_leaders_rack_stays() -> None:
    assert nearest(led(n1=100, n2=100, n3=100), 0, "a", RACKS.get) == HERE
    both = {**RACKS, 3: "a"}
    assert nearest(led(n1=100, n2=100, n3=100), 0, "a", both.get) == HERE, "though a replica stands there too"


def test_a_client_of_a_rack_is_sent_to_its_replica() -> None:
    leader = led(n1=100, n2=100, n3=100)
    assert nearest(leader, 0, "c", RACKS.get) == 3
    assert nearest(leader, 0, "nowhere", RACKS.get) == HERE
    assert nearest(leader, 0, "", {}.get) == HERE


def test_of_several_the_one_that_is_caught_up_most() -> None:
    """The greater end; of equal ones who is late for less long; then the higher id."""
    assert nearest(led(n1=100, n2=90), 0, "b", RACKS.get) == 1
    assert nearest(led(n1=100, n2=100), 0, "b", RACKS.get) == 2
    leader = led(n1=90, n2=90)
    leader.late_since_ms = {1: 7_000, 2: 5_000}
    assert nearest(leader, 0, "b", RACKS.get) == 1
    leader.late_since_ms = {1: 7_000}
    assert nearest(leader, 0, "b", RACKS.get) == 2


def test_nobody_is_sent_where_the_offset_is_not_known_to_be() -> None:
    """Beyond what the replica reported, below where it starts, and where it said nothing in this epoch."""
    assert nearest(led(n3=50), 50, "c", RACKS.get) == 3, "its end: the next record will come there"
    assert nearest(led(n3=50), 51, "c", RACKS.get) == HERE
    assert nearest(led(), 0, "c", RACKS.get) == HERE
    leader = led()
    leader.reported(3, Report(50, SESSIONS[3], 20), EPOCH)
    assert nearest(leader, 19, "c", RACKS.get) == HERE
    assert nearest(leader, 20, "c", RACKS.get) == 3


def test_nobody_is_sent_to_who_is_not_in_sync_or_whose_session_is_another() -> None:
    leader = led(n3=100)
    leader.applied(replace(ROW, partition_epoch=2, in_sync=frozenset((0, 1, 2))))
    assert nearest(leader, 0, "c", RACKS.get) == HERE
    leader = led(n3=100)
    leader.applied(replace(ROW, partition_epoch=2, sessions={**SESSIONS, 3: 99}))
    assert nearest(leader, 0, "c", RACKS.get) == HERE, "what its life before said is void"


@given(
    racks=st.dictionaries(st.integers(0, 3), st.sampled_from(("a", "b", None))),
    in_sync=st.frozensets(st.integers(0, 3)),
    reports=st.dictionaries(st.integers(1, 3), st.tuples(st.integers(0, 9), st.integers(0, 9))),
    late=st.dictionaries(st.integers(1, 3), st.integers(0, 9)),
    offset=st.integers(0, 10),
    rack=st.sampled_from(("a", "b", "c")),
)
def test_as_kafka_chooses(
    racks: dict[int, str | None],
    in_sync: frozenset[int],
    reports: dict[int, tuple[int, int]],
    late: dict[int, int],
    offset: int,
    rack: str,
) -> None:
    """Its words, one after the other: gather who is in sync and has the offset, add the leader, keep those of the rack,
    the leader first, else the greatest of them."""
    leader = Leader(0, replace(ROW, in_sync=in_sync | {0}), epoch_start=0, high_watermark=0, own_end=9)
    for node_id, (start, end) in reports.items():
        leader.reported(node_id, Report(end, SESSIONS[node_id], start), EPOCH)
    leader.late_since_ms = late
    views = [
        (end, -(10 - late[node_id]) if node_id in late else 0, node_id)
        for node_id, (start, end) in reports.items()
        if node_id in in_sync and start <= offset <= end
    ]
    there = [view for view in views if racks.get(view[2]) == rack]
    expected = HERE if racks.get(0) == rack or not there else max(there)[2]
    assert nearest(leader, offset, rack, racks.get) == expected
