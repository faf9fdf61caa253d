"""Deletion of data from disk and bucket."""
