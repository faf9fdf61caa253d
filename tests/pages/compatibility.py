"""docs/compatibility.md: requests, configs, clients and tools beside Apache Kafka 4.3.1, and the differences known.

Owns the list of differences, each with where it is decided or checked. What is served comes from the wire table, which
configs from their definitions, which clients from the client matrix.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.config.api.explain import Effect, Scope, explain_all
from broker.wire.apis import APIS
from tests.pages.kafka_apis import LEFT_OUT, TABLE
from tests.pages.layout import code, table
from tests.support.clients.stock_clients import CLIENTS, CODECS

_HEAD = """# Compatibility

Written by `make pages` from the wire table, the config definitions and the client matrix: do not edit it. The
comparison is with Apache Kafka 4.3.1, one node, KRaft. Every advertised request is served
completely. Others are not advertised, so that clients fall back or report an error.
"""


class Difference(NamedTuple):
    """What a client or an operator can notice; `where`: a page of docs/, or a test."""

    what: str
    where: str


_TOOLS_TEST = "tests/integration/kafka/test_kafka_tools_beside.py"
DIFFERENCES = (
    # client quotas
    Difference(
        "Client quotas do not limit `super.users` and peers on the brokers' listener; Kafka limits them.",
        "tests/unit/broker/quotas/test_quota_managers.py",
    ),
    Difference(
        "A consumer that fetched nothing in all windows of its quota gets a batch larger than the quota, and is "
        "throttled afterwards; Kafka sends it empty responses for ever.",
        "tests/unit/broker/handlers/test_client_quotas.py",
    ),
    Difference(
        "`request_percentage` is a share of the only event loop, so 100 is all of it; in Kafka it is a share of one of"
        " several threads.",
        "docs/adr/0039-client-quotas.md",
    ),
    Difference(
        "A throttled connection is not read for its throttle time, at most for `connections.max.idle.ms`; Kafka closes"
        " the connection after that time.",
        "tests/unit/broker/net/test_net_throttle.py",
    ),
    Difference(
        "ApiVersions from version 3 on has no throttle time; its client is muted all the same. If several Produce "
        "requests are answered together, the last response has the throttle time.",
        "tests/unit/broker/handlers/test_client_quotas.py",
    ),
    Difference(
        "An infinite quota, or one that is not a number, is refused; one AlterClientQuotas resolves at most 10 host "
        "names.",
        "tests/unit/broker/handlers/test_client_quotas.py",
    ),
    Difference(
        "Above `max.connection.creation.rate` connections wait, the broker's and a listener's. The connections of one "
        "second are admitted at once, the rest evenly. Kafka admits the connections of `quota.window.num` seconds at "
        "once, and then one a second.",
        "tests/integration/kafka/test_listener_limits_beside.py",
    ),
    Difference(
        "`max.connections.per.ip.overrides` takes addresses, not host names.",
        "tests/unit/broker/quotas/test_connection_rates.py",
    ),
    Difference(
        "ListOffsets −3 (greatest timestamp) searches both tiers; Kafka searches local segments only.",
        "tests/unit/broker/handlers/test_broker_handlers.py",
    ),
    Difference(
        "A consumer that returns from the replica in its rack (KIP-392) is served by the leader for 10 s before it is "
        "redirected again; Kafka's leader redirects it at once, also to a follower that cannot serve it.",
        "tests/unit/broker/test_fetch_from_followers.py",
    ),
    Difference(
        "A broker's loggers cannot be listed or set through the protocol (`--log-level` at the start).",
        "tests/unit/broker/handlers/test_broker_admin.py",
    ),
    Difference(
        "Fetch as a replica is refused (CLUSTER_AUTHORIZATION_FAILED) except on the brokers' listener "
        "(`thermocline.internal`, `inter.broker.listener.name`); Kafka without an authorizer lets every client do it.",
        "tests/unit/broker/security/test_brokers_only.py",
    ),
    Difference(
        "Without `inter.broker.listener.name`, or if it names the only listener, brokers get one more listener, "
        "BROKERS, not advertised to clients; Kafka's brokers then share PLAINTEXT, or the only one, with clients.",
        "tests/unit/broker/config/test_config_listeners.py",
    ),
    Difference(
        "`advertised.listeners` must have an entry for every listener or for none; Kafka starts, and names no broker "
        "to clients of a listener without an entry.",
        "tests/unit/broker/config/test_config_listeners.py",
    ),
    Difference(
        "acks=all answers, and records become visible, after an fdatasync (`thermocline.flush=sync`); Kafka counts the "
        "page cache. `thermocline.flush=os` is Kafka's way.",
        "docs/GUARANTEES.md",
    ),
    Difference(
        "By default new topics are tiered, segments are 128 MiB, and local copies stay a day.",
        "docs/configuration.md",
    ),
    Difference(
        "After a restore from the bucket, or a lost disk of a broker without replicas, every transactional id of the "
        "partition gets a new producer id; an earlier producer gets INVALID_PRODUCER_ID_MAPPING.",
        "docs/adr/0033-transactions-in-both-tiers.md",
    ),
    Difference(
        "A transaction has at most 10 000 partitions; more are refused with POLICY_VIOLATION.",
        "tests/unit/broker/transactions/test_transactions_machine.py",
    ),
    Difference(
        "A pattern of ListTransactions has at most two repetitions and 256 ways through its alternatives, repeats no "
        "group, and has no flags, quotes, Unicode or POSIX classes; it is INVALID_REGULAR_EXPRESSION. A pattern that "
        "would take too long on an id is POLICY_VIOLATION.",
        "docs/transactions.md",
    ),
    Difference(
        "A first FindCoordinator is answered when the coordinators' topic exists; Kafka answers "
        "COORDINATOR_NOT_AVAILABLE, and its client asks again.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "The error message of a refused Produce has the reason, Kafka's is often empty; the log start offset is −1. A "
        "batch that is sent again is answered without its append time.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "A transactional batch without a producer id is refused; Kafka appends it. A batch that no log accepts gets "
        "INVALID_RECORD before its transaction's coordinator is asked.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "A batch that was sent again, and is older than the five that are remembered, gets DUPLICATE_SEQUENCE_NUMBER, "
        "which clients treat as success; Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "After a batch with a wrong epoch was refused, its producer continues; in Kafka 4.3.1 its next batch in that "
        "partition gets OUT_OF_ORDER_SEQUENCE_NUMBER.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "While a decided transaction's markers are missing, a request that would also be refused afterwards is refused"
        " at once; Kafka answers CONCURRENT_TRANSACTIONS to all of them. TxnOffsetCommit 0 to 4 then answers "
        "COORDINATOR_LOAD_IN_PROGRESS, which its clients know.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "WriteTxnMarkers with a negative producer id, epoch or version is INVALID_REQUEST; Kafka answers "
        "UNKNOWN_SERVER_ERROR. AddPartitionsToTxn 4 and later without a transaction is answered; Kafka 4.3.1 "
        "never answers it.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "DescribeTransactions answers an id once, even if the request names it several times.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "The duration filter of ListTransactions finds open transactions; Kafka's also finds ended ones, and ids "
        "without a transaction.",
        "tests/unit/broker/transactions/test_transactions_conversations.py",
    ),
    Difference(
        "These configs, which Kafka accepts on running brokers, are refused: listeners, config.providers, "
        "cordoned.log.dirs, max.connections.per.ip.overrides, sasl.jaas.config, trust stores, key stores outside of "
        "the directory of the listener's first one, and the numbers of copies and cold reads at a time. Unknown names "
        "are refused too; Kafka keeps them for plug-ins.",
        "tests/integration/kafka/test_run_time_configs.py",
    ),
    Difference(
        "DescribeQuorum is not served, because there is no quorum: kafka-metadata-quorum.sh says that the node does "
        "not support it, and ends with 1. No other tool asks for it.",
        "tests/integration/kafka/test_run_time_configs.py",
    ),
    Difference(
        "A batch that is recompressed for its topic (compression.type) is not refused for records that cannot be read, "
        "unless they cannot be decompressed; thermocline.validate.records=true refuses them, as Kafka does.",
        "docs/adr/0031-recompression.md",
    ),
    Difference(
        "A topic with cleanup.policy=compact, or compact,delete, may be tiered by remote.storage.enable=true; Kafka "
        "refuses it. By default it is not tiered, as in Kafka.",
        "tests/unit/broker/handlers/test_compacted_topics.py",
    ),
    Difference(
        "A response that refuses records without key names at most 1 000 of them; Kafka names all. The message counts "
        "them.",
        "tests/unit/broker/handlers/test_compacted_topics.py",
    ),
    Difference(
        "log.cleaner.io.buffer.load.factor outside 0 to 1 and log.cleaner.io.max.bytes.per.second of 0 or less are "
        "refused; Kafka accepts them, and its cleaner fails or does nothing.",
        "tests/unit/broker/config/test_config_resolve.py",
    ),
    Difference(
        "__consumer_offsets is shown with cleanup.policy=delete and endless retention: snapshots rewrite it.",
        "docs/adr/0017-internal-logs-are-rewritten.md",
    ),
    Difference(
        "A start that sets a policy class, a quota callback or another authorizer than Kafka's StandardAuthorizer is "
        "refused.",
        "docs/adr/0012-what-is-not-served-is-refused-or-harmless.md",
    ),
    Difference(
        "With an authorizer, a principal with ClusterAction on the cluster is a broker on the brokers' listener and "
        "may send any request there; Kafka's brokers need the other ACLs too, or are super users. Other listeners "
        "refuse requests that only brokers may send (AddPartitionsToTxn 4+, Fetch as a replica).",
        "docs/adr/0038-a-broker-is-who-has-cluster-action-on-the-brokers-listener.md",
    ),
    Difference(
        "Hosts of ACLs are compared as addresses: `::1` and `0:0:0:0:0:0:0:1` are one; Kafka compares texts.",
        "tests/unit/broker/security/test_authorizer.py",
    ),
    Difference(
        "CreateAcls with ANY or MATCH is INVALID_REQUEST for that binding; Kafka answers UNKNOWN_SERVER_ERROR for all "
        "of the request.",
        "tests/unit/broker/controller/test_acl_decisions.py",
    ),
    Difference(
        "A broker that restarts leads in a new leader epoch, even if it was the leader before.",
        "docs/adr/0014-leader-epochs-are-a-partitions-own.md",
    ),
    Difference(
        "A second target of a move, and a cancel, return to the original replicas, and are refused if too few "
        "would stay in sync; Kafka keeps one merged list. While a partition grows, min.insync.replicas counts against "
        "its original replicas.",
        "docs/adr/0019-how-a-partition-moves.md",
    ),
    Difference(
        "UnregisterBroker of a running broker, or of one with assigned partitions, is refused; Kafka unregisters it.",
        "tests/integration/kafka/test_kafka_tools_unregister.py",
    ),
    Difference(
        "file.delete.delay.ms does not delay deletion of the log of a replica that moved away.",
        "docs/adr/0020-a-log-that-others-hold-now-is-removed.md",
    ),
    Difference(
        "After a lost disk the log continues above the reserved offsets; the hole is a control batch that "
        "clients step over, and a declared gap.",
        "docs/GUARANTEES.md",
    ),
    Difference(
        "Produce 0 to 2 are advertised and answered UNSUPPORTED_VERSION, so that old librdkafka still compresses "
        "(KAFKA-18659).",
        "tests/unit/broker/test_broker_dispatcher.py",
    ),
    Difference(
        "One request may hold 20 000 structures or unknown tagged fields, or 40 000 strings, or 80 000 numbers, and "
        "make 1 000 changes (4 000 SCRAM credentials, 10 000 ACLs); beyond that it is refused.",
        "tests/unit/broker/wire/test_wire_hostile.py",
    ),
    Difference(
        "A topic or broker may have 4 KiB of explicit configs; more is INVALID_CONFIG.",
        "tests/unit/broker/config/test_broker_dynamic_configs.py",
    ),
    Difference(
        "DescribeConfigs of a broker shows the configs that have an effect and those set at run time; Kafka shows all.",
        "tests/unit/broker/config/test_broker_dynamic_configs.py",
    ),
    Difference(
        "AlterConfigs that names a resource twice gets INVALID_REQUEST for both; Kafka 4.3.1 answers only "
        "IncrementalAlterConfigs in this way, and never answers the older request.",
        "tests/unit/broker/handlers/test_broker_admin.py",
    ),
    Difference(
        "IncrementalAlterConfigs with an operation that does not exist is INVALID_REQUEST; Kafka 4.3.1 answers "
        "UNKNOWN_SERVER_ERROR.",
        "tests/unit/broker/handlers/test_broker_handlers.py",
    ),
    Difference(
        "LastKnownElr of DescribeTopicPartitions is empty; Kafka names the last leader of a partition without one. "
        "Replicas that may lead it are in EligibleLeaderReplicas.",
        "tests/integration/kafka/test_kafka_tools_three.py",
    ),
    Difference(
        "leader.replication.throttled.rate and .replicas are accepted without effect: replication is throttled at the "
        "follower, by follower.replication.throttled.*; Kafka's tools set both.",
        "tests/unit/broker/config/test_broker_dynamic_configs.py",
    ),
    Difference(
        "follower.replication.throttled.rate also has an effect in a configuration file; Kafka ignores it there.",
        "docs/configuration.md",
    ),
    Difference(
        "DescribeTopicPartitions counts unknown topics into its page of 2 000; Kafka counts partitions only.",
        "tests/unit/broker/handlers/test_broker_admin.py",
    ),
    Difference(
        "DescribeProducers gives the time at which the broker appended a producer's last batch, Kafka gives that "
        "batch's timestamp; a partition with more than 10 000 producers is refused.",
        "tests/unit/broker/handlers/test_broker_admin.py",
    ),
    Difference(
        "OffsetFetch answers a group once, even if the request names it several times.",
        "tests/unit/broker/groups/test_groups_offsets.py",
    ),
    Difference(
        "DescribeGroups answers a group once, and at most 32 MiB of members; groups beyond that get "
        "COORDINATOR_NOT_AVAILABLE, which clients retry.",
        "tests/unit/broker/groups/test_groups_admin.py",
    ),
    Difference(
        "A group's positions in a deleted topic are deleted at once; in Kafka when their tombstones are written.",
        "tests/unit/broker/groups/test_groups_topics_again.py",
    ),
    Difference(
        "A member whose metadata would make its group larger than 8 MiB gets GROUP_MAX_SIZE_REACHED; in Kafka it "
        "joins, and SyncGroup fails.",
        "tests/unit/broker/groups/test_groups_classic.py",
    ),
    Difference(
        "The time of a tombstone, `delete.retention.ms`, begins when the log of every replica is clean past it. In "
        "Kafka a replica that was down for longer than that may bring a deleted record back.",
        "tests/unit/broker/partition/test_tombstones_of_replicas.py",
    ),
    Difference(
        "A group keeps positions in 100 000 partitions at most.", "tests/unit/broker/groups/test_groups_coordinator.py"
    ),
    Difference(
        "A listener that asks for a client's certificate names no authorities, so a client with several certificates "
        "cannot choose one by its authority.",
        "tests/integration/security/test_tls_clients.py",
    ),
    Difference(
        "DeleteRecords and CreatePartitions of __consumer_offsets are refused.",
        "tests/unit/broker/handlers/test_delete_records.py",
    ),
)

_CLIENTS = "tests/integration/clients"
_SECURITY = "tests/integration/security"

TOOLS: tuple[tuple[str, str], ...] = (
    ("ConfigCommand, TopicCommand, GetOffsetShell, LogDirsCommand: output for output", _TOOLS_TEST),
    ("ReassignPartitionsCommand: output for output", "tests/integration/kafka/test_kafka_moves_beside.py"),
    ("LeaderElectionCommand: output for output", "tests/integration/kafka/test_kafka_tools_operate.py"),
    ("DumpLogSegments", "tests/integration/kafka/test_dump_log_segments.py"),
    ("ConsumerGroupCommand", "tests/integration/kafka/test_group_command_peer.py"),
    ("VerifiableProducer, VerifiableConsumer", f"{_CLIENTS}/test_verifiable_clients.py"),
    ("Spark's Kafka source", "tests/integration/pipeline/test_spark_peers.py"),
    ("KafkaJS: producers, a group, its admin client", f"{_CLIENTS}/test_kafkajs_client.py"),
    ("Sarama: its own functional tests of the served requests", f"{_CLIENTS}/test_sarama_suite.py"),
    (
        "franz-go: its own tests of package kgo, on one broker, on three, and over mutual TLS; of SCRAM",
        f"{_CLIENTS}/test_franz_go_suite.py",
    ),
    ("librdkafka: its own tests that need a broker, on three brokers", f"{_CLIENTS}/test_librdkafka_suite.py"),
    ("kafka-python: its own integration tests", f"{_CLIENTS}/test_kafka_python_suite.py"),
    (
        "confluent-kafka, kafka-python, aiokafka, kcat, franz-go, Sarama, KafkaJS, Java: over SASL_SSL through kills",
        f"{_SECURITY}/test_stock_clients_secured.py",
    ),
    ("aiokafka: its own tests of transactions, rewritten", f"{_CLIENTS}/test_aiokafka_transactions.py"),
    (
        "librdkafka: its own tests over SASL_SSL; of logins, tokens, certificates, ACLs and users",
        f"{_SECURITY}/test_librdkafka_suite_secured.py",
    ),
    (
        "kafka-python: its own tests of SASL and TLS; its integration tests over SASL_SSL",
        f"{_SECURITY}/test_kafka_python_suite_secured.py",
    ),
    ("franz-go: its own tests over SASL_SSL; of tokens", f"{_SECURITY}/test_franz_go_suite_secured.py"),
    ("Sarama: its own functional tests over SASL_SSL", f"{_SECURITY}/test_sarama_suite_secured.py"),
    ("aiokafka: its own tests of SASL, ACLs and TLS, rewritten", f"{_SECURITY}/test_aiokafka_suite_secured.py"),
    ("KafkaJS: every way to log in that its documentation shows", f"{_SECURITY}/test_kafkajs_secured.py"),
)


def render() -> str:
    return "\n".join(
        (
            _HEAD,
            _requests(),
            _configs(),
            "## Clients and tools\n\nEach client of the matrix writes and reads "
            f"{', '.join(CODECS)}, idempotent and not, hot, across the seam and cold "
            "(`tests/integration/clients/test_client_matrix.py`).\n",
            table(("client", "what it is"), sorted(CLIENTS.items())),
            table(("Apache Kafka's tools, other clients", "checked by"), [(who, code(test)) for who, test in TOOLS]),
            "## Differences known\n",
            table(("difference", "see"), [(found.what, _link(found.where)) for found in DIFFERENCES]),
        )
    )


def _versions(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}–{high}"


def _requests() -> str:
    served = {int(api.key): api for api in APIS.values()}
    rows, left_out = [], []
    for kafka in TABLE:
        api = served.get(kafka.key)
        theirs = _versions(kafka.version_min, kafka.version_max)
        if api is None:
            left_out.append((kafka.name, str(kafka.key), theirs, LEFT_OUT[kafka.name]))
        else:
            rows.append((kafka.name, str(kafka.key), _versions(api.version_min, api.version_max), theirs))
    return (
        f"## Requests\n\n{len(rows)} of the {len(TABLE)} requests that Kafka's brokers serve to clients and tools.\n\n"
        + table(("request", "key", "here", "Kafka 4.3.1"), rows)
        + "\nNot advertised:\n\n"
        + table(("request", "key", "Kafka 4.3.1", "because"), left_out)
    )


def _configs() -> str:
    rows = []
    for scope in Scope:
        entries = [entry for entry in explain_all(scope) if not entry.name.startswith("thermocline.")]
        counts = [str(sum(entry.effect is effect for entry in entries)) for effect in Effect]
        rows.append((f"{scope.value} configs", str(len(entries)), *counts))
    return (
        "## Configs\n\nAll of Kafka 4.3's names are known; each is in [configuration.md](configuration.md).\n\n"
        + table(("", "Kafka's", "honoured", "accepted without effect", "refused"), rows)
    )


def _link(where: str) -> str:
    return (
        f"[{where.removeprefix('docs/')}]({where.removeprefix('docs/')})" if where.startswith("docs/") else code(where)
    )
