"""Who may serve a bucket: the whole table (C31)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.membership.identity import Admittance, BucketIdentity, DirectoryIdentity, Verdict, admit
from broker.membership.lease_watch import LeaseSight
from broker.metadata.records import FORGOTTEN

EMPTY = DirectoryIdentity(None, None, None, has_logs=False)
OURS = DirectoryIdentity("cluster", 1, "dir-a", has_logs=True)
BUCKET = BucketIdentity("cluster", {1: "dir-a"})
ALL_SIGHTS = tuple(LeaseSight)


def decide(directory: DirectoryIdentity, bucket: BucketIdentity | None, **how: object) -> Admittance:
    lease = how.pop("lease", LeaseSight.WATCHING)
    return admit(directory, bucket, 1, lease, **how)  # type: ignore[arg-type]


def test_design_c31_both_new_are_formatted() -> None:
    """An empty data directory and an empty bucket: nothing to lose."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        assert decide(EMPTY, None, lease=lease, take_over=take_over).verdict is Verdict.FORMAT


def test_design_c31_our_own_directory_resumes_at_once() -> None:
    """Whatever the lease says: the lock on the directory already proves that its last process is gone."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        assert decide(OURS, BUCKET, lease=lease, take_over=take_over).verdict is Verdict.RESUME


@pytest.mark.parametrize("has_logs", [False, True])
def test_design_c31_a_replaced_directory_is_refused_for_ever(has_logs: bool) -> None:
    """The bucket serves from another directory id: no lease and no --take-over lets the old one back in."""
    old = DirectoryIdentity("cluster", 1, "dir-old", has_logs)
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        admission = decide(old, BUCKET, lease=lease, take_over=take_over)
        assert admission.verdict is Verdict.REFUSE
        assert "replaced" in admission.reason
        assert ("--take-over needs an empty" in admission.reason) is take_over


@pytest.mark.parametrize(
    ("lease", "verdict"),
    [
        (LeaseSight.WATCHING, Verdict.WAIT),
        (LeaseSight.STILL, Verdict.TAKE_OVER),
        (LeaseSight.RELEASED, Verdict.TAKE_OVER),
        (LeaseSight.MOVING, Verdict.REFUSE),
    ],
)
def test_design_c31_an_empty_directory_waits_for_the_lease(lease: LeaseSight, verdict: Verdict) -> None:
    """The replacement never starts beside a broker that may only hang; the operator's word skips the wait."""
    assert decide(EMPTY, BUCKET, lease=lease).verdict is verdict
    assert decide(EMPTY, BUCKET, lease=lease, take_over=True).verdict is Verdict.TAKE_OVER


@pytest.mark.parametrize(
    ("directory", "bucket", "word"),
    [
        (DirectoryIdentity("other", 1, "dir-a", has_logs=True), BUCKET, "belongs to cluster other"),
        (DirectoryIdentity("other", 1, "dir-a", has_logs=False), BUCKET, "belongs to cluster other"),
        (OURS, None, "has no cluster.json"),
        (DirectoryIdentity(None, None, None, has_logs=True), None, "has no cluster.json"),
        (DirectoryIdentity(None, None, None, has_logs=True), BUCKET, "no meta.properties"),
        (DirectoryIdentity("cluster", 2, "dir-a", has_logs=True), BUCKET, "--node-id 2"),
    ],
)
def test_design_c31_what_does_not_belong_together_is_refused(
    directory: DirectoryIdentity, bucket: BucketIdentity | None, word: str
) -> None:
    """Another cluster, logs without their bucket, another node: exit 3 with a reason, with --take-over too."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        admission = decide(directory, bucket, lease=lease, take_over=take_over)
        assert admission.verdict is Verdict.REFUSE
        assert word in admission.reason


IDENTITIES = st.builds(DirectoryIdentity, st.none(), st.none(), st.none(), st.booleans()) | st.builds(
    DirectoryIdentity,
    st.sampled_from(["cluster", "other"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["dir-a", "dir-b"]),
    st.booleans(),
)
BUCKETS = st.none() | st.builds(
    BucketIdentity,
    st.sampled_from(["cluster", "other"]),
    st.dictionaries(st.sampled_from([1, 2]), st.sampled_from(["dir-a", "dir-b"]), min_size=1),
)


@given(IDENTITIES, BUCKETS, st.sampled_from(LeaseSight), st.booleans())
def test_design_c31_logs_are_served_only_from_their_own_bucket(
    directory: DirectoryIdentity, bucket: BucketIdentity | None, lease: LeaseSight, take_over: bool
) -> None:
    """Over the whole table: a directory with logs either resumes where the bucket names it, or is refused."""
    admission = admit(directory, bucket, 1, lease, take_over=take_over)
    assert (admission.reason != "") or admission.verdict is not Verdict.REFUSE
    if directory.has_logs:
        assert admission.verdict in (Verdict.RESUME, Verdict.REFUSE)
    if admission.verdict is Verdict.RESUME:
        assert bucket is not None
        assert bucket.cluster_id == directory.cluster_id
        assert bucket.directories[1] == directory.directory_id
    if admission.verdict is Verdict.TAKE_OVER and bucket is not None and bucket.directories.keys() == {1}:
        assert not directory.has_logs
        assert take_over or lease in (LeaseSight.STILL, LeaseSight.RELEASED)


def test_a_node_that_the_cluster_does_not_know_joins_it() -> None:
    """Whatever the lease says: whoever decides gives it a session; nobody is replaced by it."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        others = BucketIdentity("cluster", {7: "dir-g", 8: "dir-h"})
        assert decide(EMPTY, others, lease=lease, take_over=take_over).verdict is Verdict.JOIN


def test_among_others_a_lost_directory_is_replaced_when_the_controller_lets_it() -> None:
    """It hears whether the last process lives; the lease, which is another node's, does not say it."""
    for lease in ALL_SIGHTS:
        several = BucketIdentity("cluster", {1: "dir-a", 2: "dir-b"})
        assert decide(EMPTY, several, lease=lease).verdict is Verdict.TAKE_OVER
        assert decide(OURS, several, lease=lease).verdict is Verdict.RESUME


def test_a_directory_that_was_given_up_comes_back_and_one_that_left_does_not() -> None:
    """`cluster forget`: its node is assigned partitions still, and it is one that lost everything. UnregisterBroker:
    nobody waits for it."""
    directory = DirectoryIdentity("c", 2, "d2", True)
    given_up = admit(directory, BucketIdentity("c", {1: "d1", 2: FORGOTTEN}), 2, LeaseSight.MOVING)
    assert given_up.verdict is Verdict.RESUME
    gone = admit(directory, BucketIdentity("c", {1: "d1"}), 2, LeaseSight.MOVING)
    assert gone.verdict is Verdict.REFUSE and "removed from the cluster" in gone.reason
