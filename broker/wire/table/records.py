"""The records of `__consumer_offsets` and `__transaction_state`, as Kafka's coordinators write them.

The version is the int16 before the record's key or value; in a key it also names the kind of record (0 and 1: a commit,
2: a group). Tags from 4919 on are Thermocline's: Kafka's readers skip unknown tagged fields (KIP-482).
"""

TEXT = """
record OffsetCommitKey 0-1
  group                                   string
  topic                                   string
  partition                               int32

record OffsetCommitValue 0-4 flexible:4
  offset                                  int64
  leader_epoch                            int32                 3+ =-1
  metadata                                string
  commit_timestamp                        int64
  expire_timestamp                        int64                 1 =-1
  topic_id                                uuid                  4+ tag:0
  own_expire_timestamp                    int64                 4+ =-1 tag:4919

record GroupMetadataKey 2
  group                                   string

record GroupMetadataValue 0-4 flexible:4
  protocol_type                           string
  generation                              int32
  protocol                                string                null =null
  leader                                  string                null =null
  current_state_timestamp                 int64                 2+ =-1
  members                                 [Member]
    member_id                             string
    group_instance_id                     string                3+ null =null
    client_id                             string
    client_host                           string
    rebalance_timeout                     int32                 1+
    session_timeout                       int32
    subscription                          bytes
    assignment                            bytes

record TransactionLogKey 0
  transactional_id                        string

record TransactionLogValue 0-1 flexible:1
  producer_id                             int64
  previous_producer_id                    int64                 1+ =-1 tag:0
  next_producer_id                        int64                 1+ =-1 tag:1
  producer_epoch                          int16
  transaction_timeout_ms                  int32
  transaction_status                      int8
  transaction_partitions                  [Partitions]          null
    topic                                 string
    partition_ids                         [int32]
    topic_id                              uuid                  1+ tag:4919
  transaction_last_update_timestamp_ms    int64
  transaction_start_timestamp_ms          int64
  client_transaction_version              int16                 1+ tag:2
  needs_fresh_producer_id                 bool                  1+ tag:4919
"""
