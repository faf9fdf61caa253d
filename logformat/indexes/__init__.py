"""Indexes of a segment: Kafka's `.index`, `.timeindex` and `.txnindex`, and what builds them from batches."""
