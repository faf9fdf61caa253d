"""ApiVersions, Metadata, DescribeCluster."""

TEXT = """
request ApiVersions
  client_software_name                    string                3+
  client_software_version                 string                3+

response ApiVersions
  error_code                              int16
  api_keys                                [Api]
    api_key                               int16
    min_version                           int16
    max_version                           int16
  throttle_time_ms                        int32                 1+
  supported_features                      [SupportedFeature]    3+ tag:0
    name                                  string
    min_version                           int16
    max_version                           int16
  finalized_features_epoch                int64                 3+ =-1 tag:1
  finalized_features                      [FinalizedFeature]    3+ tag:2
    name                                  string
    max_version_level                     int16
    min_version_level                     int16
  zk_migration_ready                      bool                  3+ tag:3

request Metadata
  topics                                  [Topic]               null:1+
    topic_id                              uuid                  10+
    name                                  string                null:10+
  allow_auto_topic_creation               bool                  4+ =true
  include_cluster_authorized_operations   bool                  8-10
  include_topic_authorized_operations     bool                  8+

response Metadata
  throttle_time_ms                        int32                 3+
  brokers                                 [Broker]
    node_id                               int32
    host                                  string
    port                                  int32
    rack                                  string                1+ null =null
  cluster_id                              string                2+ null =null
  controller_id                           int32                 1+ =-1
  topics                                  [Topic]
    error_code                            int16
    name                                  string                null:12+
    topic_id                              uuid                  10+
    is_internal                           bool                  1+
    partitions                            [Partition]
      error_code                          int16
      partition_index                     int32
      leader_id                           int32
      leader_epoch                        int32                 7+ =-1
      replica_nodes                       [int32]
      isr_nodes                           [int32]
      offline_replicas                    [int32]               5+
    topic_authorized_operations           int32                 8+ =-2147483648
  cluster_authorized_operations           int32                 8-10 =-2147483648

request DescribeCluster
  include_cluster_authorized_operations   bool
  endpoint_type                           int8                  1+ =1
  include_fenced_brokers                  bool                  2+

response DescribeCluster
  throttle_time_ms                        int32
  error_code                              int16
  error_message                           string                null =null
  endpoint_type                           int8                  1+ =1
  cluster_id                              string
  controller_id                           int32                 =-1
  brokers                                 [Broker]
    broker_id                             int32
    host                                  string
    port                                  int32
    rack                                  string                null =null
    is_fenced                             bool                  2+
  cluster_authorized_operations           int32                 =-2147483648
"""
