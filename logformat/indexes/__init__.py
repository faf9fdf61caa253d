"""Indexes of a segment: Kafka's `.index`, `.timeindex` and `.txnindex`, and their construction from batches."""
