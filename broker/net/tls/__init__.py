"""TLS of a connection: the session as a machine, its records, handshakes in turn, the layer below the protocol."""
