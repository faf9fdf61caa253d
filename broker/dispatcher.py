"""Dispatches frames to handlers: decodes, asks the authorizer, waits for the serving gate, calls the handler.

A frame is decoded completely before it has any effect. A handler's failure is answered or closes its connection; it
does not affect other connections.

Hot path: Produce and Fetch are answered during dispatch unless they have to wait; other requests run as tasks, one at a
time a connection, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from broker.context import Call, Context
from broker.controller.controller_requests import ControllerRequests
from broker.controller.decisions.decision import RemoteMetadataWriter
from broker.error_codes import ErrorCode
from broker.groups.coordinator import GroupCoordinator
from broker.handlers.admin import (
    acls,
    alter_configs,
    configs,
    credentials,
    delete_records,
    log_dirs,
    producers,
    quotas,
    topics,
)
from broker.handlers.cluster import brokers, elections, envelope, reassignments, sasl
from broker.handlers.fetch import fetch
from broker.handlers.fetch import list_offsets as offsets
from broker.handlers.fetch import responses as fetch_answers
from broker.handlers.fetch.long_poll import LongPoll, await_records
from broker.handlers.groups import admin as group_admin
from broker.handlers.groups import members as groups
from broker.handlers.groups import offsets as group_offsets
from broker.handlers.metadata import cluster_view, metadata
from broker.handlers.metadata import describe_cluster as cluster
from broker.handlers.metadata import describe_topic_partitions as topic_partitions
from broker.handlers.produce import produce
from broker.handlers.produce.fast_path import FastPath
from broker.handlers.produce.flow import ProduceFlow
from broker.handlers.responder import Responder
from broker.handlers.slots import RequestSlots
from broker.handlers.throttle import RequestThrottle
from broker.handlers.transactions import admin as transaction_admin
from broker.handlers.transactions import coordinator as transactions
from broker.handlers.transactions import markers
from broker.handlers.transactions import offsets as transaction_offsets
from broker.net.dispatch import Answer, CloseConnection, Later, Part, Peer
from broker.peers.forward import FORWARDED
from broker.quotas.loop_time import LoopTime
from broker.security.brokers_only import RESTRICTED, BrokersOnly
from broker.security.client_access import ClientAccess
from broker.security.rules import data as data_rules
from broker.security.rules.table import RULES
from broker.security.rules.verdict import ALLOWED, Verdict
from broker.wire import messages as wire
from broker.wire.apis import BROKERS_ONLY, ApiKey, is_served
from broker.wire.codec import decode_request, encode_response
from broker.wire.errors import MalformedFrame
from broker.wire.framing import RequestHeader, parse_request_header, response_frame
from broker.wire.message import Encoded, Message
from broker.wire.messages import EnvelopeRequest, FetchRequest, ProduceRequest
from seams.loop.tasks import Tasks
from seams.loop.turns import ROWS_PER_TURN, next_turn

# `Any`: the codec knows the message class of each API, so the table below does not repeat it.
Handler = Callable[[Context, Any, Call], Awaitable[Message | Encoded]]
Refuse = Callable[[Any, ErrorCode], Awaitable[Message]]


def _client(call: Call) -> groups.ClientInfo:
    return groups.ClientInfo(call.client_id, call.peer.host)


def _group_handler(handle: Callable[[GroupCoordinator, Any, int, groups.ClientInfo], Awaitable[Message]]) -> Handler:
    """Group handlers get the coordinator only."""

    def handler(context: Context, request: Any, call: Call) -> Awaitable[Message]:
        return handle(context.groups, request, call.version, _client(call))

    return handler


def _find_coordinator(context: Context, request: Any, call: Call) -> Awaitable[Message]:
    broker_of = partial(cluster_view.broker_at, context, call.peer.listener)
    return groups.handle_find_coordinator(context.groups, request, call.version, broker_of, context.transactions)


HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.API_VERSIONS: cluster.handle_api_versions,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.handle_create_partitions,
    ApiKey.DELETE_RECORDS: delete_records.handle_delete_records,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
    ApiKey.ALTER_CONFIGS: alter_configs.handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs.handle_incremental_alter_configs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic_partitions.handle_describe_topic_partitions,
    ApiKey.ELECT_LEADERS: elections.handle_elect_leaders,
    ApiKey.UNREGISTER_BROKER: brokers.handle_unregister_broker,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.handle_list_partition_reassignments,
    ApiKey.DESCRIBE_ACLS: acls.handle_describe_acls,
    ApiKey.CREATE_ACLS: acls.handle_create_acls,
    ApiKey.DELETE_ACLS: acls.handle_delete_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: quotas.handle_alter_client_quotas,
    ApiKey.WRITE_TXN_MARKERS: markers.handle_write_txn_markers,
    ApiKey.DESCRIBE_PRODUCERS: producers.handle_describe_producers,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.handle_describe_log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_CLUSTER: cluster.handle_describe_cluster,
    ApiKey.INIT_PRODUCER_ID: transactions.handle_init_producer_id,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _group_handler(groups.handle_join_group),
    ApiKey.SYNC_GROUP: _group_handler(groups.handle_sync_group),
    ApiKey.HEARTBEAT: _group_handler(groups.handle_heartbeat),
    ApiKey.LEAVE_GROUP: _group_handler(groups.handle_leave_group),
    ApiKey.OFFSET_COMMIT: _group_handler(group_offsets.handle_offset_commit),
    ApiKey.OFFSET_FETCH: _group_handler(group_offsets.handle_offset_fetch),
    ApiKey.LIST_GROUPS: _group_handler(group_admin.handle_list_groups),
    ApiKey.DESCRIBE_GROUPS: _group_handler(group_admin.handle_describe_groups),
    ApiKey.DELETE_GROUPS: _group_handler(group_admin.handle_delete_groups),
    ApiKey.OFFSET_DELETE: _group_handler(group_admin.handle_offset_delete),
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.handle_add_offsets_to_txn,
    ApiKey.END_TXN: transactions.handle_end_txn,
    ApiKey.TXN_OFFSET_COMMIT: transaction_offsets.handle_txn_offset_commit,
    ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transaction_admin.handle_list_transactions,
    ApiKey.BROKER_REGISTRATION: brokers.handle_broker_registration,
    ApiKey.BROKER_HEARTBEAT: brokers.handle_broker_heartbeat,
    ApiKey.ALTER_PARTITION: brokers.handle_alter_partition,
    ApiKey.SASL_HANDSHAKE: sasl.handle_sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl.handle_sasl_authenticate,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: credentials.handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: credentials.handle_alter_user_scram_credentials,
}


def _error_only(response: Callable[..., Message]) -> Refuse:
    async def refused(_: Any, error: ErrorCode) -> Message:
        return response(error_code=error)

    return refused


REFUSALS: Final[dict[int, Refuse]] = {
    ApiKey.FETCH: fetch_answers.refused,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.refused,
    ApiKey.BROKER_REGISTRATION: _error_only(wire.BrokerRegistrationResponse),
    ApiKey.BROKER_HEARTBEAT: _error_only(wire.BrokerHeartbeatResponse),
    ApiKey.ALTER_PARTITION: _error_only(wire.AlterPartitionResponse),
    ApiKey.ENVELOPE: _error_only(wire.EnvelopeResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: _error_only(wire.AddPartitionsToTxnResponse),
}
"""The response of each API that the authorizer may refuse."""

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_ENVELOPE: Final = int(ApiKey.ENVELOPE)
# Envelopes of several clients are handled concurrently. A parked heartbeat does not delay an urgent heartbeat.
_SIDE_BY_SIDE: Final = (_ENVELOPE, int(ApiKey.BROKER_HEARTBEAT))
_NOT_FOR_THE_GONE: Final = FORWARDED | {_ENVELOPE, ApiKey.DELETE_RECORDS, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE}
"""Changes by name. A client that gave up may have sent them again, and a late one would delete what was made since."""
_WIDE_FRAME: Final = 8 << 10  # a smaller frame has fewer partitions
_LARGE_FRAME: Final = 64 << 10
_LARGE_AT_ONCE: Final = 4
"""Large requests that are decoded at a time. Their objects take up to sixty times the bytes of a frame, so all frames
that `FrameBudget` admits would take gigabytes."""
_ANY_NUMBER_AT_ONCE: Final = BROKERS_ONLY | {
    _PRODUCE,  # mostly records, which are views of the frame
    _ENVELOPE,
    int(ApiKey.JOIN_GROUP),  # waits for other members
    int(ApiKey.SYNC_GROUP),
}


def is_wide_produce(request: ProduceRequest) -> bool:
    """Whether the request names too many partitions to be handled without yielding to other work."""
    return _is_wide(request.topic_data, lambda topic: len(topic.partition_data))


def is_wide_fetch(request: FetchRequest) -> bool:
    """As `is_wide_produce`."""
    return _is_wide([*request.topics, *request.forgotten_topics_data], lambda topic: len(topic.partitions))


def _is_wide(topics: Sequence[Any], rows_of: Callable[[Any], int]) -> bool:
    return len(topics) > ROWS_PER_TURN or sum(map(rows_of, topics)) > fetch.READ_AT_ONCE_MAX


def _split_produce(call: Call, request: ProduceRequest) -> tuple[Call, ProduceRequest]:
    """The allowed part of the request, and a call with the refused part."""
    if not call.access.is_enforced:
        return call, request
    return _allowed_part(call, request, data_rules.produce_at_once(call.access, request))


def _allowed_part(call: Call, request: ProduceRequest, verdict: Verdict) -> tuple[Call, ProduceRequest]:
    if verdict is ALLOWED:
        return call, request
    return replace(call, refused=verdict.refused), verdict.request


async def _nothing_to_open(_: str) -> None:
    """Do nothing: a refused forwarded change opens no log."""


class BrokerDispatcher:
    """Implements `broker.net.dispatch.Dispatcher` with the handlers."""

    context: Context
    fast_path: FastPath

    def __init__(
        self,
        tasks: Tasks,
        brokers_only: BrokersOnly,
        clients: ClientAccess,
        refusals: Mapping[int, Refuse] = REFUSALS,
    ) -> None:
        self._tasks = tasks
        self._large_slots = RequestSlots(_LARGE_AT_ONCE)
        # A fetch holds its slot only while it computes. More slots would make each turn longer. A fetch that is read in
        # a turn or two does not wait for fetches that need many turns.
        self._fetch_slots = RequestSlots(1)
        self._short_fetch_slots = RequestSlots(1)
        self._brokers_only = brokers_only
        self.clients = clients
        self._handlers = HANDLERS
        self._refusals = refusals

    def serve(self, context: Context, own: Mapping[int, Handler] | None = None) -> None:
        """Use `context` from now on; called before the first frame (ports are known only after binding). `own`:
        handlers that replace the usual handlers."""
        self._handlers = HANDLERS | dict(own or {})
        self.context = context
        remote = ControllerRequests(
            RemoteMetadataWriter(), context.metadata, context.live, context.world.rng, _nothing_to_open
        )
        self._elsewhere = replace(context, controller=remote)
        self.fast_path = FastPath(context)
        if self.clients.authorizer is not None:
            self.clients.authorizer.watch(self.fast_path.routes.forget)
        self._responder = Responder(context.gate, self._tasks)
        self._produce_flow = ProduceFlow(context, self._responder)
        self._now_s = context.world.clock.monotonic_s
        self._note = context.metrics.latency.note
        self._quotas = context.quotas
        self._throttle = RequestThrottle(context.quotas)

    def dispatch(self, peer: Peer, frame: memoryview) -> Answer:
        """See `Dispatcher.dispatch`."""
        began_s = self._now_s()
        answer = self._throttled(peer, frame) if self._quotas.is_set else self._answer(peer, frame)
        api_key = frame[1]  # the second of the key's two bytes: served APIs have keys below 128
        if isinstance(answer, Later):
            answer.when_done(partial(self._answered, api_key, began_s, 1))
        else:
            self._note(api_key, self._now_s() - began_s, 1)
        return answer

    def _throttled(self, peer: Peer, frame: memoryview) -> Answer:
        time = self._responder.time = LoopTime(self._now_s)
        time.start()
        try:
            answer = self._answer(peer, frame)
        finally:
            self._responder.time = None
            time.stop()
        return self._throttle.after(peer, frame, answer, time)

    def _answered(self, api_key: int, began_s: float, count: int, _: object) -> None:
        self._note(api_key, self._now_s() - began_s, count)

    def _answer(self, peer: Peer, frame: memoryview) -> Answer:
        try:
            header, body_at = parse_request_header(frame)
            if not is_served(header.api_key, header.api_version):
                return self._unsupported(header, frame[body_at:])
        except MalformedFrame as malformed:
            raise self._malformed(malformed) from malformed
        if header.api_key == _FETCH:
            if len(frame) > _WIDE_FRAME:
                return self._responder.later(self._large_fetch(peer, frame, header, body_at, self._responder.time))
        elif len(frame) > _LARGE_FRAME and header.api_key not in _ANY_NUMBER_AT_ONCE:
            return self._responder.later(self._large(peer, frame, header, body_at, self._responder.time))
        call, request = self._decoded(peer, frame, header, body_at)
        return self._handled(frame, header, body_at, call, request)

    async def _large(
        self, peer: Peer, frame: memoryview, header: RequestHeader, body_at: int, time: LoopTime | None
    ) -> list[Part] | None:
        """Answer a large request, once fewer than `_LARGE_AT_ONCE` others are in work."""
        async with self._large_slots.take(peer, of_brokers=self.clients.is_broker(peer)):
            self._responder.time = time
            try:
                call, request = self._decoded(peer, frame, header, body_at)
                answer = self._handled(frame, header, body_at, call, request)
            finally:
                self._responder.time = None
            return await answer.future if isinstance(answer, Later) else answer

    async def _large_fetch(
        self, peer: Peer, frame: memoryview, header: RequestHeader, body_at: int, time: LoopTime | None
    ) -> Answer:
        """Answer a fetch that may name very many partitions. Such fetches are decoded and read one after the other, in
        turns with other work. They wait for records together."""
        slots = self._fetch_slots if len(frame) > _LARGE_FRAME else self._short_fetch_slots
        slot = partial(slots.take, peer, of_brokers=self.clients.is_broker(peer))
        async with slot():
            self._responder.time = time
            try:
                call, request = self._decoded(peer, frame, header, body_at)
                wanted = cast(FetchRequest, request)
                if not is_wide_fetch(wanted) or self._refusal(header, call, request) is not None:
                    return self._handled(frame, header, body_at, call, request)
            finally:
                self._responder.time = None
            await next_turn()  # the decoding already took a full turn
            await self.context.gate.opened()
            fetching = fetch.Fetch(self.context, wanted, call)
            result = await fetching.attempt_in_turns()
            if fetching.is_due(result):
                return await self._responder.in_turns(header, fetching.response(result))
            waiting = await_records(self.context, fetching, result, slot)
            del result
        return await self._responder.in_turns(header, await waiting)

    def _malformed(self, why: MalformedFrame) -> CloseConnection:
        self.context.metrics.malformed += 1
        return CloseConnection(f"malformed request: {why}")

    def _decoded(self, peer: Peer, frame: memoryview, header: RequestHeader, body_at: int) -> tuple[Call, Message]:
        try:
            request = decode_request(header.api_key, header.api_version, frame[body_at:])
        except MalformedFrame as malformed:
            raise self._malformed(malformed) from malformed
        client_id = header.client_id or ""
        call = Call(header.api_version, peer, client_id, self.clients.of(peer), time=self._responder.time)
        self.context.metrics.requests[header.api_key] += 1
        return call, request

    def _refusal(self, header: RequestHeader, call: Call, request: Message) -> ErrorCode | None:
        return self._brokers_only.refusal(call.peer, header.api_key, request, is_client=call.access.is_enforced)

    def _handled(self, frame: memoryview, header: RequestHeader, body_at: int, call: Call, request: Message) -> Answer:
        context = self.context
        refusal = self._refusal(header, call, request)
        if refusal is not None:
            if header.api_key in RESTRICTED:
                self.clients.note_plays_broker(call.peer, header.api_key)
            return self._responder.later(self._refused(header, request, refusal))
        if not context.gate.is_open():
            return self._responder.later(self._after_gate(header, call, request))
        if header.api_key == _PRODUCE:
            wanted = cast(ProduceRequest, request)
            if len(frame) > _WIDE_FRAME and is_wide_produce(wanted):
                return self._responder.later(self._wide(header, call, wanted))
            if call.access.is_enforced:
                call, allowed = _split_produce(call, wanted)
                if allowed is not request:
                    return self._produce_flow.answer(header, call, allowed)
            produced = self._produce_flow.answer(header, call, wanted)
            self.fast_path.routes.learn(call.peer, frame, body_at, call, wanted)
            return produced
        if header.api_key == _FETCH:
            return self._fetch(header, call, cast(FetchRequest, request))
        return self._responder.later(self._handle(header, call, request), blocks=header.api_key not in _SIDE_BY_SIDE)

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """See `Dispatcher.dispatch_run`."""
        began_s = self._now_s()
        start = pos
        count, pos, answer = self.fast_path.answer(peer, view, pos, end)
        if count and self._quotas.is_set:
            answer = self._throttle.after_run(peer, count, pos - start, answer, self._now_s() - began_s)
        if isinstance(answer, Later):
            answer.when_done(partial(self._answered, _PRODUCE, began_s, count))
        elif count:
            self._note(_PRODUCE, self._now_s() - began_s, count)
        return count, pos, answer

    async def _wide(self, header: RequestHeader, call: Call, request: ProduceRequest) -> Answer:
        """Handle a produce of very many partitions, in turns with other work."""
        await next_turn()  # the decoding already took a full turn
        if call.access.is_enforced:
            verdict = await data_rules.produce(call.access, request, call.version, self.context.metadata)
            call, request = _allowed_part(call, request, verdict)
        return await self._produce_flow.answer_wide(header, call, request)

    def _fetch(self, header: RequestHeader, call: Call, request: FetchRequest) -> Answer:
        fetching = fetch.Fetch(self.context, request, call)
        if fetching.due() > ROWS_PER_TURN:
            return self._responder.later(self._read_apart(header, call.peer, fetching))
        return self._read(header, fetching)

    def _read(self, header: RequestHeader, fetching: fetch.Fetch) -> Answer:
        result = fetching.attempt()
        if fetching.is_due(result):
            return self._responder.now(header, fetching.response(result))
        return LongPoll(self.context, fetching, result, partial(self._responder.complete, header)).answer

    async def _read_apart(self, header: RequestHeader, peer: Peer, fetching: fetch.Fetch) -> Answer:
        """Answer a small request of a large session. The session is read without yielding, so a turn of the loop reads
        only one such session."""
        async with self._short_fetch_slots.take(peer, of_brokers=self.clients.is_broker(peer)):
            await next_turn()
            return self._read(header, fetching)

    async def _after_gate(self, header: RequestHeader, call: Call, request: Message) -> Answer:
        await self.context.gate.opened()
        if header.api_key == _PRODUCE:
            wanted = cast(ProduceRequest, request)
            if is_wide_produce(wanted):
                return await self._wide(header, call, wanted)
            call, allowed = _split_produce(call, wanted)
            return self._produce_flow.answer(header, call, allowed)
        if header.api_key == _FETCH:
            return self._fetch(header, call, cast(FetchRequest, request))
        if call.peer.is_gone:  # its client may have sent it again through another broker, as in `RequestSlots.take`
            raise CloseConnection("the client is gone")
        return await self._handle(header, call, request)

    async def _refused(self, header: RequestHeader, request: Message, refusal: ErrorCode) -> list[Part] | None:
        return await self._responder.in_turns(header, await self._refusals[header.api_key](request, refusal))

    async def _handle(self, header: RequestHeader, call: Call, request: Message) -> list[Part]:
        context = self.context
        if header.api_key in _NOT_FOR_THE_GONE and call.peer.is_gone:  # the request waited behind another one
            raise CloseConnection("the client is gone")
        if header.api_key in FORWARDED and context.forward.is_elsewhere():
            answer = await context.forward.pass_on(call.peer, header, request)
            if answer is not None:
                return await self._responder.forwarded(answer)
            # It is not known whether a controller received the request. Each API has its own error for this case. This
            # broker does not execute the request, even if it became the controller, because the old controller may have
            # executed it on an earlier topic of the same name.
            return await self._respond(self._elsewhere, header, call, request)
        if header.api_key == _ENVELOPE:
            sent = cast(EnvelopeRequest, request)
            opened = await envelope.opened(context, self._brokers_only, self.clients, self._decide, sent, call)
            return await self._responder.in_turns(header, opened)
        return await self._decide(header, call, request)

    async def _decide(self, header: RequestHeader, call: Call, request: Message) -> list[Part]:
        return await self._respond(self.context, header, call, request)

    async def _respond(self, context: Context, header: RequestHeader, call: Call, request: Message) -> list[Part]:
        """Answer or refuse a request, as the authorizer decides. Produce and Fetch are handled elsewhere."""
        if not call.access.is_enforced:
            response = await self._handlers[header.api_key](context, request, call)
            return await self._responder.in_turns(header, response)
        rule = RULES.get(header.api_key)
        if rule is None:
            raise CloseConnection(f"API {header.api_key} has no rule of the authorizer")
        verdict = await rule.split(call.access, request, call.version, context.metadata)
        if verdict.response is not None:
            return await self._responder.in_turns(header, verdict.response)
        left = request if verdict.request is None else verdict.request
        response = await self._handlers[header.api_key](context, left, call)
        if verdict.merge is not None:
            await verdict.merge(response)
        return await self._responder.in_turns(header, response)

    def _unsupported(self, header: RequestHeader, body: memoryview) -> list[Part]:
        """Answer UNSUPPORTED_VERSION if the response has an error field. Otherwise close the connection."""
        if header.api_key == ApiKey.API_VERSIONS:
            table = encode_response(header.api_key, 0, cluster.api_versions(0, ErrorCode.UNSUPPORTED_VERSION))
            return response_frame(0, header.correlation_id, table)
        if header.api_key == _PRODUCE and 0 <= header.api_version < 3:
            old = cast(ProduceRequest, decode_request(header.api_key, header.api_version, body))
            refusal = encode_response(header.api_key, header.api_version, produce.unsupported_version(old))
            return response_frame(0, header.correlation_id, refusal)
        raise CloseConnection(f"API {header.api_key} version {header.api_version} is not served")
