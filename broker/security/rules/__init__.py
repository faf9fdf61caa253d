"""What every API needs: its operations and resources, and what becomes of the part that is not allowed.

`table.RULES` names the rule of each API. A rule is a pure function: it splits a request into the part that the client
may make, which the handler answers as ever, and the rows that are refused, in Kafka's error codes and words; and it
merges both into one response (`verdict`). The families are `data` (records and offsets of logs), `groups`,
`transactions`, `admin` (topics and configs) and `cluster`.

Three APIs are not split here, because what they answer is made from what the client may see: Fetch, Metadata,
DescribeTopicPartitions. Their handlers ask `Call.access` themselves.

Source: Kafka 4.3.1's KafkaApis, ControllerApis, AuthHelper, AclApis, ConfigHelper and
DescribeTopicPartitionsRequestHandler.
"""
