"""Metadata requests: brokers, topics, partitions and API versions."""
