"""Fetch sessions of consumers and followers (KIP-227)."""
