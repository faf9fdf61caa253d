"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId.

Fields from tag 10000 on are for followers (docs/formats/broker-requests.md).
"""

TEXT = """
request Produce
  transactional_id                        string                3+ null =null
  acks                                    int16
  timeout_ms                              int32
  topic_data                              [Topic]
    name                                  string
    partition_data                        [Partition]
      index                               int32
      records                             records               null

response Produce
  responses                               [Topic]
    name                                  string
    partition_responses                   [Partition]
      index                               int32
      error_code                          int16
      base_offset                         int64
      log_append_time_ms                  int64                 2+ =-1
      log_start_offset                    int64                 5+ =-1
      record_errors                       [RecordError]         8+
        batch_index                       int32
        batch_index_error_message         string                null =null
      error_message                       string                8+ null =null
      current_leader                      LeaderIdAndEpoch      10+ tag:0
        leader_id                         int32                 =-1
        leader_epoch                      int32                 =-1
  throttle_time_ms                        int32                 1+
  node_endpoints                          [NodeEndpoint]        10+ tag:0
    node_id                               int32
    host                                  string
    port                                  int32
    rack                                  string                null =null

request Fetch
  cluster_id                              string                12+ null =null tag:0
  replica_state                           ReplicaState          15+ tag:1
    replica_id                            int32                 =-1
    replica_epoch                         int64                 =-1
    incarnation                           string                tag:10000
  replica_id                              int32                 0-14 =-1
  max_wait_ms                             int32
  min_bytes                               int32
  max_bytes                               int32                 =2147483647
  isolation_level                         int8
  session_id                              int32                 7+
  session_epoch                           int32                 7+ =-1
  topics                                  [Topic]
    topic                                 string                0-12
    topic_id                              uuid                  13+
    partitions                            [Partition]
      partition                           int32
      current_leader_epoch                int32                 9+ =-1
      fetch_offset                        int64
      last_fetched_epoch                  int32                 12+ =-1
      log_start_offset                    int64                 5+ =-1
      partition_max_bytes                 int32
      replica_directory_id                uuid                  17+ tag:0
      high_watermark                      int64                 18+ =9223372036854775807 tag:1
      copies_on                           bool                  17+ tag:10000
      clean_end                           int64                 17+ tag:10001
  forgotten_topics_data                   [ForgottenTopic]      7+
    topic                                 string                0-12
    topic_id                              uuid                  13+
    partitions                            [int32]
  rack_id                                 string                11+

response Fetch
  throttle_time_ms                        int32
  error_code                              int16                 7+
  session_id                              int32                 7+
  responses                               [Topic]
    topic                                 string                0-12
    topic_id                              uuid                  13+
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16
      high_watermark                      int64
      last_stable_offset                  int64                 =-1
      log_start_offset                    int64                 5+ =-1
      diverging_epoch                     EpochEndOffset        12+ tag:0
        epoch                             int32                 =-1
        end_offset                        int64                 =-1
      current_leader                      LeaderIdAndEpoch      12+ tag:1
        leader_id                         int32                 =-1
        leader_epoch                      int32                 =-1
      snapshot_id                         SnapshotId            12+ tag:2
        end_offset                        int64                 =-1
        epoch                             int32                 =-1
      verified_end                        int64                 17+ =-1 tag:10000
      reserved_end                        int64                 17+ =-1 tag:10001
      clean_end                           int64                 17+ tag:10002
      aborted_transactions                [AbortedTransaction]  null
        producer_id                       int64
        first_offset                      int64
      preferred_read_replica              int32                 11+ =-1
      records                             records               null
  node_endpoints                          [NodeEndpoint]        16+ tag:0
    node_id                               int32
    host                                  string
    port                                  int32
    rack                                  string                null =null
  quiet_ms                                int64                 17+ =-1 tag:10000

request ListOffsets
  replica_id                              int32
  isolation_level                         int8                  2+
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      current_leader_epoch                int32                 4+ =-1
      timestamp                           int64
  timeout_ms                              int32                 10+

response ListOffsets
  throttle_time_ms                        int32                 2+
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16
      timestamp                           int64                 =-1
      offset                              int64                 =-1
      leader_epoch                        int32                 4+ =-1

request OffsetForLeaderEpoch
  replica_id                              int32                 3+ =-2
  topics                                  [Topic]
    topic                                 string
    partitions                            [Partition]
      partition                           int32
      current_leader_epoch                int32                 =-1
      leader_epoch                        int32
    topic_id                              uuid                  4+ tag:10000
  of_candidates                           bool                  4+ tag:10000

response OffsetForLeaderEpoch
  throttle_time_ms                        int32
  topics                                  [Topic]
    topic                                 string
    partitions                            [Partition]
      error_code                          int16
      partition                           int32
      leader_epoch                        int32                 =-1
      end_offset                          int64                 =-1
      seen_epoch                          int32                 4+ =-1 tag:10000
      high_watermark                      int64                 4+ =-1 tag:10001
      usable_end                          int64                 4+ =-1 tag:10002

request InitProducerId
  transactional_id                        string                null
  transaction_timeout_ms                  int32
  producer_id                             int64                 3+ =-1
  producer_epoch                          int16                 3+ =-1

response InitProducerId
  throttle_time_ms                        int32
  error_code                              int16
  producer_id                             int64                 =-1
  producer_epoch                          int16
"""
