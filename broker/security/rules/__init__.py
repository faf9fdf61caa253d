"""Authorization rules: the operations and resources that each API needs, and the response for the refused part.

`table.RULES` names the rule of each API. A rule is a pure function: it splits a request into the allowed part, which
the handler answers, and the refused rows, which get Kafka's error codes and words. Both are then merged into one
response (`verdict`). The families are `data` (records and offsets of logs), `groups`, `transactions`, `admin` (topics
and configs) and `cluster`.

Fetch, Metadata and DescribeTopicPartitions have no such rule, because their answers depend on the topics that the
client may see. Their handlers ask `Call.access` themselves.

Source: Kafka 4.3.1's KafkaApis, ControllerApis, AuthHelper, AclApis, ConfigHelper and
DescribeTopicPartitionsRequestHandler.
"""
