"""Messages between brokers, in Kafka's newest version: BrokerRegistration, BrokerHeartbeat, AlterPartition, Envelope.

Fields from tag 10000 on are Thermocline's (docs/formats/broker-requests.md).
"""

TEXT = """
request AlterPartition
  broker_id                               int32
  broker_epoch                            int64                 =-1
  topics                                  [Topic]
    topic_id                              uuid
    partitions                            [Partition]
      partition_index                     int32
      leader_epoch                        int32
      new_isr_with_epochs                 [BrokerState]
        broker_id                         int32
        broker_epoch                      int64                 =-1
      leader_recovery_state               int8
      partition_epoch                     int32

response AlterPartition
  throttle_time_ms                        int32
  error_code                              int16
  topics                                  [Topic]
    topic_id                              uuid
    partitions                            [Partition]
      partition_index                     int32
      error_code                          int16
      leader_id                           int32
      leader_epoch                        int32
      isr                                 [int32]
      leader_recovery_state               int8
      partition_epoch                     int32

request Envelope
  request_data                            bytes
  request_principal                       bytes                 null
  client_host_address                     bytes
  client_listener                         string                tag:10000

response Envelope
  response_data                           bytes                 null =null
  error_code                              int16
  position                                int64                 =-1 tag:10000

request BrokerRegistration
  broker_id                               int32
  cluster_id                              string
  incarnation_id                          uuid
  listeners                               [Listener]
    name                                  string
    host                                  string
    port                                  uint16
    security_protocol                     int16
  features                                [Feature]
    name                                  string
    min_supported_version                 int16
    max_supported_version                 int16
  rack                                    string                null
  is_migrating_zk_broker                  bool
  log_dirs                                [uuid]
  previous_broker_epoch                   int64                 =-1
  boot_id                                 string                tag:10000
  lost_logs                               [LostLog]             tag:10002
    topic_id                              uuid
    partitions                            [int32]
  take_over                               bool                  tag:10003
  held_logs                               [HeldLog]             tag:10004
    topic_id                              uuid
    partitions                            [int32]
  lease_counter                           int64                 =-2 tag:10005
  wants_bump                              bool                  tag:10006

response BrokerRegistration
  throttle_time_ms                        int32
  error_code                              int16
  broker_epoch                            int64                 =-1
  error_message                           string                null =null tag:10000

request BrokerHeartbeat
  broker_id                               int32
  broker_epoch                            int64                 =-1
  current_metadata_offset                 int64
  want_fence                              bool
  want_shut_down                          bool
  offline_log_dirs                        [uuid]                tag:0
  cordoned_log_dirs                       [uuid]                null =null tag:1
  lost_logs                               [LostLog]             tag:10000
    topic_id                              uuid
    partitions                            [int32]
  unfit                                   [Unfit]               tag:10001
    topic_id                              uuid
    partitions                            [int32]
  no_claim_ms                             int32                 tag:10002
  since_epoch                             int32                 =-1 tag:10003
  since_ms                                int64                 tag:10004

response BrokerHeartbeat
  throttle_time_ms                        int32
  error_code                              int16
  is_caught_up                            bool
  is_fenced                               bool                  =true
  should_shut_down                        bool
  controller_epoch                        int32                 =-1 tag:10000
  root                                    bytes                 null =null tag:10001
  lease_counter                           int64                 =-1 tag:10002
  is_store_away                           bool                  tag:10003
  boottime_ms                             int64                 tag:10004
"""
