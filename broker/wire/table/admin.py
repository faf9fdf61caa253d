"""Messages of administrators: partitions and their producers, elections, reassignments, ACLs.

Fields from tag 10000 on are Thermocline's (docs/formats/broker-requests.md).
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

request ElectLeaders
  election_type                           int8                  1+
  topic_partitions                        [Topic]               null
    topic                                 string
    partitions                            [int32]
  timeout_ms                              int32                 =60000

response ElectLeaders
  throttle_time_ms                        int32
  error_code                              int16                 1+
  replica_election_results                [Topic]
    topic                                 string
    partition_result                      [Partition]
      partition_id                        int32
      error_code                          int16
      error_message                       string                null

request UnregisterBroker
  broker_id                               int32
  is_given_up                             bool                  tag:10000
  broker_epoch                            int64                 =-1 tag:10001

response UnregisterBroker
  throttle_time_ms                        int32
  error_code                              int16
  error_message                           string                null

request AlterPartitionReassignments
  timeout_ms                              int32                 =60000
  allow_replication_factor_change         bool                  1+ =true
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      replicas                            [int32]               null =null

response AlterPartitionReassignments
  throttle_time_ms                        int32
  allow_replication_factor_change         bool                  1+ =true
  error_code                              int16
  error_message                           string                null
  responses                               [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16
      error_message                       string                null

request ListPartitionReassignments
  timeout_ms                              int32                 =60000
  topics                                  [Topic]               null =null
    name                                  string
    partition_indexes                     [int32]

response ListPartitionReassignments
  throttle_time_ms                        int32
  error_code                              int16
  error_message                           string                null
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      replicas                            [int32]
      adding_replicas                     [int32]
      removing_replicas                   [int32]

request DescribeAcls
  resource_type_filter                    int8
  resource_name_filter                    string                null
  pattern_type_filter                     int8                  =3
  principal_filter                        string                null
  host_filter                             string                null
  operation                               int8
  permission_type                         int8

response DescribeAcls
  throttle_time_ms                        int32
  error_code                              int16
  error_message                           string                null
  resources                               [Resource]
    resource_type                         int8
    resource_name                         string
    pattern_type                          int8                  =3
    acls                                  [Acl]
      principal                           string
      host                                string
      operation                           int8
      permission_type                     int8

request CreateAcls
  creations                               [Creation]
    resource_type                         int8
    resource_name                         string
    resource_pattern_type                 int8                  =3
    principal                             string
    host                                  string
    operation                             int8
    permission_type                       int8

response CreateAcls
  throttle_time_ms                        int32
  results                                 [Result]
    error_code                            int16
    error_message                         string                null

request DeleteAcls
  filters                                 [Filter]
    resource_type_filter                  int8
    resource_name_filter                  string                null
    pattern_type_filter                   int8                  =3
    principal_filter                      string                null
    host_filter                           string                null
    operation                             int8
    permission_type                       int8

response DeleteAcls
  throttle_time_ms                        int32
  filter_results                          [Result]
    error_code                            int16
    error_message                         string                null
    matching_acls                         [Acl]
      error_code                          int16
      error_message                       string                null
      resource_type                       int8
      resource_name                       string
      pattern_type                        int8                  =3
      principal                           string
      host                                string
      operation                           int8
      permission_type                     int8
"""
