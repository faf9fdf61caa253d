"""Decides broker sessions: begins and ends them. Pure.

- A session has a new broker epoch. One commit contains its beginning, the changed rows, and the end of the node's
  earlier session.
- While the process of a session lives, another process is refused. An ended session never resumes.
- A node stays in the image while rows refer to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from broker.controller.broker_rpc import SessionRequest
from broker.controller.decisions.decision import Decision
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage
from broker.metadata.rebuilt import UNKNOWN_REPLICA, said_to_hold
from broker.metadata.records import FORGOTTEN, NO_EPOCH, LogPlace, MetadataRecord, Node, NodeGone
from broker.metadata.rows import forgotten, lost, session_began, sessions_ended

SessionId = tuple[int, int]  # node id and broker epoch


def session_records(image: ClusterImage, asked: SessionRequest) -> list[MetadataRecord]:
    """Begin the session `asked`. A changed directory id means that the directory has no acknowledged records (C30)."""
    before = image.nodes.get(asked.node_id)
    session = Node(
        asked.node_id,
        image.next_broker_epoch,
        asked.directory_id,
        asked.incarnation,
        asked.boot_id,
        asked.listeners,
        asked.rack,
    )
    is_other = before is not None and before.directory_id != asked.directory_id
    began = image.with_records([session])
    rows = session_began(began, asked.node_id, is_other_directory=is_other, lost_logs=asked.lost_logs)
    return [session, *rows, *said_to_hold(began, asked.node_id, frozenset(asked.held_logs))]


def end_records(image: ClusterImage, sessions: Iterable[SessionId]) -> list[MetadataRecord]:
    """End the sessions that still exist, and elect other brokers for their partitions."""
    gone = [node_id for node_id, broker_epoch in sessions if image.has_session(node_id, broker_epoch)]
    if not gone:
        return []
    ended = [replace(image.nodes[node_id], active=False) for node_id in gone]
    return [*ended, *sessions_ended(image.with_records(ended), gone)]


def end(image: ClusterImage, sessions: Collection[SessionId]) -> Decision[None]:
    """As `end_records`."""
    return Decision(tuple(end_records(image, sessions)), None)


def claim_records(image: ClusterImage, asked: SessionRequest, replaced: int | None) -> list[MetadataRecord]:
    """Make the process `asked` the controller. The session of the controller `replaced` ends (None: that controller
    released its lease). The new controller's session begins, unless it exists already. Both changes precede the rows,
    so that a directory does not become the leader of a log that it lacks.
    """
    node = None if replaced is None or replaced == asked.node_id else image.nodes.get(replaced)
    gone = [] if node is None or not node.active else [node]
    records: list[MetadataRecord] = [replace(node, active=False) for node in gone]
    mine = image.nodes.get(asked.node_id)
    if mine is None or not mine.active or mine.incarnation != asked.incarnation:
        records += session_records(image.with_records(records), asked)
    if gone:
        records += sessions_ended(image.with_records(records), [node.node_id for node in gone])
    return records


def register(
    image: ClusterImage, asked: SessionRequest, cluster_id: str, *, is_live: bool, is_silent: bool
) -> Decision[int]:
    """The broker epoch of the session that `asked` gets. `is_live`: the node's session belongs to another process with
    a recent heartbeat. `is_silent`: the node has had no session for one lease duration. ApiError as
    `BrokerRpc.register`."""
    if asked.cluster_id != cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {cluster_id}, but got cluster ID {asked.cluster_id}",
        )
    if asked.node_id == UNKNOWN_REPLICA:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"node {asked.node_id} is reserved for unknown replicas")
    node = image.nodes.get(asked.node_id)
    last = NO_EPOCH if node is None else node.broker_epoch
    if node is not None and node.active and node.incarnation == asked.incarnation:
        return Decision((), last)  # the response to the first request of this process was lost
    if node is not None and node.active and is_live and not asked.take_over:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker is registered with that broker id: incarnation {node.incarnation}, broker epoch {last}.",
        )
    if node is not None and not is_silent and not asked.take_over and _takes_the_last_seat(image, node, asked):
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Broker {asked.node_id} cannot be given up: its last process (incarnation {node.incarnation}, broker "
            f"epoch {last}) had a session less than a lease ago, and it has records that no other broker has.",
        )
    if asked.previous_broker_epoch != last:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"the last session of node {asked.node_id} has broker epoch {last}, not {asked.previous_broker_epoch}: "
            "read cluster.json again before registering",
        )
    return Decision(tuple(session_records(image, asked)), image.next_broker_epoch)


def _takes_the_last_seat(image: ClusterImage, node: Node, asked: SessionRequest) -> bool:
    """Whether another directory registers although the earlier directory is the only holder of some partition (R22)."""
    return asked.directory_id != node.directory_id != FORGOTTEN and any(
        row.in_sync == (node.node_id,) for topic in image.topics.values() for row in topic.rows
    )


def lost_logs(image: ClusterImage, session: SessionId, places: Collection[LogPlace]) -> Decision[frozenset[LogPlace]]:
    """Commit the logs that this running session lost (R18). Returns the logs that got a new row. If no other replica of
    a log is complete, the row stays, and the log is decided again with a later image."""
    if not image.has_session(*session):
        return Decision((), frozenset())
    rows = tuple(lost(image, session[0], places))
    return Decision(rows, frozenset((of.topic_id, index) for of in rows for index, _ in of.rows))


# ── nodes that do not come back ──────────────────────────────────────────────────────────────────────────────────────
def unregister(image: ClusterImage, node_id: int) -> Decision[None]:
    """The node leaves the cluster. ApiError BROKER_ID_NOT_REGISTERED; INVALID_REQUEST: it has a session, or partitions
    are assigned to it (R19)."""
    node = _gone(image, node_id)
    named = _assigned(image, node_id)
    if named:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{len(named)} partitions are assigned to broker {node_id}, {named[0]} among them: move them first, or "
            f"give it up with `thermocline cluster forget {node_id}`",
        )
    return Decision((NodeGone(node_id, node.broker_epoch),), None)


def forget(image: ClusterImage, node_id: int, broker_epoch: int = NO_EPOCH) -> Decision[None]:
    """All logs on the node count as lost. Its directory can return only if it is empty. A node without partitions
    leaves the cluster. `broker_epoch`: the epoch of the node's last session that the operator saw, or NO_EPOCH. Errors
    as `unregister`, but assigned partitions are allowed; STALE_BROKER_EPOCH if the node had a later session."""
    node = _gone(image, node_id)
    if broker_epoch not in (NO_EPOCH, node.broker_epoch):
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {node_id} had a session since its partitions were listed (broker epoch "
            f"{node.broker_epoch}): list them again",
        )
    if not _assigned(image, node_id):
        return unregister(image, node_id)
    if node.directory_id == FORGOTTEN:
        return Decision((), None)
    given_up = replace(node, directory_id=FORGOTTEN)
    return Decision((given_up, *forgotten(image.with_records([given_up]), node_id)), None)


def _gone(image: ClusterImage, node_id: int) -> Node:
    node = image.nodes.get(node_id)
    if node is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered")
    if node.active:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {node_id} has a session: stop it first")
    return node


def _assigned(image: ClusterImage, node_id: int) -> list[str]:
    return [
        f"{topic.name}-{index}"
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if node_id in row.replicas or node_id in row.target
    ]
