"""CreateTopics, CreatePartitions, DeleteRecords, DeleteTopics."""

TEXT = """
request CreateTopics
  topics                                  [Topic]
    name                                  string
    num_partitions                        int32
    replication_factor                    int16
    assignments                           [Assignment]
      partition_index                     int32
      broker_ids                          [int32]
    configs                               [Config]
      name                                string
      value                               string                null
  timeout_ms                              int32                 =60000
  validate_only                           bool

response CreateTopics
  throttle_time_ms                        int32
  topics                                  [Topic]
    name                                  string
    topic_id                              uuid                  7+
    error_code                            int16
    error_message                         string                null
    topic_config_error_code               int16                 5+ tag:0
    num_partitions                        int32                 5+ =-1
    replication_factor                    int16                 5+ =-1
    configs                               [Config]              5+ null
      name                                string
      value                               string                null
      read_only                           bool
      config_source                       int8                  =-1
      is_sensitive                        bool

request DeleteTopics
  topics                                  [Topic]               6+
    name                                  string                null =null
    topic_id                              uuid
  topic_names                             [string]              1-5
  timeout_ms                              int32

response DeleteTopics
  throttle_time_ms                        int32
  responses                               [Topic]
    name                                  string                null:6+
    topic_id                              uuid                  6+
    error_code                            int16
    error_message                         string                5+ null =null

request CreatePartitions
  topics                                  [Topic]
    name                                  string
    count                                 int32
    assignments                           [Assignment]          null
      broker_ids                          [int32]
  timeout_ms                              int32
  validate_only                           bool

response CreatePartitions
  throttle_time_ms                        int32
  results                                 [Topic]
    name                                  string
    error_code                            int16
    error_message                         string                null =null

request DeleteRecords
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      offset                              int64
  timeout_ms                              int32

response DeleteRecords
  throttle_time_ms                        int32
  topics                                  [Topic]
    name                                  string
    partitions                            [Partition]
      partition_index                     int32
      low_watermark                       int64
      error_code                          int16
"""
