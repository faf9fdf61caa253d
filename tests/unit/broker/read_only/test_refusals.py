"""No API is left without somebody having said whether it writes."""

from __future__ import annotations

import pytest

from broker.dispatcher import HANDLERS, REFUSALS
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.net.dispatch import Peer
from broker.read_only import handlers
from broker.read_only.handlers import NoCommitQueue, RefusesWrites
from broker.security.brokers_only import BrokersOnly
from broker.wire.apis import BROKERS_ONLY, ApiKey
from broker.wire.messages import MetadataRequest

BY_AUTHORIZER = {
    ApiKey.PRODUCE, ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS, ApiKey.TXN_OFFSET_COMMIT,
}  # fmt: skip
BY_OFFICE = {
    ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ELECT_LEADERS, ApiKey.UNREGISTER_BROKER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}  # fmt: skip
"""Their handlers ask the controller's door, and nothing else, to change anything."""
IN_MEMORY = {
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE,
}  # fmt: skip
READING = {
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS,
    ApiKey.API_VERSIONS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
}  # fmt: skip
NOT_HERE = {ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_REPLICA_LOG_DIRS}
"""SECURITY_DISABLED, as anywhere; no log lies here that could move."""


def test_every_api_is_judged() -> None:
    """A new one: say here whether it writes, and see that a read-only broker refuses it if so."""
    judged = [BY_AUTHORIZER, BY_OFFICE, IN_MEMORY, READING, NOT_HERE, set(map(ApiKey, BROKERS_ONLY))]
    assert set().union(*judged) == set(ApiKey)
    assert sum(map(len, judged)) == len(ApiKey)
    assert set(ApiKey) - set(HANDLERS) <= {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.ENVELOPE, ApiKey.WRITE_TXN_MARKERS}


def test_what_the_authorizer_refuses_has_an_answer() -> None:
    """And nothing else is refused that any broker allows."""
    client, judge = Peer(1, "127.0.0.1:1", "PLAINTEXT"), RefusesWrites("INTERNAL")
    answers = REFUSALS | handlers.REFUSALS
    for key in set(ApiKey) - {ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH}:  # judged by what they ask
        refused = judge.refusal(client, key, MetadataRequest(topics=None))
        assert (refused is not None) == (key in BY_AUTHORIZER or key in BROKERS_ONLY), key
        assert refused is None or key in answers
        if key not in BY_AUTHORIZER:
            assert refused == BrokersOnly("INTERNAL").refusal(client, key, MetadataRequest(topics=None))


async def test_the_office_decides_nothing() -> None:
    """And does not look at what it is asked."""
    with pytest.raises(ApiError, match="serve --read-only") as refused:
        await NoCommitQueue().decide(lambda _: pytest.fail("it was asked"))
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
