"""Which requests Apache Kafka 4.3.1's broker listener serves, and why we leave some out: facts, and one reason each.

Always true: `TABLE` is what Kafka's own `ApiKeys.apisForListener(BROKER)` says (`test_pages_kafka_peer.py` compares).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KafkaApi(NamedTuple):
    """A request; versions inclusive, stable ones only."""

    key: int
    name: str
    version_min: int
    version_max: int


_TABLE: Final = """
0|Produce|3|13
1|Fetch|4|18
2|ListOffsets|1|11
3|Metadata|0|13
8|OffsetCommit|2|10
9|OffsetFetch|1|10
10|FindCoordinator|0|6
11|JoinGroup|0|9
12|Heartbeat|0|4
13|LeaveGroup|0|5
14|SyncGroup|0|5
15|DescribeGroups|0|6
16|ListGroups|0|5
17|SaslHandshake|0|1
18|ApiVersions|0|4
19|CreateTopics|2|7
20|DeleteTopics|1|6
21|DeleteRecords|0|2
22|InitProducerId|0|5
23|OffsetForLeaderEpoch|2|4
24|AddPartitionsToTxn|0|5
25|AddOffsetsToTxn|0|4
26|EndTxn|0|5
27|WriteTxnMarkers|1|2
28|TxnOffsetCommit|0|5
29|DescribeAcls|1|3
30|CreateAcls|1|3
31|DeleteAcls|1|3
32|DescribeConfigs|1|4
33|AlterConfigs|0|2
34|AlterReplicaLogDirs|1|2
35|DescribeLogDirs|1|5
36|SaslAuthenticate|0|2
37|CreatePartitions|0|3
38|CreateDelegationToken|1|3
39|RenewDelegationToken|1|2
40|ExpireDelegationToken|1|2
41|DescribeDelegationToken|1|3
42|DeleteGroups|0|2
43|ElectLeaders|0|2
44|IncrementalAlterConfigs|0|1
45|AlterPartitionReassignments|0|1
46|ListPartitionReassignments|0|0
47|OffsetDelete|0|0
48|DescribeClientQuotas|0|1
49|AlterClientQuotas|0|1
50|DescribeUserScramCredentials|0|0
51|AlterUserScramCredentials|0|0
55|DescribeQuorum|0|2
57|UpdateFeatures|0|2
60|DescribeCluster|0|2
61|DescribeProducers|0|0
64|UnregisterBroker|0|0
65|DescribeTransactions|0|0
66|ListTransactions|0|2
68|ConsumerGroupHeartbeat|0|1
69|ConsumerGroupDescribe|0|1
71|GetTelemetrySubscriptions|0|0
72|PushTelemetry|0|0
74|ListConfigResources|0|1
75|DescribeTopicPartitions|0|0
76|ShareGroupHeartbeat|1|1
77|ShareGroupDescribe|1|1
78|ShareFetch|1|2
79|ShareAcknowledge|1|2
80|AddRaftVoter|0|1
81|RemoveRaftVoter|0|0
83|InitializeShareGroupState|0|0
84|ReadShareGroupState|0|0
85|WriteShareGroupState|0|1
86|DeleteShareGroupState|0|0
87|ReadShareGroupStateSummary|0|1
88|StreamsGroupHeartbeat|0|0
89|StreamsGroupDescribe|0|0
90|DescribeShareGroupOffsets|0|1
91|AlterShareGroupOffsets|0|0
92|DeleteShareGroupOffsets|0|0
"""
TABLE: Final = tuple(
    KafkaApi(int(key), name, int(low), int(high))
    for key, name, low, high in (line.split("|") for line in _TABLE.strip().splitlines())
)

_TOKENS: Final = "delegation tokens are not issued, as by a Kafka broker without a secret key for them"
_GROUPS: Final = "the consumer groups of KIP-848 are not served yet; clients use the classic protocol"
_SHARE: Final = "share groups are not served"
_STREAMS: Final = "the streams groups of KIP-1071 are not served"
_QUORUM: Final = "there is no KRaft quorum: brokers agree through the bucket"
_TELEMETRY: Final = "clients that see it push their metrics; no part of the broker reads them"

LEFT_OUT: Final[dict[str, str]] = {
    "CreateDelegationToken": _TOKENS,
    "RenewDelegationToken": _TOKENS,
    "ExpireDelegationToken": _TOKENS,
    "DescribeDelegationToken": _TOKENS,
    "DescribeQuorum": _QUORUM,
    "UpdateFeatures": _QUORUM,
    "AddRaftVoter": _QUORUM,
    "RemoveRaftVoter": _QUORUM,
    "ConsumerGroupHeartbeat": _GROUPS,
    "ConsumerGroupDescribe": _GROUPS,
    "GetTelemetrySubscriptions": _TELEMETRY,
    "PushTelemetry": _TELEMETRY,
    "ShareGroupHeartbeat": _SHARE,
    "ShareGroupDescribe": _SHARE,
    "ShareFetch": _SHARE,
    "ShareAcknowledge": _SHARE,
    "InitializeShareGroupState": _SHARE,
    "ReadShareGroupState": _SHARE,
    "WriteShareGroupState": _SHARE,
    "DeleteShareGroupState": _SHARE,
    "ReadShareGroupStateSummary": _SHARE,
    "DescribeShareGroupOffsets": _SHARE,
    "AlterShareGroupOffsets": _SHARE,
    "DeleteShareGroupOffsets": _SHARE,
    "StreamsGroupHeartbeat": _STREAMS,
    "StreamsGroupDescribe": _STREAMS,
}
"""Requests that are not advertised, on purpose: half an answer would be worse than the client's own error."""
