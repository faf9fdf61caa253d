"""A transaction coordinator without brokers: its log in memory, partitions that take markers."""
