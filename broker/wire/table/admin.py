"""What administrators ask of partitions: DescribeTopicPartitions, DescribeProducers.

Facts about Kafka's messages in the notation of `broker.wire.schema`; nothing else.
"""

TEXT = """
request DescribeTopicPartitions
  topics                                  [Topic]
    name                                  string
  response_partition_limit                int32                 =2000
  cursor                                  Cursor                null =null
    topic_name                            string
    partition_index                       int32

response DescribeTopicPartitions
  throttle_time_ms                        int32
  topics                                  [Topic]
    error_code                            int16
    name                                  string                null
    topic_id                              uuid
    is_internal                           bool
    partitions                            [Partition]
      error_code                          int16
      partition_index                     int32
      leader_id                           int32
      leader_epoch                        int32                 =-1
      replica_nodes                       [int32]
      isr_nodes                           [int32]
      eligible_leader_replicas            [int32]               null =null
      last_known_elr                      [int32]               null =null
      offline_replicas                    [int32]
    topic_authorized_operations           int32                 =-2147483648
  next_cursor                             Cursor                null =null
    topic_name                            string
    partition_index                       int32

request DescribeProducers
  topics                                  [Topic]
    name                                  string
    partition_indexes                     [int32]

response DescribeProducers
  throttle_time_ms                        int32
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16
      error_message                       string                null =null
      active_producers                    [Producer]
        producer_id                       int64
        producer_epoch                    int32
        last_sequence                     int32                 =-1
        last_timestamp                    int64                 =-1
        coordinator_epoch                 int32
        current_txn_start_offset          int64                 =-1
"""
