"""Logs that are closed, moved aside or removed."""
