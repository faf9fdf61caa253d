"""SaslHandshake, SaslAuthenticate, and the SCRAM credentials of users (KIP-43, KIP-152, KIP-368, KIP-554)."""

TEXT = """
request SaslHandshake
  mechanism                               string

response SaslHandshake
  error_code                              int16
  mechanisms                              [string]

request SaslAuthenticate
  auth_bytes                              bytes

response SaslAuthenticate
  error_code                              int16
  error_message                           string                null =null
  auth_bytes                              bytes
  session_lifetime_ms                     int64                 1+

request DescribeUserScramCredentials
  users                                   [User]                null =null
    name                                  string

response DescribeUserScramCredentials
  throttle_time_ms                        int32
  error_code                              int16
  error_message                           string                null =null
  results                                 [Result]
    user                                  string
    error_code                            int16
    error_message                         string                null =null
    credential_infos                      [CredentialInfo]
      mechanism                           int8
      iterations                          int32

request AlterUserScramCredentials
  deletions                               [Deletion]
    name                                  string
    mechanism                             int8
  upsertions                              [Upsertion]
    name                                  string
    mechanism                             int8
    iterations                            int32
    salt                                  bytes
    salted_password                       bytes

response AlterUserScramCredentials
  throttle_time_ms                        int32
  results                                 [Result]
    user                                  string
    error_code                            int16
    error_message                         string                null =null
"""
