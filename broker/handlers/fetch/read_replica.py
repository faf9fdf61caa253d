"""A consumer of a rack is told by the leader which replica to read from (KIP-392).

Owns the answer that says so: no records, a node in `preferred_read_replica`, and what a fetch says of the log besides.
Always true: only a leader says so; only a broker is named that has a session and that the client's listener reaches.
Must not know who is chosen (`broker.replication.read_replica_selection`), nor how a follower serves
(`broker.partition`).
"""

from __future__ import annotations

from broker.context import Context
from broker.handlers.metadata.cluster_view import broker_at
from broker.net.dispatch import Peer
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.readable import Fetchable
from broker.replication.read_replica_selection import HERE, RedirectMemory, nearest
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchResponsePartition


def send_to_nearest(
    context: Context,
    peer: Peer,
    request: FetchRequest,
    partition: Fetchable,
    wanted: FetchRequestPartition,
    answer: FetchResponsePartition,
) -> bool:
    """Fill the answer where the client of a partition led here is to read elsewhere; whether it is."""
    if not isinstance(partition, LeaderReplica):
        return False

    def rack_of(node_id: int) -> str | None:
        found = broker_at(context, peer.listener, node_id)
        return None if found is None else found.rack

    node_id = nearest(partition.leader, wanted.fetch_offset, request.rack_id, rack_of)
    if node_id == HERE:
        return False
    away = peer.sent_away
    if not isinstance(away, RedirectMemory):
        away = peer.sent_away = RedirectMemory()
    place = partition.topic, partition.index
    if not away.may_go(place, wanted.fetch_offset, context.world.clock.monotonic_s()):
        return False
    context.metrics.sent_to_nearest += 1
    answer.preferred_read_replica = node_id
    answer.high_watermark = partition.high_watermark
    answer.last_stable_offset = partition.last_stable_offset
    answer.log_start_offset = partition.log_start_offset
    answer.aborted_transactions = None
    return True
