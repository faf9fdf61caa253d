"""Authentication, authorization and audit of clients.

`tls` has the certificates of listeners, `sasl` the logins. `authorizer` decides by ACLs. `rules` has the operations
that each API needs. `client_access` and `brokers_only` distinguish brokers from clients. `audit` logs refusals and
changes. `http_secrets` has the credentials of the HTTP port.
"""
