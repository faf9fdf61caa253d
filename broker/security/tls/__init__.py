"""TLS by Kafka's `ssl.*` configs.

`settings.py` validates the configs, `stores.py` reads files and inline PEM, and `contexts.py` makes OpenSSL's contexts.
`listener_tls.py` has the current context of a listener and reloads it. `distinguished_name.py` and
`principal_mapping.py` derive a client's principal from its certificate.
"""
