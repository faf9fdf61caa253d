"""Configs in Kafka's APIs and in `config explain`."""
