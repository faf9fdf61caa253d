"""The classic consumer group protocol and committed offsets."""

TEXT = """
request FindCoordinator
  key                                     string                0-3
  key_type                                int8                  1+
  coordinator_keys                        [string]              4+

response FindCoordinator
  throttle_time_ms                        int32                 1+
  error_code                              int16                 0-3
  error_message                           string                1-3 null
  node_id                                 int32                 0-3
  host                                    string                0-3
  port                                    int32                 0-3
  coordinators                            [Coordinator]         4+
    key                                   string
    node_id                               int32
    host                                  string
    port                                  int32
    error_code                            int16
    error_message                         string                null

request JoinGroup
  group_id                                string
  session_timeout_ms                      int32
  rebalance_timeout_ms                    int32                 1+ =-1
  member_id                               string
  group_instance_id                       string                5+ null =null
  protocol_type                           string
  protocols                               [Protocol]
    name                                  string
    metadata                              bytes
  reason                                  string                8+ null =null

response JoinGroup
  throttle_time_ms                        int32                 2+
  error_code                              int16
  generation_id                           int32                 =-1
  protocol_type                           string                7+ null =null
  protocol_name                           string                null:7+
  leader                                  string
  skip_assignment                         bool                  9+
  member_id                               string
  members                                 [Member]
    member_id                             string
    group_instance_id                     string                5+ null =null
    metadata                              bytes

request SyncGroup
  group_id                                string
  generation_id                           int32
  member_id                               string
  group_instance_id                       string                3+ null =null
  protocol_type                           string                5+ null =null
  protocol_name                           string                5+ null =null
  assignments                             [Assignment]
    member_id                             string
    assignment                            bytes

response SyncGroup
  throttle_time_ms                        int32                 1+
  error_code                              int16
  protocol_type                           string                5+ null =null
  protocol_name                           string                5+ null =null
  assignment                              bytes

request Heartbeat
  group_id                                string
  generation_id                           int32
  member_id                               string
  group_instance_id                       string                3+ null =null

response Heartbeat
  throttle_time_ms                        int32                 1+
  error_code                              int16

request LeaveGroup
  group_id                                string
  member_id                               string                0-2
  members                                 [Member]              3+
    member_id                             string
    group_instance_id                     string                null =null
    reason                                string                5+ null =null

response LeaveGroup
  throttle_time_ms                        int32                 1+
  error_code                              int16
  members                                 [Member]              3+
    member_id                             string
    group_instance_id                     string                null
    error_code                            int16

request OffsetCommit
  group_id                                string
  generation_id_or_member_epoch           int32                 =-1
  member_id                               string
  group_instance_id                       string                7+ null =null
  retention_time_ms                       int64                 2-4 =-1
  topics                                  [Topic]
    name                                  string                0-9
    topic_id                              uuid                  10+
    partitions                            [Partition]
      partition_index                     int32
      committed_offset                    int64
      committed_leader_epoch              int32                 6+ =-1
      committed_metadata                  string                null

response OffsetCommit
  throttle_time_ms                        int32                 3+
  topics                                  [Topic]
    name                                  string                0-9
    topic_id                              uuid                  10+
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16

request OffsetFetch
  group_id                                string                1-7
  topics                                  [Topic]               1-7 null:2+
    name                                  string
    partition_indexes                     [int32]
  groups                                  [Group]               8+
    group_id                              string
    member_id                             string                9+ null =null
    member_epoch                          int32                 9+ =-1
    topics                                [GroupTopic]          null
      name                                string                8-9
      topic_id                            uuid                  10+
      partition_indexes                   [int32]
  require_stable                          bool                  7+

response OffsetFetch
  throttle_time_ms                        int32                 3+
  topics                                  [Topic]               1-7
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      committed_offset                    int64
      committed_leader_epoch              int32                 5+ =-1
      metadata                            string                null
      error_code                          int16
  error_code                              int16                 2-7
  groups                                  [Group]               8+
    group_id                              string
    topics                                [GroupTopic]
      name                                string                8-9
      topic_id                            uuid                  10+
      partitions                          [GroupPartition]
        partition_index                   int32
        committed_offset                  int64
        committed_leader_epoch            int32                 =-1
        metadata                          string                null
        error_code                        int16
    error_code                            int16

request ListGroups
  states_filter                           [string]              4+
  types_filter                            [string]              5+

response ListGroups
  throttle_time_ms                        int32                 1+
  error_code                              int16
  groups                                  [Group]
    group_id                              string
    protocol_type                         string
    group_state                           string                4+
    group_type                            string                5+

request DescribeGroups
  groups                                  [string]
  include_authorized_operations           bool                  3+

response DescribeGroups
  throttle_time_ms                        int32                 1+
  groups                                  [Group]
    error_code                            int16
    error_message                         string                6+ null =null
    group_id                              string
    group_state                           string
    protocol_type                         string
    protocol_data                         string
    members                               [Member]
      member_id                           string
      group_instance_id                   string                4+ null =null
      client_id                           string
      client_host                         string
      member_metadata                     bytes
      member_assignment                   bytes
    authorized_operations                 int32                 3+ =-2147483648

request DeleteGroups
  groups_names                            [string]

response DeleteGroups
  throttle_time_ms                        int32
  results                                 [Result]
    group_id                              string
    error_code                            int16

request OffsetDelete
  group_id                                string
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32

response OffsetDelete
  error_code                              int16
  throttle_time_ms                        int32
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16
"""
