"""Syncs of appended bytes."""
