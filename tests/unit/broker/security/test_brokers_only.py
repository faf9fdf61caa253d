"""What a peer may ask: everything a client can ask, and what only brokers may on the brokers' own listener."""

from __future__ import annotations

import pytest

from broker.dispatcher import REFUSALS
from broker.error_codes import ErrorCode
from broker.net.dispatch import Answer, Peer
from broker.security.brokers_only import BrokersOnly
from broker.wire import messages
from broker.wire.apis import APIS, BROKERS_ONLY, ApiKey
from broker.wire.message import Message
from broker.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTransaction,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from tests.support.brokers.broker_kit import Place, decoded, fetch_request, parts_of

CLIENT, BROKER = Peer(1, "", "OUTER"), Peer(2, "", "INNER")
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TWO_LISTENERS = (
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
    "listeners=PLAINTEXT://127.0.0.1:9092,INNER://127.0.0.1:9093",
    "inter.broker.listener.name=INNER",
)


@pytest.mark.parametrize("api_key", sorted(BROKERS_ONLY))
def test_cluster_d57_what_only_brokers_ask_is_refused_on_every_other_listener(api_key: int) -> None:
    """Clients neither register brokers, nor alter partitions, nor forward for others."""
    brokers_only = BrokersOnly("INNER")
    assert brokers_only.refusal(BROKER, api_key, MetadataRequest()) is None
    assert brokers_only.refusal(CLIENT, api_key, MetadataRequest()) is REFUSED


@pytest.mark.parametrize("replica_id", [0, 1, 2**31 - 1, -3, -(2**31)])
@pytest.mark.parametrize("version", [12, 17])
def test_a_client_does_not_fetch_as_a_replica(replica_id: int, version: int) -> None:
    """CVE-2018-1288, in both places where a request says which replica it is of."""
    request = FetchRequest(replica_id=replica_id)
    if version >= 15:
        request = FetchRequest(replica_state=FetchRequestReplicaState(replica_id=replica_id))
    brokers_only = BrokersOnly("INNER")
    assert brokers_only.refusal(CLIENT, ApiKey.FETCH, request) is REFUSED
    assert brokers_only.refusal(BROKER, ApiKey.FETCH, request) is None


def test_a_client_does_not_ask_replicas_what_they_hold() -> None:
    """What lies above the high watermark, or on a replica, is no client's business; an epoch's end is."""
    brokers_only = BrokersOnly("INNER")
    request = OffsetForLeaderEpochRequest(of_candidates=True)
    assert brokers_only.refusal(CLIENT, ApiKey.OFFSET_FOR_LEADER_EPOCH, request) is REFUSED
    assert brokers_only.refusal(BROKER, ApiKey.OFFSET_FOR_LEADER_EPOCH, request) is None


def test_clients_may_ask_everything_else() -> None:
    """Consumers, debugging consumers, and every API that is served."""
    brokers_only = BrokersOnly("INNER")
    for replica_id in (-1, -2):
        assert brokers_only.refusal(CLIENT, ApiKey.FETCH, FetchRequest(replica_id=replica_id)) is None
    asked: dict[int, Message] = {
        ApiKey.PRODUCE: ProduceRequest(),
        ApiKey.FETCH: FetchRequest(replica_id=-1),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRequest(),
        ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest(),
    }
    for api_key in set(APIS) - BROKERS_ONLY:
        assert brokers_only.refusal(CLIENT, api_key, asked.get(api_key, MetadataRequest())) is None


def test_every_api_that_may_be_refused_has_its_way_to_say_so() -> None:
    """A new API among brokers cannot be served without it."""
    others = {ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN}
    assert set(REFUSALS) == others | BROKERS_ONLY


def test_only_brokers_add_partitions_to_transactions_of_others() -> None:
    """Version 4 and later of AddPartitionsToTxn name several transactions, and may only verify."""
    brokers_only = BrokersOnly("INNER")
    request = AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnRequestTransaction()])
    assert brokers_only.refusal(CLIENT, ApiKey.ADD_PARTITIONS_TO_TXN, request) is REFUSED
    assert brokers_only.refusal(BROKER, ApiKey.ADD_PARTITIONS_TO_TXN, request) is None


@pytest.mark.parametrize("api_key", sorted(BROKERS_ONLY))
async def test_cluster_d57_a_client_that_asks_as_a_broker_is_refused(api_key: int) -> None:
    """D57, CVE-2018-1288: in its own answer, on the listener of clients; on that of the brokers it is answered."""
    life = await Place(*TWO_LISTENERS).start()
    request = getattr(messages, f"{APIS[ApiKey(api_key)].name}Request")()
    assert (await life.call(api_key, request)).error_code == REFUSED
    assert (await life.call(api_key, request, peer=BROKER)).error_code not in (0, REFUSED)
    await life.stop()


async def test_a_refused_fetch_touches_no_session() -> None:
    """Every partition it names is refused, and the session of its number goes on where it was."""
    life = await Place().start()
    await life.create("log")
    begun = await life.call(ApiKey.FETCH, fetch_request(("log", 0, 0), session_id=0, session_epoch=0))
    posing = fetch_request(("log", 0, 0), session_id=begun.session_id, session_epoch=-1, replica_id=1)
    refused = await life.call(ApiKey.FETCH, posing)
    assert refused.error_code == REFUSED and refused.session_id == 0
    assert [row.error_code for topic in refused.responses for row in topic.partitions] == [REFUSED]
    again = await life.call(ApiKey.FETCH, fetch_request(session_id=begun.session_id, session_epoch=1))
    assert (again.error_code, again.session_id) == (0, begun.session_id)
    await life.stop()


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (None, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
async def test_on_the_brokers_listener_a_replica_of_nothing_is_told_to_ask_again(
    epoch: int | None, code: ErrorCode
) -> None:
    """As Kafka's leader answers a replica that is none of its partition's. None: the leader's own epoch."""
    life = await Place(*TWO_LISTENERS).start()
    await life.create("log")
    asked = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    asked.current_leader_epoch = life.partition("log").leader_epoch if epoch is None else epoch
    request = FetchRequest(replica_id=1, topics=[FetchRequestTopic(topic="log", partitions=[asked])])
    answer: Answer = life.dispatch(ApiKey.FETCH, request, 12, peer=BROKER)
    response = decoded(ApiKey.FETCH, 12, await parts_of(answer))
    assert response.error_code == 0
    assert response.responses[0].partitions[0].error_code == code
    assert (await life.call(ApiKey.FETCH, request, 12)).error_code == REFUSED
    await life.stop()
