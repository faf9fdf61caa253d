"""What brokers ask of the controller: a session, that it stays, other in-sync sets. The door, not what is behind it.

Owns the shape of those requests and answers, free of any wire format. Always true: an answer carries no state but, in a
heartbeat's, the bytes of a root that is committed; whoever asks acts when its own image shows what it asked for. Must
not know how requests are decoded, nor how a decision is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from broker.controller.decisions.fitness import FIT, Fitness
from broker.error_codes import ErrorCode
from broker.metadata.records import NO_EPOCH, Listener, LogPlace
from broker.replication.isr_policy import PartitionProposal

NO_LEASE: Final = -1
NOT_READ: Final = -2


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """BrokerRegistration (62, KIP-631): a process asks for a session.

    `incarnation` (32 hex digits) names the process, `directory_id` (Kafka's base64 text) what lies on its disk,
    `boot_id` the run of its machine. `previous_broker_epoch` is that of the node's last session in the image that was
    read before asking; NO_EPOCH: it had none (KIP-966). `lost_logs`: logs of this directory that are gone (R18).
    `held_logs`: of partitions that a rebuilt cluster does not know who holds, those that lie in this directory (R29).
    `take_over`: an operator's word that the process of the session before is dead. `lease_counter`: of `lease.json` as
    it was read just before asking; NO_LEASE: there was none; NOT_READ: not told. `wants_bump`: the asker has not seen
    it move yet: he is not let in, but shown that this is the bucket that the controller serves, and no copy of it.
    """

    node_id: int
    cluster_id: str
    incarnation: str
    directory_id: str
    boot_id: str
    listeners: tuple[Listener, ...]
    rack: str | None = None
    previous_broker_epoch: int = NO_EPOCH
    lost_logs: tuple[LogPlace, ...] = ()
    held_logs: tuple[LogPlace, ...] = ()
    take_over: bool = False
    lease_counter: int = NOT_READ
    wants_bump: bool = False


@dataclass(frozen=True, slots=True)
class SessionHeartbeat:
    """BrokerHeartbeat (63): the session `broker_epoch` of `node_id` is alive and at `position` (how many records make
    the image it obeys).

    `fitness`: how it is now, said again in each. `wants_shutdown`: it stopped: its session is to end. `no_claim_s`:
    for so many seconds at least it does not claim, as the lease stood when it read it.
    """

    node_id: int
    broker_epoch: int
    position: int
    fitness: Fitness = FIT
    wants_shutdown: bool = False
    no_claim_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionHeartbeatResponse:
    """Of a heartbeat that was heard.

    `controller_epoch`: the answering controller's. `root`: the bytes of `cluster.json`, seen committed, where that is
    newer than what was asked with. `store_away`: the controller cannot beat its lease, so this says nothing of how
    fresh anything is. `lease_counter`: the last that it wrote there itself (R28). `may_stop`: the session has ended as
    it wished.
    """

    controller_epoch: int
    root: bytes | None = None
    store_away: bool = False
    lease_counter: int = -1
    may_stop: bool = False


@dataclass(frozen=True, slots=True)
class ProposalsRequest:
    """AlterPartition (56): what the leader `node_id`, in its session `broker_epoch`, proposes."""

    node_id: int
    broker_epoch: int
    proposals: tuple[PartitionProposal, ...]


class BrokerRpc(Protocol):
    """Errors of all: ApiError NOT_CONTROLLER where another one decides; Retryable while the bucket does not answer."""

    async def register(self, asked: SessionRequest) -> int:
        """Begin a session; its broker epoch, once it is committed.

        ApiError DUPLICATE_BROKER_REGISTRATION: another process of this node id has a session that lives;
        INCONSISTENT_CLUSTER_ID; STALE_BROKER_EPOCH: the node's last session is not the one asked with, look again;
        INVALID_REQUEST: this directory was replaced (it may never serve again); NOT_CONTROLLER: also of the bucket that
        it read, whose lease this controller does not bump: a copy of this cluster's.
        """
        ...

    async def heartbeat(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        """Keep a session alive. Answered after `broker.heartbeat.interval.ms`, at once when there is news.

        ApiError STALE_BROKER_EPOCH: there is no such session any more; BROKER_ID_NOT_REGISTERED; NOT_CONTROLLER: also
        where the store is away and another may have claimed by now.
        """
        ...

    async def alter_partition(self, asked: ProposalsRequest) -> tuple[ErrorCode, ...]:
        """Decide on each proposal, in order; NONE where it became a row, which the asker sees in its image (R17).

        Of one: FENCED_LEADER_EPOCH, NOT_CONTROLLER (its image is ahead of this controller's), INVALID_UPDATE_VERSION
        (another row stands), INELIGIBLE_REPLICA (a joiner without the session named), UNKNOWN_TOPIC_ID,
        INVALID_REQUEST. ApiError STALE_BROKER_EPOCH of the whole.
        """
        ...

    def closed(self, node_id: int, broker_epoch: int) -> None:
        """The connection was closed by which the last heartbeat of this session came."""
        ...
