"""Transactions: requests to their coordinator, and the markers that it sends (KIP-98)."""
