"""Fetch and ListOffsets, for consumers and followers."""
