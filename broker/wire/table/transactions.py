"""Transactions (KIP-98, 360, 447, 664, 890).

Fields from tag 10000 on are for brokers (docs/formats/broker-requests.md).
"""

TEXT = """
request AddPartitionsToTxn
  transactions                            [Transaction]         4+
    transactional_id                      string
    producer_id                           int64
    producer_epoch                        int16
    verify_only                           bool
    topics                                [TransactionTopic]
      name                                string
      partitions                          [int32]
      topic_id                            uuid                  4+ tag:10000
  v3_and_below_transactional_id           string                0-3
  v3_and_below_producer_id                int64                 0-3
  v3_and_below_producer_epoch             int16                 0-3
  v3_and_below_topics                     [Topic]               0-3
    name                                  string
    partitions                            [int32]

response AddPartitionsToTxn
  throttle_time_ms                        int32
  error_code                              int16                 4+
  results_by_transaction                  [Result]              4+
    transactional_id                      string
    topic_results                         [ResultTopic]
      name                                string
      results_by_partition                [ResultPartition]
        partition_index                   int32
        partition_error_code              int16
  results_by_topic_v3_and_below           [Topic]               0-3
    name                                  string
    results_by_partition                  [Partition]
      partition_index                     int32
      partition_error_code                int16

request AddOffsetsToTxn
  transactional_id                        string
  producer_id                             int64
  producer_epoch                          int16
  group_id                                string

response AddOffsetsToTxn
  throttle_time_ms                        int32
  error_code                              int16

request EndTxn
  transactional_id                        string
  producer_id                             int64
  producer_epoch                          int16
  committed                               bool
  started_ms                              int64                 5+ =-1 tag:10000

response EndTxn
  throttle_time_ms                        int32
  error_code                              int16
  producer_id                             int64                 5+ =-1
  producer_epoch                          int16                 5+ =-1

request WriteTxnMarkers
  markers                                 [Marker]
    producer_id                           int64
    producer_epoch                        int16
    transaction_result                    bool
    topics                                [Topic]
      name                                string
      partition_indexes                   [int32]
      topic_id                            uuid                  1+ tag:10000
    coordinator_epoch                     int32
    transaction_version                   int8                  2+

response WriteTxnMarkers
  markers                                 [Marker]
    producer_id                           int64
    topics                                [Topic]
      name                                string
      partitions                          [Partition]
        partition_index                   int32
        error_code                        int16

request TxnOffsetCommit
  transactional_id                        string
  group_id                                string
  producer_id                             int64
  producer_epoch                          int16
  generation_id                           int32                 3+ =-1
  member_id                               string                3+
  group_instance_id                       string                3+ null =null
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      committed_offset                    int64
      committed_leader_epoch              int32                 2+ =-1
      committed_metadata                  string                null

response TxnOffsetCommit
  throttle_time_ms                        int32
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16

request DescribeTransactions
  transactional_ids                       [string]

response DescribeTransactions
  throttle_time_ms                        int32
  transaction_states                      [State]
    error_code                            int16
    transactional_id                      string
    transaction_state                     string
    transaction_timeout_ms                int32
    transaction_start_time_ms             int64
    producer_id                           int64
    producer_epoch                        int16
    topics                                [Topic]
      topic                               string
      partitions                          [int32]
      topic_id                            uuid                  tag:10000

request ListTransactions
  state_filters                           [string]
  producer_id_filters                     [int64]
  duration_filter                         int64                 1+ =-1
  transactional_id_pattern                string                2+ null =null
  partition_topic_id                      uuid                  2+ tag:10000
  partition_index                         int32                 2+ =-1 tag:10001

response ListTransactions
  throttle_time_ms                        int32
  error_code                              int16
  unknown_state_filters                   [string]
  transaction_states                      [State]
    transactional_id                      string
    producer_id                           int64
    transaction_state                     string
    producer_epoch                        int16                 2+ =-1 tag:10000
    client_version                        int16                 2+ tag:10001
    has_partition                         bool                  2+ tag:10002
    started_ms                            int64                 2+ =-1 tag:10003
    previous_producer_id                  int64                 2+ =-1 tag:10004
  led_partitions                          [int32]               2+ tag:10000
"""
