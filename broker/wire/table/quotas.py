"""DescribeClientQuotas, AlterClientQuotas (KIP-546)."""

TEXT = """
request DescribeClientQuotas
  components                              [Component]
    entity_type                           string
    match_type                            int8
    match                                 string                null
  strict                                  bool

response DescribeClientQuotas
  throttle_time_ms                        int32
  error_code                              int16
  error_message                           string                null =null
  entries                                 [Entry]               null
    entity                                [Entity]
      entity_type                         string
      entity_name                         string                null =null
    values                                [Value]
      key                                 string
      value                               float64

request AlterClientQuotas
  entries                                 [Entry]
    entity                                [Entity]
      entity_type                         string
      entity_name                         string                null =null
    ops                                   [Op]
      key                                 string
      value                               float64
      remove                              bool
  validate_only                           bool

response AlterClientQuotas
  throttle_time_ms                        int32
  entries                                 [Entry]
    error_code                            int16
    error_message                         string                null =null
    entity                                [Entity]
      entity_type                         string
      entity_name                         string                null =null
"""
