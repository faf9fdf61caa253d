"""Configs and log directories."""

TEXT = """
request DescribeConfigs
  resources                               [Resource]
    resource_type                         int8
    resource_name                         string
    configuration_keys                    [string]              null
  include_synonyms                        bool
  include_documentation                   bool                  3+

response DescribeConfigs
  throttle_time_ms                        int32
  results                                 [Result]
    error_code                            int16
    error_message                         string                null
    resource_type                         int8
    resource_name                         string
    configs                               [Config]
      name                                string
      value                               string                null
      read_only                           bool
      config_source                       int8                  =-1
      is_sensitive                        bool
      synonyms                            [Synonym]
        name                              string
        value                             string                null
        source                            int8
      config_type                         int8                  3+
      documentation                       string                3+ null

request AlterConfigs
  resources                               [Resource]
    resource_type                         int8
    resource_name                         string
    configs                               [Config]
      name                                string
      value                               string                null
  validate_only                           bool

response AlterConfigs
  throttle_time_ms                        int32
  responses                               [Resource]
    error_code                            int16
    error_message                         string                null
    resource_type                         int8
    resource_name                         string

request IncrementalAlterConfigs
  resources                               [Resource]
    resource_type                         int8
    resource_name                         string
    configs                               [Config]
      name                                string
      config_operation                    int8
      value                               string                null
  validate_only                           bool

response IncrementalAlterConfigs
  throttle_time_ms                        int32
  responses                               [Resource]
    error_code                            int16
    error_message                         string                null
    resource_type                         int8
    resource_name                         string

request ListConfigResources
  resource_types                          [int8]                1+

response ListConfigResources
  throttle_time_ms                        int32
  error_code                              int16
  config_resources                        [Resource]
    resource_name                         string
    resource_type                         int8                  1+ =16

request AlterReplicaLogDirs
  dirs                                    [Dir]
    path                                  string
    topics                                [Topic]
      name                                string
      partitions                          [int32]

response AlterReplicaLogDirs
  throttle_time_ms                        int32
  results                                 [Topic]
    topic_name                            string
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16

request DescribeLogDirs
  topics                                  [Topic]               null
    topic                                 string
    partitions                            [int32]

response DescribeLogDirs
  throttle_time_ms                        int32
  error_code                              int16                 3+
  results                                 [LogDir]
    error_code                            int16
    log_dir                               string
    topics                                [Topic]
      name                                string
      partitions                          [Partition]
        partition_index                   int32
        partition_size                    int64
        offset_lag                        int64
        is_future_key                     bool
    total_bytes                           int64                 4+ =-1
    usable_bytes                          int64                 4+ =-1
    is_cordoned                           bool                  5+
"""
