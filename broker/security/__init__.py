"""Who a client is and what it may do.

`tls` has the certificates of listeners, `sasl` the logins, `authorizer` decides by ACLs, `rules` says what each API
asks it. `client_access` and `brokers_only` tell brokers from clients; `audit` writes what was refused and changed;
`http_secrets` are the HTTP port's.
"""
