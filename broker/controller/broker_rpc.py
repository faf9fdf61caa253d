"""Requests of brokers to the controller, without a wire format: a session, heartbeats, in-sync set proposals.

A response carries no state, except that the response to a heartbeat has the committed `cluster.json`. A broker acts
when its own image shows the result.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import msgspec

from broker.controller.decisions.fitness import FIT, Fitness
from broker.error_codes import ErrorCode
from broker.metadata.records import NO_EPOCH, Endpoint, LogPlace
from broker.replication.isr_policy import PartitionProposal

NO_LEASE: Final = -1
NOT_READ: Final = -2


class SessionRequest(msgspec.Struct, frozen=True):
    """BrokerRegistration (62, KIP-631): a process asks for a session.

    - `incarnation` (32 hex digits): the process. `directory_id` (Kafka's base64 text): its data. `boot_id`: this boot
      of the machine.
    - `previous_broker_epoch`: the epoch of the node's last session in the image that the process read; NO_EPOCH: there
      was no session (KIP-966).
    - `lost_logs`: logs of this directory that are gone (R18). `held_logs`: logs of this directory for partitions whose
      holders a rebuilt cluster does not know (R29).
    - `take_over`: an operator vouches that the process of the previous session is dead.
    - `lease_counter`: the counter in `lease.json`, read just before this request. NO_LEASE: there was no `lease.json`.
      NOT_READ: the counter is unknown.
    - `wants_bump`: the broker has not seen the counter move yet. It gets no session. The controller bumps the lease
      instead. If the broker sees the bump, both use the same bucket and not a copy.
    """

    node_id: int
    cluster_id: str
    incarnation: str
    directory_id: str
    boot_id: str
    listeners: tuple[Endpoint, ...]
    rack: str | None = None
    previous_broker_epoch: int = NO_EPOCH
    lost_logs: tuple[LogPlace, ...] = ()
    held_logs: tuple[LogPlace, ...] = ()
    take_over: bool = False
    lease_counter: int = NOT_READ
    wants_bump: bool = False


class AnsweredAt(NamedTuple):
    """Time when the controller of this epoch answered a heartbeat, in ms of the controller's boot clock. Only that
    controller uses the time."""

    controller_epoch: int
    boottime_ms: int


NEVER_ANSWERED: Final = AnsweredAt(-1, 0)


class SessionHeartbeat(msgspec.Struct, frozen=True):
    """BrokerHeartbeat (63): the session `broker_epoch` of `node_id` is alive and has applied the image of `position`
    records. `fitness`: the node's current health. `wants_shutdown`: the broker asks for the end of its session.
    `no_claim_s`: seconds for which the node will not claim the lease. `since`: the last response that the node had
    read; `no_claim_s` counts from it.
    """

    node_id: int
    broker_epoch: int
    position: int
    fitness: Fitness = FIT
    wants_shutdown: bool = False
    no_claim_s: float = 0.0
    since: AnsweredAt = NEVER_ANSWERED


class SessionHeartbeatResponse(msgspec.Struct, frozen=True):
    """The response to a heartbeat. `root`: the committed bytes of `cluster.json`, if newer than the heartbeat's
    position. `store_away`: the controller cannot bump its lease, so the response does not prove that `root` is the
    newest. `lease_counter`: the last counter that the controller wrote (R28). `may_stop`: the session ended as
    requested. `is_disputed`: another broker may have claimed, so the response does not prove that the session exists;
    NOT_CONTROLLER on the wire. `boottime_ms`: the time of the response, see `AnsweredAt`."""

    controller_epoch: int
    root: bytes | None = None
    store_away: bool = False
    lease_counter: int = -1
    may_stop: bool = False
    is_disputed: bool = False
    boottime_ms: int = 0


class ProposalsRequest(msgspec.Struct, frozen=True):
    """AlterPartition (56): proposals of the leader `node_id` in its session `broker_epoch`."""

    node_id: int
    broker_epoch: int
    proposals: tuple[PartitionProposal, ...]


class BrokerRpc(Protocol):
    """The controller, as brokers call it. Every method raises ApiError NOT_CONTROLLER if another broker is the
    controller, and Retryable while the bucket does not answer."""

    async def register(self, asked: SessionRequest) -> int:
        """Begin a session. Returns its broker epoch, once committed. ApiError DUPLICATE_BROKER_REGISTRATION: another
        process of this node id has a live session. INCONSISTENT_CLUSTER_ID. STALE_BROKER_EPOCH: `previous_broker_epoch`
        is outdated, read again. INVALID_REQUEST: this directory was replaced and may never serve again. NOT_CONTROLLER:
        also for a broker that read a copy of the bucket: this controller does not bump the copy's lease.
        """

    async def heartbeat(self, asked: SessionHeartbeat) -> SessionHeartbeatResponse:
        """Keep a session alive. Answered after `broker.heartbeat.interval.ms`, or at once when there is news. ApiError
        STALE_BROKER_EPOCH: the session does not exist any more. BROKER_ID_NOT_REGISTERED."""

    async def alter_partition(self, asked: ProposalsRequest) -> tuple[ErrorCode, ...]:
        """Decide each proposal, in order. NONE: the proposal became a row, which the leader sees in its image (R17).
        Errors of a single proposal: FENCED_LEADER_EPOCH, NOT_CONTROLLER (the leader's image is newer than this
        controller's), INVALID_UPDATE_VERSION (the row changed), INELIGIBLE_REPLICA (a joiner does not have the named
        session), UNKNOWN_TOPIC_ID, INVALID_REQUEST. ApiError STALE_BROKER_EPOCH: the whole request is refused."""

    def closed(self, node_id: int, broker_epoch: int) -> None:
        """The connection of this session's last heartbeat closed."""
