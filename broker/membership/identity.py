"""Decides whether a data directory may serve a bucket (design 1, scenario C31). Pure.

A directory that another directory replaced is refused for ever. An empty directory takes over a bucket only after the
lease expired or was released, or an operator gave --take-over.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from broker.membership.lease_watch import LeaseSight
from broker.metadata.image import ClusterImage
from broker.metadata.records import FORGOTTEN
from logformat.values import TopicPartition


class DirectoryIdentity(msgspec.Struct, frozen=True):
    """`meta.properties` of the data directory; the fields are None if the directory was never formatted. `logs`: the
    logs in the directory. `is_unsynced`: acknowledged records may be only in the page cache (`thermocline.flush=os`, no
    clean stop), and may be lost after a reboot. `incarnations`: processes that may have written here; None: unknown."""

    cluster_id: str | None
    node_id: int | None
    directory_id: str | None
    has_logs: bool
    logs: frozenset[TopicPartition] = frozenset()
    is_unsynced: bool = False
    incarnations: tuple[str, ...] | None = None


class BucketIdentity(msgspec.Struct, frozen=True):
    """The content of `cluster.json`: the cluster, and the last directory id of each node. `is_rebuilt`: the file was
    rebuilt from manifests, which do not name brokers."""

    cluster_id: str
    directories: dict[int, str]
    is_rebuilt: bool = False


class Verdict(Enum):
    FORMAT = "format"  # directory and bucket are new
    RESUME = "resume"  # the directory belongs to the bucket: a new incarnation begins at once
    TAKE_OVER = "take over"  # a new directory replaces a lost directory
    JOIN = "join"  # a node that the cluster does not know yet
    WAIT = "wait"  # keep watching the lease
    REFUSE = "refuse"  # exit 3 with the reason


class Admittance(msgspec.Struct, frozen=True):
    """The verdict, and its reason for the operator."""

    verdict: Verdict
    reason: str = ""


def admit(
    directory: DirectoryIdentity,
    bucket: BucketIdentity | None,
    node_id: int,
    lease: LeaseSight,
    *,
    take_over: bool = False,
) -> Admittance:
    """Decide whether the broker with `directory` may serve `bucket` as `node_id`."""
    if directory.node_id is not None and directory.node_id != node_id:
        return _refuse(
            f"this data directory belongs to node {directory.node_id}, not {node_id}: start with "
            f"--node-id {directory.node_id}, or give node {node_id} a directory of its own"
        )
    if bucket is None:
        if directory.has_logs:
            return _refuse(
                "this data directory has logs, but the bucket has no cluster.json: it is not the bucket they were "
                "written with. Point --bucket at the right one; an empty bucket needs an empty data directory"
            )
        return Admittance(Verdict.FORMAT, "new data directory and new bucket")
    served_from = bucket.directories.get(node_id)
    if directory.cluster_id is not None:
        return _formatted(directory, bucket, served_from, take_over=take_over)
    if directory.has_logs:
        return _refuse("the data directory has logs but no meta.properties: restore that file, or use an empty one")
    if bucket.directories.keys() <= {node_id}:
        return _replacement(lease, take_over=take_over)
    if served_from is None:
        return Admittance(Verdict.JOIN, f"node {node_id} is new to the cluster")
    # The controller knows whether the replaced process is alive.
    return Admittance(Verdict.TAKE_OVER, f"a new directory for node {node_id}")


def _formatted(
    directory: DirectoryIdentity, bucket: BucketIdentity, served_from: str | None, *, take_over: bool
) -> Admittance:
    if directory.cluster_id != bucket.cluster_id:
        return _refuse(
            f"the data directory belongs to cluster {directory.cluster_id}, the bucket to {bucket.cluster_id}: "
            "one of --data-dir and --bucket is wrong"
        )
    if served_from == directory.directory_id:
        return Admittance(Verdict.RESUME, "same directory as before")
    if served_from == FORGOTTEN:  # the node is in no in-sync set: its logs are compared with other brokers' logs
        return Admittance(Verdict.RESUME, "the node was given up and is back: the logs in its directory count as lost")
    if served_from is None and bucket.is_rebuilt:
        return Admittance(Verdict.RESUME, "the cluster was rebuilt: this broker reports its logs to the controller")
    if served_from is None:
        return _refuse(
            "this node was removed from the cluster, and the logs in its data directory are outdated; start with an "
            "empty directory to join again"
        )
    hint = (
        "--take-over needs an empty data directory"
        if take_over
        else ("start with an empty directory to replace that broker")
    )
    return _refuse(
        f"another broker has replaced this data directory (it serves from directory id {served_from}): "
        f"the logs here are outdated; {hint}"
    )


def _replacement(lease: LeaseSight, *, take_over: bool) -> Admittance:
    if take_over:
        return Admittance(Verdict.TAKE_OVER, "the operator asserts (--take-over) that the last broker is dead")
    match lease:
        case LeaseSight.RELEASED:
            return Admittance(Verdict.TAKE_OVER, "the last broker stopped cleanly and released its lease")
        case LeaseSight.STILL:
            return Admittance(Verdict.TAKE_OVER, "the last broker did not renew its lease for a whole lease time")
        case LeaseSight.MOVING:
            return _refuse(
                "another broker serves this bucket: it still renews its lease. Stop it first (a clean stop releases "
                "the lease at once); --take-over only if you know that it is dead"
            )
        case LeaseSight.WATCHING:
            return Admittance(Verdict.WAIT, "watching the lease of the broker that last served this bucket")


def _refuse(reason: str) -> Admittance:
    return Admittance(Verdict.REFUSE, reason)


class Standing(Enum):
    """Standing of a registered process in an image."""

    IN_SESSION = "in session"
    ENDED = "its session ended"  # the session expired, or the process left; no other process replaced it
    REPLACED = "another process serves as the node"  # exit 3: this process must not answer any more


def standing(image: ClusterImage, node_id: int, incarnation: str) -> Standing:
    """Standing of the process `incarnation`, registered as `node_id` (R1)."""
    node = image.nodes.get(node_id)
    if node is not None and node.incarnation != incarnation:
        return Standing.REPLACED
    return Standing.IN_SESSION if node is not None and node.active else Standing.ENDED
