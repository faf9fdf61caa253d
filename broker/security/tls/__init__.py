"""TLS by Kafka's `ssl.*` configs: what they say (`settings.py`), files and inline PEM (`stores.py`), OpenSSL's contexts
(`contexts.py`), the current context of a listener and its reload (`listener_tls.py`), and principals of clients by
certificate (`distinguished_name.py`, `principal_mapping.py`)."""
